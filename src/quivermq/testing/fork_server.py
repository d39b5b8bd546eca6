"""Forks processes that have imported already what brokers need.

    python -m quivermq.testing.fork_server 7

Most of the time in which a broker starts goes into its imports. This process has made them, and a
process that it forks begins with them. `quivermq.testing.cluster.forked_process` starts it, with
one end of a Unix socket, whose file descriptor is the argument. A request there is a packet with
six file descriptors: a file that says what to run,

    {"module": "quivermq.testing.broker_process", "argv": [...], "environ": {...}, "cwd": "..."}

then the network namespace, standard input, output and error of the new process, and a pipe to which
this process writes the exit code, as `subprocess` has it. The answer is the process number. It ends
when the other end of the socket is closed.

It must have no second thread: a fork would copy whatever lock that holds.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

NETWORK: Final = Path("/proc/thread-self/ns/net")
_CLONE_NEWNET: Final = 0x40000000
_PRELOADED: Final = ("quivermq.testing.broker_process",)
_FILES: Final = 6
_PACKET_BYTES: Final = 16


class Job(NamedTuple):
    """A request, in the process that was forked for it."""

    module: str
    argv: list[str]

    def run(self) -> Any:
        sys.argv = [self.module, *self.argv]
        return import_module(self.module).main()


class ForkServer:
    """Forks, and reports how each child ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._exits: dict[int, int] = {}
        """Of each child, the pipe for its exit code."""
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)

    def run(self) -> Job | None:
        """Serve until the other end is closed: None. In a child: what it is to do."""
        poll = select.poll()
        for file in (self._requests.fileno(), self._woken):
            poll.register(file, select.POLLIN)
        while True:
            ready = [file for file, _ in poll.poll()]
            if self._woken in ready:
                os.read(self._woken, 1 << 12)
                self._reap()
            if self._requests.fileno() in ready:
                packet, files, *_ = socket.recv_fds(self._requests, _PACKET_BYTES, _FILES)
                if not packet:
                    return None
                with os.fdopen(files.pop(0)) as text:
                    text.seek(0)
                    request = json.load(text)
                job = self._fork(request, files)
                if job is not None:
                    return job

    def _fork(self, request: dict[str, Any], files: list[int]) -> Job | None:
        *given, exit_code = files
        child = os.fork()
        if child == 0:
            network, *streams = given
            enter_network(network)
            self._become(request, streams, (*files, *self._exits.values()))
            return Job(request["module"], request["argv"])
        self._exits[child] = exit_code
        for file in given:
            os.close(file)
        self._requests.send(str(child).encode())
        return None

    def _become(
        self, request: dict[str, Any], streams: Iterable[int], not_its_own: Iterable[int]
    ) -> None:
        """In the child: be as if it had been started by itself."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        self._requests.close()
        for file in (*not_its_own, self._woken, self._wake):
            os.close(file)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["cwd"])

    def _reap(self) -> None:
        while self._exits:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            exit_code = self._exits.pop(child)
            # The process that asked for it may have let go of it.
            with contextlib.suppress(BrokenPipeError):
                os.write(exit_code, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(exit_code)


def enter_network(namespace: int) -> None:
    """Move this thread to a network namespace. Only root may do that, unless it is there."""
    if os.path.samestat(os.fstat(namespace), NETWORK.stat()):
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "the network namespace cannot be entered")


def main() -> int:
    for module in _PRELOADED:
        import_module(module)
    # Children share the memory of objects that none of them changes.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        job = ForkServer(requests).run()
    return 0 if job is None else job.run()


if __name__ == "__main__":
    sys.exit(main())
