"""Processes that the fork server of this process started, used as those of `subprocess`."""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from math import inf
from typing import IO, Final

from quivermq.testing.fork_server import NETWORK

CAN_FORK: Final = sys.platform == "linux"
"""Elsewhere libraries of the system do not survive a fork."""
_FIRST_LOOK_S: Final = 0.0005
_LAST_LOOK_S: Final = 0.05
"""As `subprocess` waits."""


class ForkedProcess:
    """The part of `subprocess.Popen` that tests need, with pipes of text."""

    def __init__(self, pid: int, stdin: int, stdout: int, exit_code: int) -> None:
        self.pid = pid
        self.stdin: IO[str] = os.fdopen(stdin, "w")
        self.stdout: IO[str] = os.fdopen(stdout, "r")
        self.returncode: int | None = None
        self._exit_code: IO[bytes] = os.fdopen(exit_code, "rb", buffering=0)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """As `subprocess` has it: minus the signal that ended it; None while it runs."""
        with self._lock:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._exit_code, select.POLLIN)
                if poll.poll(0):
                    self.returncode = self._read()
            return self.returncode

    def wait(self, timeout: float = inf) -> int:
        """Its exit code, once it has ended; raises `subprocess.TimeoutExpired` before that."""
        deadline = time.monotonic() + timeout
        pause_s = _FIRST_LOOK_S
        while (found := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired([str(self.pid)], timeout)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        return found

    def _read(self) -> int:
        with self._exit_code as pipe:
            text = pipe.read(16)
        if text:
            return int(text)
        # The fork server is gone, and with it the exit code.
        self._end()
        return -signal.SIGKILL

    def _end(self) -> None:
        """SIGKILL, and wait: only then its files are closed and its locks free."""
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                poll = select.poll()
                poll.register(process, select.POLLIN)
                poll.poll()
            finally:
                os.close(process)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended since, before the fork server has said so.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The fork server of one process."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        module = [sys.executable, "-m", "quivermq.testing.fork_server", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                module,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # An interrupt in the terminal is for the test.
                process_group=0,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def start(self, module: str, argv: list[str], stderr: int) -> ForkedProcess:
        request = {
            "module": module,
            "argv": argv,
            "environ": dict(os.environ),
            "cwd": os.getcwd(),  # noqa: PTH109 - a text for JSON
        }
        (stdin, to), (source, stdout), (code, exit_code) = os.pipe(), os.pipe(), os.pipe()
        with tempfile.TemporaryFile("w") as text, NETWORK.open("rb") as network:
            json.dump(request, text)
            text.flush()
            try:
                files = [text.fileno(), network.fileno(), stdin, stdout, stderr, exit_code]
                socket.send_fds(self._requests, [b"fork"], files)
                pid = int(self._requests.recv(16))
            except (OSError, ValueError) as error:
                for file in (to, source, code):
                    os.close(file)
                raise RuntimeError("the fork server ended") from error
            finally:
                for file in (stdin, stdout, exit_code):
                    os.close(file)
        return ForkedProcess(pid, to, source, code)

    def close(self) -> None:
        if self.owner == os.getpid():
            self._requests.close()
            self._process.wait()


_lock: Final = threading.Lock()
_server: _Server | None = None


def start_forked(module: str, *argv: str, stderr: int) -> ForkedProcess:
    """Start the `main` of a module in a process of its own process group, in the network namespace
    of this thread. It inherits the limits of the moment in which this was first called."""
    global _server  # noqa: PLW0603 - one for each process
    with _lock:
        if _server is None or _server.owner != os.getpid() or not _server.is_running:
            if _server is not None:
                _server.close()
            _server = _Server()
            atexit.register(_server.close)
        return _server.start(module, list(argv), stderr)
