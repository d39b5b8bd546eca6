"""One broker of a `Cluster`: starts, stops and disturbs its process."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any, Final, cast

from quivermq.node import HELD
from quivermq.testing.cluster.forked_process import CAN_FORK, ForkedProcess, start_forked
from quivermq.testing.disks import DiskControl

_MODULE: Final = "quivermq.testing.broker_process"
START_S: Final = 30.0
STOP_S: Final = 30.0
_TAIL_BYTES: Final = 4_000
_TELLING_S: Final = 1.0
_STACKS_BYTES: Final = 40_000
"""A broker that does not stop has this long to log its stacks, of which so much is shown."""


class ClusterError(RuntimeError):
    """A broker of a test cluster did not do what it should; its log is in the message."""


class Node:
    """A broker that can be started, stopped, killed, paused and disturbed, again and again."""

    def __init__(
        self,
        node_id: int,
        folder: Path,
        settings: dict[str, Any],
        disk: DiskControl | None = None,
    ) -> None:
        self.id = node_id
        self.disk = disk
        """A disk that can fail: see `Cluster(disks=...)`."""
        self.disk_fault: str | None = None
        """How it fails: see `fail_disk`."""
        self.clock_shift_s = 0.0
        """How far its wall clock is ahead, from its next start on: see `shift_clock`."""
        self.settings = settings
        """Of the next start."""
        self.host: Callable[[], AbstractContextManager[None]] = nullcontext
        """Entered while it is started: see `Namespaces.entered`."""
        self.code: Path | None = None
        """A folder with the package of another release, for the next start; None: this release."""
        self.data_dir = folder / "data" if disk is None else disk.data_dir
        self.address: str = settings["listen"]
        """Where clients connect."""
        self.peer_address: str = settings["peer_listen"]
        self.http_address = ""
        self.grpc_address = ""
        self._folder = folder
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[str] | ForkedProcess | None = None
        self._disturbing = threading.Lock()
        self.is_paused = False
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int:
        """Of the process that runs, or ran last; 0 if there was none."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """Whether there is a process, paused or not."""
        return self._process is not None and self._process.poll() is None

    # Starting.

    def start(self, timeout: float = START_S) -> None:
        """Start it, and wait until it listens."""
        self.launch()
        self.wait_listening(timeout)

    def launch(self) -> None:
        """Start it, and do not wait."""
        if self.is_running:
            raise ClusterError(f"node {self.id} runs already")
        self._close_pipes()
        settings = {**self.settings, "node_id": self.id, "data_dir": str(self.data_dir)}
        self.is_paused = False
        # Earlier releases take no notice of a second argument.
        argv = [json.dumps(settings), json.dumps(self._surroundings())]
        with self._log.open("ab") as log, self.host():
            if CAN_FORK and self.code is None:
                self._process = start_forked(_MODULE, *argv, stderr=log.fileno())
                return
            self._process = subprocess.Popen(  # noqa: S603 - our own module, with our own settings
                [sys.executable, "-m", _MODULE, *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=None if self.code is None else os.environ | {"PYTHONPATH": str(self.code)},
                # Not the terminal's process group: an interrupt there is for the test. When the
                # test dies, the system continues the paused processes of such a group, so that
                # they too notice.
                process_group=0,
            )

    def _surroundings(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.disk is not None and self.disk.socket:
            found["disk_socket"] = self.disk.socket
        if self.clock_shift_s:
            found["clock_shift_s"] = self.clock_shift_s
        return found

    def wait_listening(self, timeout: float = START_S) -> None:
        """Wait until it listens; raises with its log if it ends instead."""
        found = self._answer(timeout)
        self.http_address = found["http"]
        # Earlier releases have none.
        self.grpc_address = found.get("grpc", "")

    def _answer(self, timeout: float) -> dict[str, str]:
        """The next line of its standard output."""
        process, (_, said) = self._live(), self._pipes()
        # Not `select`: it fails for file descriptors of 1,024 and more.
        poll = select.poll()
        poll.register(said, select.POLLIN)
        ready = poll.poll(timeout * 1000)
        line = said.readline() if ready else ""
        if not line:
            process.kill()
            process.wait()
            what = "ended" if ready else f"said nothing for {timeout:.0f} s"
            raise ClusterError(f"node {self.id} {what}\n{self.log_tail()}")
        answer: dict[str, str] = json.loads(line)
        return answer

    # Ending.

    def kill(self) -> None:
        """SIGKILL."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
        self.is_paused = False

    def change_release(self, code: Path | None, timeout: float = START_S) -> None:
        """Stop it, and start it on the same data with another release: see `code`."""
        self.stop()
        self.code = code
        self.start(timeout)

    def wait_refused(self, timeout: float = START_S) -> str:
        """Wait until it has ended by itself because it cannot serve; returns its log."""
        code = self._live().wait(timeout)
        if code != 1:
            raise ClusterError(f"node {self.id} ended with {code}\n{self.log_tail()}")
        return self.log_text()

    def stop(self, timeout: float = STOP_S) -> None:
        """SIGTERM, and wait: it hands over, flushes and ends."""
        self.terminate()
        self.wait_stopped(timeout)

    def terminate(self) -> None:
        """SIGTERM, and do not wait."""
        self.resume()
        if self.is_running:
            self._send(signal.SIGTERM)

    def wait_stopped(self, timeout: float = STOP_S) -> None:
        """Wait until it has ended by itself; raises with its log if it failed at that."""
        process = self._process
        if process is None:
            return
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGUSR1)
            time.sleep(_TELLING_S)
            self.kill()
            raise ClusterError(
                f"node {self.id} did not stop within {timeout:.0f} s\n"
                f"{self.log_tail(_STACKS_BYTES)}"
            ) from None
        if code not in {0, -signal.SIGKILL}:
            raise ClusterError(f"node {self.id} ended with {code}\n{self.log_tail()}")

    # Disturbing.

    def pause(self) -> None:
        """SIGSTOP. Returns once it stands still."""
        self._send(signal.SIGSTOP)
        self.is_paused = True
        deadline = time.monotonic() + START_S
        while self._state() not in "TtXZ":
            if time.monotonic() > deadline:
                raise ClusterError(f"node {self.id} could not be paused")
            time.sleep(0.001)

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_paused:
            self._send(signal.SIGCONT)
            self.is_paused = False

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def _state(self) -> str:
        """One letter, as the system says it: T is stopped. Where there is no /proc, T at once."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return "T"
        return stat.rpartition(")")[2].split()[0]

    def slow_disk(self, milliseconds: float) -> None:
        """Let every fsync take so much longer, until it is set to 0 or the process ends."""
        self._disturb({"sync_delay_ms": milliseconds})

    def stall(self, seconds: float) -> None:
        """Let its event loop stand still for so long. Returns once it does."""
        self._disturb({"stall_ms": seconds * 1000})

    def hold(self, seconds: float, *, busy: bool = True) -> None:
        """Let its event loop work, or wait, for so long, as a fault of the broker would."""
        self._disturb({"busy_ms" if busy else "blocked_ms": seconds * 1000})

    def fail_disk(self, kind: str | None, *, milliseconds: float = 0.0, share: float = 1.0) -> None:
        """Let its disk misbehave, whether it runs or not, until this is called with None.

        `full`: no space for what needs some; `read_only`: no change of anything; `read_errors`,
        `write_errors`, `sync_errors`: EIO, of a `share` of these operations; `slow`: each operation
        takes so many milliseconds longer. A failed fsync drops what it should have written."""
        self.disk_fault = kind
        self._own_disk().fail(kind, delay_ms=milliseconds, share=share)

    def lose_power(self, seed: int | None = None) -> int:
        """SIGKILL, and of its disk all that was not synced is gone; with a seed, a part of that
        survives as chance has it. Returns how many changes of files and names were not synced."""
        disk = self._own_disk()
        self.kill()
        return disk.lose_power(seed)

    def _own_disk(self) -> DiskControl:
        if self.disk is None:
            raise ClusterError("the disks of this cluster cannot fail: see Cluster(disks=...)")
        return self.disk

    def shift_clock(self, seconds: float) -> None:
        """Set its wall clock so far ahead (behind, if negative) of this machine's, now and in all
        later lives, until it is set to 0. Brokers of other releases (`code`) are not reached."""
        self.clock_shift_s = seconds
        if self.is_running and self.code is None:
            self._disturb({"clock_shift_s": seconds})

    def _disturb(self, what: dict[str, float]) -> None:
        leash, _ = self._pipes()
        with self._disturbing:
            leash.write(json.dumps(what) + "\n")
            leash.flush()
            self._answer(START_S)

    # Looking.

    def log_text(self) -> str:
        """Everything that it wrote to its log, over all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stalls(self) -> list[str]:
        """Reports of its event loop being held for too long, with stacks, over all its lives."""
        _, *parts = self.log_text().split(HELD)
        return [f"{HELD}{part[:_TAIL_BYTES]}" for part in parts]

    def log_tail(self, bytes_max: int = _TAIL_BYTES) -> str:
        """The end of its log, under a headline."""
        text = self.log_text()
        return f"--- node {self.id}, {self._log}\n{text[-bytes_max:]}"

    def memory_bytes(self) -> int:
        """The resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        """Kill it, if it runs, and let go of its pipes."""
        self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in self._pipes():
                pipe.close()

    def _live(self) -> subprocess.Popen[str] | ForkedProcess:
        if self._process is None:
            raise ClusterError(f"node {self.id} was not started")
        return self._process

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        """Its standard input and output."""
        process = self._live()
        return cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
