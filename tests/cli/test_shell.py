"""`quiver shell`: lines of a pipe, and a real terminal, against a cluster of processes."""

import json
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

import quivermq
from tests.cli.commands import Done, quiver, quiver_json
from tests.cli.terminal import CTRL_C, CTRL_D, TAB, UP, Terminal


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


def test_send_poll_ack_nack_and_reject(servers: str, topic: str) -> None:
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


def test_stream_acknowledges_its_messages_and_no_others(servers: str, topic: str) -> None:
    done = shell(servers, topic, "poll 1", "stream 2", "status")
    assert values(done) == ["a", "b", "c"]
    assert "held: 1 message, [1]\n" in done.stdout
    assert group(servers, topic)["done"] == 2
    assert values(shell(servers, topic, "stream")) == ["a", "d"], "it ends when nothing comes"


@pytest.mark.parametrize("mode", ["single", "sticky"])
def test_commit_in_single_and_sticky_mode(servers: str, topic: str, mode: str) -> None:
    first = shell(servers, topic, f"mode {mode}", "poll 2", "commit", "poll 1", json_=True)
    found = [json.loads(line) for line in first.stdout.splitlines() if line.startswith("{")]
    assert [each["value"] for each in found] == ["a", "b", "c"]
    assert "2 messages committed\n" in first.stdout
    again = shell(servers, topic, f"mode {mode}", "stream", json_=True)
    found = [json.loads(line) for line in again.stdout.splitlines() if line.startswith("{")]
    assert [each["value"] for each in found] == ["c", "d"], "c was shown and not committed"
    assert shell(servers, topic, f"mode {mode}", "poll", json_=True).stdout.count("{") == 0


