"""`quiver shell`: lines of a pipe against a cluster of processes, and a terminal."""

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

import quivermq
from tests.cli.commands import COMMAND, Done, environment, quiver, quiver_json


@pytest.fixture
def topic(servers: str) -> str:
    name = f"talk-{uuid4().hex[:8]}"
    with quivermq.connect(servers) as client:
        client.create_topic(name)
        client.produce_many(name, [b"a", b"b", b"c", b"d"])
    return name


def shell(servers: str, topic: str, *said: str, code: int = 0, json_: bool = False) -> Done:
    options = ["--json"] if json_ else []
    done = quiver("shell", topic, *options, "--servers", servers, stdin="\n".join(said) + "\n")
    assert done.returncode == code, done.stderr
    return done


def values(done: Done) -> list[str]:
    return [line.split()[-1] for line in done.stdout.splitlines() if line.startswith("[")]


def group(servers: str, topic: str) -> dict[str, int]:
    found = quiver_json("group", "describe", topic, "shell", "--servers", servers)
    return {name: found[name] for name in ("lag", "in_flight", "done", "dead", "delayed")}


def test_messages_are_sent_polled_and_settled(servers: str, topic: str) -> None:
    done = shell(
        servers, topic,
        "send --key k  hello 'big  world'", "poll 3", "ack 1", "nack [2] --delay 1h",
        "reject 3 --reason 'no stock'", "poll", "status", "exit", "poll",
    )  # fmt: skip
    assert "stored at 0/4\n" in done.stdout
    assert values(done) == ["a", "b", "c", "d", "world"]
    assert "key=k  hello big  world\n" in done.stdout
    assert "held: 2 messages, [4] to [5]\n" in done.stdout
    assert "lag 0, in flight 2, delayed 1, done 1, dead 1\n" in done.stdout
    assert group(servers, topic) == {"lag": 2, "in_flight": 0, "done": 1, "dead": 1, "delayed": 1}


def test_what_is_streamed_is_done_and_what_was_held_is_not(servers: str, topic: str) -> None:
    done = shell(servers, topic, "poll 1", "stream 2", "status")
    assert values(done) == ["a", "b", "c"]
    assert "held: 1 message, [1]\n" in done.stdout
    assert group(servers, topic)["done"] == 2
    assert values(shell(servers, topic, "stream")) == ["a", "d"], "it ends when nothing comes"


@pytest.mark.parametrize("mode", ["single", "sticky"])
def test_offsets_are_committed(servers: str, topic: str, mode: str) -> None:
    first = shell(servers, topic, f"mode {mode}", "poll 2", "commit", "poll 1", json_=True)
    found = [json.loads(line) for line in first.stdout.splitlines() if line.startswith("{")]
    assert [each["value"] for each in found] == ["a", "b", "c"]
    assert "2 messages committed\n" in first.stdout
    again = shell(servers, topic, f"mode {mode}", "stream", json_=True)
    found = [json.loads(line) for line in again.stdout.splitlines() if line.startswith("{")]
    assert [each["value"] for each in found] == ["c", "d"], "c was shown and not committed"
    assert shell(servers, topic, f"mode {mode}", "poll", json_=True).stdout.count("{") == 0


def test_a_line_that_cannot_be_done_is_one_clear_line_and_the_next_is_done(
    servers: str, topic: str
) -> None:
    wrong = {
        "nonsense": "help lists them",
        "poll many": "no number",
        "ack 7": "no message [7] is held",
        "send": "send what?",
        "send --colour red x": "--colour is not known",
        "send --delay soon x": "is no duration",
        "send 'x": "quotes come in pairs",
        "mode fast": "which mode?",
        "commit": "ack messages instead",
        "subscribe nowhere": "nowhere",
        "mode single\nack": "ack is for mode shared",
    }
    done = shell(servers, topic, *wrong, "# a comment", "", "topics", code=1)
    told = done.stderr.splitlines()
    assert len(told) == len(wrong), done.stderr
    for line, sentence in zip(told, wrong.values(), strict=True):
        assert line.startswith("error: ")
        assert sentence in line
    assert topic in done.stdout.splitlines()[-1] or topic in done.stdout


def test_help_names_every_command(servers: str) -> None:
    done = quiver("shell", "--servers", servers, stdin="help\nstatus\npoll\n")
    for command in ("send", "subscribe", "poll", "stream", "ack", "nack", "commit", "mode"):
        assert f" {command} " in done.stdout
    assert "no topic in use" in done.stdout
    assert done.stderr == "error: no topic in use: subscribe TOPIC [GROUP] first\n"


def test_on_a_terminal_there_are_a_prompt_completion_and_a_history(
    servers: str, topic: str, tmp_path: Path
) -> None:
    own, theirs = pty.openpty()
    variables = {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "INPUTRC": os.devnull}
    with subprocess.Popen(
        [*COMMAND, "shell", "--servers", servers],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(**variables),
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            _expect(own, "quiver> ")
            os.write(own, f"subs\t{topic}\n".encode())
            _expect(own, f"{topic}/shell shared> ")
            os.write(own, b"poll 1\n")
            _expect(own, "[1] ")
            os.write(own, b"stream\n")
            _expect(own, "Ctrl-C ends")
            # This terminal is not the one that controls the process.
            process.send_signal(signal.SIGINT)
            _expect(own, "shared> ")
            os.write(own, b"\x04")
            assert process.wait(20) == 0
        finally:
            process.kill()
            os.close(own)
    history = (tmp_path / "quivermq" / "shell_history").read_text()
    assert f"subscribe {topic}" in history
    assert group(servers, topic)["in_flight"] == 0


def _expect(terminal: int, text: str) -> None:
    """Read until the text comes."""
    shown, deadline = "", time.monotonic() + 20
    while text not in shown:
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
