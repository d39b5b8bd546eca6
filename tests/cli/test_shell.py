"""`quiver shell`: lines of a pipe, and a real terminal, against a cluster of processes."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from contextlib import suppress
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
        "nonsense": "is not a command",
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


def test_help_names_every_command(servers: str) -> None:
    done = quiver("shell", "--servers", servers, stdin="help\nstatus\npoll\n")
    for command in ("send", "subscribe", "poll", "stream", "ack", "nack", "commit", "mode"):
        assert f" {command} " in done.stdout
    assert "no topic in use" in done.stdout
    assert done.stderr == "error: no topic in use: subscribe TOPIC [GROUP] first\n"


class Terminal:
    """`quiver shell` on a terminal of 80 columns."""

    def __init__(self, servers: str, state: Path) -> None:
        self._own, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        variables = {
            "XDG_STATE_HOME": str(state),
            "TERM": "xterm",
            # This terminal does not answer when it is asked where its cursor is.
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        self.process = subprocess.Popen(
            [*COMMAND, "shell", "--servers", servers],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**variables),
            start_new_session=True,
        )
        os.close(theirs)
        self._shown = ""
        """Read, and not expected yet."""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def expect(self, text: str) -> None:
        """Read until the text is shown; the cursor may jump over spaces, so they do not count."""
        wanted, deadline = "".join(text.split()), time.monotonic() + 20
        while wanted not in self._shown:
            assert time.monotonic() < deadline, self._shown
            if select.select([self._own], [], [], 1.0)[0]:
                read = os.read(self._own, 4096).decode(errors="replace")
                self._shown += INVISIBLE.sub("", read)
        self._shown = self._shown.partition(wanted)[2]


INVISIBLE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])|[\x00-\x20]")
UP, TAB, CTRL_C, CTRL_D = "\x1b[A", "\t", "\x03", "\x04"


def test_a_terminal_completes_and_recalls_lines(servers: str, topic: str, tmp_path: Path) -> None:
    with quivermq.connect(servers) as client:
        client.poll(topic, group="workers", max_messages=1)[0].nack()
    with Terminal(servers, tmp_path) as terminal:
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
    with Terminal(servers, tmp_path) as terminal:
        terminal.expect("quiver>")
        terminal.press(f"{UP}\r")
        terminal.expect(f"{topic}/workers shared>")


def test_ctrl_c_ends_a_stream_and_ctrl_d_releases_what_is_held(
    servers: str, topic: str, tmp_path: Path
) -> None:
    with Terminal(servers, tmp_path) as terminal:
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
        # This terminal does not control the process, so a Ctrl-C key would not interrupt it.
        terminal.process.send_signal(signal.SIGINT)
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
    with Terminal(servers, state) as terminal:
        terminal.expect("quiver>")
        terminal.press("exit\r")
        assert terminal.process.wait(20) == 0