def test_a_wrong_line_prints_one_error_and_the_next_line_runs(servers: str, topic: str) -> None:
    wrong = {
        "nonsense": "is not a command; help lists them",
        "pol": "did you mean poll?",
        "help nonsense": "'nonsense' is not a command",
        "send --header x y": "write --header name=value",
        "status now": "status stands alone, or with live",
        "seek": "seek needs a place",
        "seek tomorrow": "'tomorrow' is not a time",
        "poll many": "is not a number",
        "ack 7": "no message [7] is held",
        "send": "send needs a value",
        "send --colour red x": "--colour is not an option",
        "send --delay soon x": "is not a duration",
        "send 'x": "close the quotes",
        "mode fast": "mode needs one of shared, sticky, single",
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


def test_send_takes_headers_and_another_topic(servers: str, topic: str) -> None:
    done = shell(
        servers, topic,
        "send --header a=1 --header b=2 to itself", "stream",
        f"subscribe {topic} other", "poll 1", f"send --topic {topic} -- --odd", "groups",
    )  # fmt: skip
    assert "a=1  b=2  to itself\n" in done.stdout
    assert "stored at 0/5\n" in done.stdout
    listed = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["other", "shared"] in listed
    assert ["shell", "shared"] in listed


def test_seek_moves_the_group_and_releases_what_is_held(servers: str, topic: str) -> None:
    done = shell(servers, topic, "stream 3", "poll", "seek earliest", "status", "poll 2", "seek 3")
    assert "shell continues at offset 0 of partition 0\n" in done.stdout
    assert "shell continues at offset 3 of partition 0\n" in done.stdout
    assert values(done) == ["a", "b", "c", "d", "a", "b"]
    assert "held: " not in done.stdout, "of before the seek"
    assert group(servers, topic)["lag"] == 1


def test_status_live_runs_on_a_pipe_once(servers: str, topic: str) -> None:
    done = shell(servers, topic, "poll 1", "status live")
    assert done.stdout.count("cluster of 3 brokers") == 1
    assert "held: 1 message, [1]\n" in done.stdout


def test_help_names_every_command(servers: str) -> None:
    done = quiver("shell", "--servers", servers, stdin="help\nstatus\npoll\n")
    for command in ("send", "subscribe", "poll", "stream", "ack", "nack", "commit", "mode"):
        assert f" {command} " in done.stdout
    assert "NAME=VALUE" in done.stdout
    one = quiver("shell", "--servers", servers, stdin="help seek\n").stdout
    assert " poll " not in one
    assert "seek WHERE" in one
    assert "no topic in use" in done.stdout
    assert done.stderr == "error: no topic in use: subscribe TOPIC [GROUP] first\n"


def typed(servers: str, state: Path) -> Terminal:
    """A shell on a terminal, with its history below `state`."""
    return Terminal("shell", "--servers", servers, XDG_STATE_HOME=str(state))


def test_a_terminal_completes_and_recalls_lines(servers: str, topic: str, tmp_path: Path) -> None:
    with quivermq.connect(servers) as client:
        client.poll(topic, group="workers", max_messages=1)[0].nack()
    with typed(servers, tmp_path) as terminal:
        terminal.expect("quiver>")
        terminal.press(f"subs{TAB}")
        terminal.expect("subscribe")
        terminal.press(f"{topic[:-2]}{TAB}")
        terminal.expect(topic)
        terminal.press(f"wo{TAB}")
        terminal.expect("workers")
        terminal.press("\r")
        terminal.expect(f"{topic}/workers shared>")
        terminal.press("mode single\r")
        terminal.expect(f"{topic}/workers single>")
        terminal.press(f"{UP}{UP}\r")
        terminal.expect(f"group workers, single {topic}/workers single>")
        terminal.press(CTRL_D)
        assert terminal.process.wait(20) == 0
    history = tmp_path / "quivermq" / "shell_history"
    assert f"+subscribe {topic} workers \n" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0, "others may not read the messages in it"
    with typed(servers, tmp_path) as terminal:
        terminal.expect("quiver>")
        terminal.press(f"{UP}\r")
        terminal.expect(f"{topic}/workers shared>")


def test_ctrl_c_ends_a_stream_and_ctrl_d_releases_what_is_held(
    servers: str, topic: str, tmp_path: Path
) -> None:
    with typed(servers, tmp_path) as terminal:
        terminal.expect("quiver>")
        terminal.press(f"subscribe {topic}\r")
        terminal.expect(f"{topic}/shell shared>")
        terminal.press("poll 1\r")
        terminal.expect("[1] ")
        terminal.press("stream\r")
        terminal.expect("Ctrl-C ends")
        terminal.expect("[4] ")
        # An interrupted acknowledgement would leave its messages leased.
        deadline = time.monotonic() + 20
        while group(servers, topic)["done"] < 3:
            assert time.monotonic() < deadline
        terminal.interrupt()
        terminal.expect("shared>")
        terminal.press(f"half a line{CTRL_C}")
        # The prompt of the half line looks like the next one, and Ctrl-D ends only an empty line.
        deadline = time.monotonic() + 20
        while terminal.process.poll() is None:
            assert time.monotonic() < deadline
            with suppress(OSError):
                terminal.press(CTRL_D)
            time.sleep(0.1)
        assert terminal.process.returncode == 0
    assert group(servers, topic)["in_flight"] == 0


def test_a_terminal_without_a_writable_home_has_no_history_file(
    servers: str, tmp_path: Path
) -> None:
    state = tmp_path / "file"
    state.write_text("not a folder")
    with typed(servers, state) as terminal:
        terminal.expect("quiver>")
        terminal.press("exit\r")
        assert terminal.process.wait(20) == 0


def test_a_terminal_completes_numbers_options_and_places(
    servers: str, topic: str, tmp_path: Path
) -> None:
    with typed(servers, tmp_path) as terminal:
        terminal.expect("quiver>")
        # Completion runs beside the keyboard: each Tab waits for what the one before has brought.
        terminal.press(f"send --to{TAB}")
        terminal.wait_until("send --topic")
        terminal.press(f"{topic[:-2]}{TAB}")
        terminal.wait_until(f"send --topic {topic}")
        terminal.press("hello\r")
        terminal.expect("stored at 0/4")
        terminal.press(f"subscribe {topic}\rpoll 12\r")
        terminal.expect("[5] ")
        terminal.press(f"ack 3 {TAB}{TAB}")
        # All that are held, and not named yet.
        terminal.wait_until(lambda text: {"1", "2", "4", "5"} <= set(text.split()))
        assert "3" not in {line.strip() for line in terminal.lines}
        terminal.press(f"{CTRL_C}help st{TAB}{TAB}")
        terminal.wait_until(lambda text: "status" in text and "stream" in text)
        terminal.press(f"{CTRL_C}see{TAB}")
        terminal.wait_until("> seek")
        terminal.press(f"ear{TAB}")
        terminal.wait_until("> seek earliest")
        terminal.press("\r")
        terminal.expect("continues at offset 0")


def test_a_live_status_follows_the_group_until_ctrl_c(
    servers: str, topic: str, tmp_path: Path
) -> None:
    with typed(servers, tmp_path) as terminal, quivermq.connect(servers) as client:
        terminal.expect("quiver>")
        terminal.press(f"subscribe {topic}\rstream 1\rstatus live\r")
        terminal.expect("Ctrl-C ends")
        terminal.wait_until("lag 3, in flight 0, delayed 0, done 1")
        client.produce(topic, b"e")
        client.ack(client.poll(topic, group="shell", max_messages=2))
        shown = terminal.wait_until("lag 2, in flight 0, delayed 0, done 3 (")
        assert shown.count("cluster of 3 brokers, 3 alive") == 1, "in place, not line after line"
        terminal.interrupt()
        terminal.press("exit\r")
        assert terminal.wait_for_end() == 0
