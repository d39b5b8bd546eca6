"""Starts and controls the process that has the disks of a cluster: see `process`."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

from quivermq.testing.disks.fuse import why_no_fuse

KINDS: Final = ("fuse", "shim")


class Disks:
    """The disks of a cluster, in one process. Close it."""

    def __init__(self, kind: str) -> None:
        """`fuse`: folders on mounted file systems; `shim`: folders of which programs that know how
        (`RemoteDisk`) use the files through a socket."""
        if kind not in KINDS:
            raise ValueError(f"there are no disks {kind!r}, but {', '.join(KINDS)}")
        if kind == "fuse" and (reason := why_no_fuse()):
            raise OSError(f"no disks by FUSE here: {reason}")
        self.kind = kind
        self._lock = threading.Lock()
        # A socket's path may have 107 bytes at most.
        self.sockets = Path(tempfile.mkdtemp(prefix="quiver-disks-"))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "quivermq.testing.disks.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # An interrupt of the terminal is for the test.
            process_group=0,
        )

    def add(self, number: int, folder: Path) -> "DiskControl":
        """A disk with its files below a folder."""
        control = DiskControl(self, number, folder)
        self.ask(number, "add", control.places)
        return control

    def ask(self, number: int, request: str, arguments: Mapping[str, Any] | None) -> dict[str, Any]:
        """Send a request to the process, and wait for its answer."""
        stdin, stdout = self._pipes()
        with self._lock:
            stdin.write(json.dumps({"disk": number, request: arguments}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line:
            raise OSError("the process that has the disks ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OSError(answer["error"])
        return answer

    def close(self) -> None:
        """Unmount the disks, and end the process."""
        for pipe in self._pipes():
            pipe.close()
        self._process.wait()
        shutil.rmtree(self.sockets, ignore_errors=True)

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        return cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)


class DiskControl:
    """One disk, as its owner disturbs it."""

    def __init__(self, disks: Disks, number: int, folder: Path) -> None:
        self._disks = disks
        self._number = number
        is_mounted = disks.kind == "fuse"
        self.data_dir = folder / "mount" / "data" if is_mounted else folder / "data"
        """A folder on it, which programs may also remove."""
        self.socket = "" if is_mounted else str(disks.sockets / str(number))
        """Where programs reach it; empty: it is mounted."""
        root = folder / "disk" if is_mounted else self.data_dir
        self.places = {"root": str(root), "removed": str(folder / "removed")}
        if is_mounted:
            self.places["mount"] = str(folder / "mount")
        else:
            self.places["socket"] = self.socket

    def fail(self, kind: str | None, *, delay_ms: float = 0.0, share: float = 1.0) -> None:
        """Let it misbehave: see `DiskFault`. None ends it."""
        fault = {"kind": kind, "delay_ms": delay_ms, "share": share}
        self._disks.ask(self._number, "fail", fault if kind else None)

    def lose_power(self, seed: int | None = None) -> int:
        """Take back what was not synced: see `FaultyDisk.lose_power`."""
        pending: int = self._disks.ask(self._number, "lose_power", {"seed": seed})["pending"]
        return pending

    @property
    def struck(self) -> int:
        """How many operations failed because of a fault."""
        count: int = self._disks.ask(self._number, "look", {})["struck"]
        return count
