"""A pseudo-terminal with a command in it, whose screen a test reads as a user would."""

import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Sequence

import pyte

from tests.cli.commands import COMMAND, environment

PATIENCE_SECONDS = 120.0
TAB_SECONDS = 30.0
INVISIBLE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])|[\x00-\x20]")
UP, TAB, ENTER, ESCAPE, CTRL_C, CTRL_D = "\x1b[A", "\t", "\r", "\x1b", "\x03", "\x04"


class Terminal:
    """A command of `quiver`, or another one, on a terminal of its own.

    `expect` reads what was written in its order; `wait_until` looks at the screen as it is.
    """

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        command: Sequence[str] = COMMAND,
        **variables: str,
    ) -> None:
        self._own, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (lines, columns))
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self._shown = ""
        """Read, and not expected yet."""
        self.written = bytearray()
        # These terminals do not answer when they are asked where their cursor is.
        given = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **variables}
        self.process = subprocess.Popen(
            # The terminal controls the process, as shells ask for.
            ["setsid", "--ctty", *command, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(**given),
        )
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    @property
    def lines(self) -> list[str]:
        """The screen, without spaces at the ends of lines."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def interrupt(self) -> None:
        """What Ctrl-C does, except while the terminal gives it to the process as a key."""
        self.process.send_signal(signal.SIGINT)

    def resize(self, columns: int, lines: int) -> None:
        termios.tcsetwinsize(self._own, (lines, columns))
        self._screen.resize(lines, columns)

    def expect(self, text: str) -> None:
        """Read until the text was written; the cursor may jump over spaces: they do not count."""
        wanted = "".join(text.split())
        self._read_until(lambda: wanted in self._shown)
        self._shown = self._shown.partition(wanted)[2]

    def wait_until(self, is_shown: str | Callable[[str], object]) -> str:
        """Read until the screen has a text, or is as a function says; returns the screen."""
        if isinstance(is_shown, str):
            wanted = is_shown
            self._read_until(lambda: wanted in self.text)
        else:
            check = is_shown
            self._read_until(lambda: check(self.text))
        return self.text

    def complete(self, keys: str, wanted: str) -> None:
        """Press these keys and Tab, until the screen has what is wanted. Brokers that a busy
        machine keeps from answering in time complete nothing: then Tab is pressed again, late
        enough that no shell is still busy with the first one."""
        self.press(keys)
        due = 0.0

        def is_shown() -> bool:
            nonlocal due
            found = wanted in self.text
            if not found and time.monotonic() >= due:
                due = time.monotonic() + TAB_SECONDS
                self.press(TAB)
            return found

        self._read_until(is_shown)

    def wait_for_end(self) -> int:
        """Read until the process ends; its exit code."""
        self._read_until(lambda: self.process.poll() is not None)
        return self.process.wait()

    def _read_until(self, is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        # `select` knows no file with a number above 1,023, and a process of tests may have those.
        readable = select.poll()
        readable.register(self._own, select.POLLIN)
        while not is_done():
            assert time.monotonic() < deadline, f"{self.text}\n{self._shown[-2000:]}"
            if readable.poll(100):
                try:
                    read = os.read(self._own, 65536)
                except OSError:  # the process ended
                    assert self.process.wait(PATIENCE_SECONDS) is not None
                    assert is_done(), self.text
                    return
                self.written += read
                self._stream.feed(read)
                self._shown += INVISIBLE.sub("", read.decode(errors="replace"))
