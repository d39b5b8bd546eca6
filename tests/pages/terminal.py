"""A terminal in which commands of a page run, as a reader would run them."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Final

COLUMNS: Final = 110
LONGEST_S: Final = 120.0
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\r")
_SPINNER: Final = re.compile(r"^[\u2800-\u28ff] .*\n?", re.MULTILINE)


class Terminal:
    """A shell that keeps variables and folder from one command to the next."""

    def __init__(self, folder: Path, state: Path, environ: dict[str, str]) -> None:
        self._state = state
        self._environ = environ
        self._running: list[tuple[subprocess.Popen[bytes], int]] = []
        (state / "variables").write_text("")
        (state / "folder").write_text(str(folder))

    def run(self, command: str) -> tuple[str, str]:
        """What a script writes to its output, and to its errors; not on a terminal."""
        done = subprocess.run(
            self._shell(command), capture_output=True, check=False, timeout=LONGEST_S,
            text=True, env=self._environ, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    def show(self, command: str) -> str:
        """What a reader sees who types the command."""
        process, screen = self._start(command)
        text = self._read(screen, until=None)
        os.close(screen)
        assert process.wait(LONGEST_S) == 0, f"{command}\n{text}"
        return text

    def start(self, command: str, until: str) -> str:
        """What a reader sees of a command that goes on, up to and with the text `until`."""
        process, screen = self._start(command)
        self._running.append((process, screen))
        return self._read(screen, until=until)

    def close(self) -> list[int]:
        """Press Ctrl-C in every terminal in which a command still runs; how they ended."""
        codes = []
        for process, screen in self._running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            self._read(screen, until=None)
            os.close(screen)
            codes.append(process.wait(LONGEST_S))
        return codes

    def _shell(self, command: str) -> list[str]:
        keep = f"export -p > {self._state}/variables; pwd > {self._state}/folder"
        script = (
            f"source {self._state}/variables; cd $(cat {self._state}/folder); trap '{keep}' EXIT"
        )
        return ["bash", "-euc", f"{script}\n{command}"]

    def _start(self, command: str) -> tuple[subprocess.Popen[bytes], int]:
        screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        # A dumb terminal: nothing moves on it, and nothing is coloured.
        environ = {**self._environ, "TERM": "dumb"}
        process = subprocess.Popen(
            self._shell(command), stdin=inside, stdout=inside, stderr=inside, env=environ,
            start_new_session=True,
        )  # fmt: skip
        os.close(inside)
        return process, screen

    def _read(self, screen: int, until: str | None) -> str:
        seen, deadline = b"", time.monotonic() + LONGEST_S
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while until is None or until not in shown(seen) or not seen.endswith(b"\n"):
                assert time.monotonic() < deadline, shown(seen)
                if select.select([screen], [], [], 1.0)[0]:
                    if not (more := os.read(screen, 65_536)):
                        break
                    seen += more
        return shown(seen)


def shown(seen: bytes) -> str:
    """Text without colours, and without signs of progress that a terminal takes back."""
    return _SPINNER.sub("", _ESCAPES.sub("", seen.decode(errors="replace")))
