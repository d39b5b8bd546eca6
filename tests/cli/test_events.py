"""`quiver events`, `quiver cluster log-level` and the log of `quiver serve`, as processes."""

import json
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quivermq.events import KINDS
from tests.cli.commands import COMMAND, environment, error_line, quiver, quiver_json
from tests.cli.conftest import Serving, start_serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with start_serve(tmp_path_factory.mktemp("events")) as found:
        yield found


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_events_are_shown_for_people_and_for_programs(server: Serving) -> None:
    at = ("--servers", server.ready["listen"])
    done = quiver("events", *at)
    assert done.returncode == 0, done.stderr
    quiver("topic", "create", "orders", *at)
    created = ("events", "--kind", "topic_created", "--since", "10m", *at)
    until(lambda: "topic orders was created" in quiver(*created).stdout)
    lines = [json.loads(line) for line in quiver(*created, "--json").stdout.splitlines()]
    assert {line["kind"] for line in lines} == {"topic_created"}
    (event,) = (line for line in lines if line["topic"] == "orders")
    assert event["broker"] is None
    assert event["told_by"] == 1
    assert event["time"].endswith("Z")
    assert quiver("events", "--since", "0s", *at).stdout == ""
    assert "no kind 'nonsense'" in error_line(quiver("events", "--kind", "nonsense", *at), 1)
    assert "is not a duration" in error_line(quiver("events", "--since", "soon", *at), 2)
    assert quiver_json("events", "--kinds") == dict(KINDS)
    # It is not among the topics of users.
    assert "_events" not in quiver("topic", "list", *at).stdout
    assert "_events" in quiver("topic", "list", "--all", *at).stdout


def test_events_are_followed_until_an_interrupt(server: Serving) -> None:
    at = ("--servers", server.ready["listen"])
    follow = [*COMMAND, "events", "--follow", "--json", "--since", "0s", *at]
    with subprocess.Popen(
        follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        number = 0
        try:
            # It may not have begun yet: what is created before is not its business.
            while True:
                number += 1
                quiver("topic", "create", f"followed-{number}", *at)
                if select.select([process.stdout], [], [], 0.2)[0]:
                    break
                assert number < 100
            line = process.stdout.readline()
            assert json.loads(line)["kind"] in KINDS
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
        finally:
            process.kill()


def test_the_log_is_json_line_by_line_and_its_level_changes(tmp_path: Path) -> None:
    with start_serve(
        tmp_path, "--log-format", "json", "--log-level", "warning", "--http", "127.0.0.1:0"
    ) as found:
        at = ("--servers", found.ready["listen"])
        shown = quiver("cluster", "log-level", *at)
        assert shown.stdout == "broker 1: quivermq warning\n", shown.stderr
        changed = quiver_json("cluster", "log-level", "debug", *at)
        assert changed == [{"broker": 1, "levels": {"quivermq": "debug"}}]
        one = quiver("cluster", "log-level", "error", "--broker", "1", "--logger", "http", *at)
        assert one.stdout == "broker 1: quivermq debug, quivermq.http error\n"
        assert "is not a level" in error_line(quiver("cluster", "log-level", "loud", *at), 1)
        quiver("cluster", "log-level", "default", *at)
        assert quiver("cluster", "log-level", *at).stdout == "broker 1: quivermq warning\n"
        # By a signal, in turns.
        for level in ("debug", "warning"):
            found.process.send_signal(signal.SIGUSR2)
            wanted = f"broker 1: quivermq {level}\n"
            until(lambda wanted=wanted: quiver("cluster", "log-level", *at).stdout == wanted)
        _, log = found.end()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {line["node"] for line in lines} == {1}
    assert any("the level of quivermq is debug" in line["message"] for line in lines)
    by_request = [line for line in lines if line["logger"] == "quivermq.logs" and "request" in line]
    assert by_request
    assert all(line["connection"].startswith("tcp-") for line in by_request)
