"""Runs the disks of a cluster as a process, controlled by the test that started it.

    python -m quivermq.testing.disks.process

Each line of JSON on its standard input names a disk and is answered with a line:

    {"disk": 1, "add": {"root": "...", "removed": "...", "mount": "..."}}   or "socket": "..."
    {"disk": 1, "fail": {"kind": "slow", "delay_ms": 100}}                  null ends it
    {"disk": 1, "lose_power": {"seed": 7}}                                  a seed, or null
    {"disk": 1, "look": {}}

When the input ends, it unmounts everything and ends.
"""

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

from quivermq.testing.disks.disk_socket import SocketDoor
from quivermq.testing.disks.faulty_disk import DiskFault, FaultyDisk
from quivermq.testing.disks.fuse import FuseDoor, unmount_left_over


class DiskServer:
    """Disks by number, each with its door."""

    def __init__(self) -> None:
        self._disks: dict[int, FaultyDisk] = {}
        self._doors: dict[int, FuseDoor | SocketDoor] = {}

    def answer(self, disk: int, request: str, arguments: Any) -> dict[str, Any]:
        if request == "add":
            self._add(disk, **arguments)
            return {}
        found = self._disks[disk]
        if request == "fail":
            found.fault = DiskFault(**arguments) if arguments else None
        elif request == "lose_power":
            return {"pending": found.lose_power(**arguments)}
        elif request != "look":
            raise ValueError(f"a disk knows no request {request!r}")
        return {"struck": found.struck}

    def _add(self, number: int, root: str, removed: str, mount: str = "", socket: str = "") -> None:
        disk = self._disks[number] = FaultyDisk(Path(root), Path(removed))
        self._doors[number] = (
            FuseDoor(disk, Path(mount)) if mount else SocketDoor(disk, Path(socket))
        )

    def close(self) -> None:
        for door in self._doors.values():
            door.close()


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    unmount_left_over()
    server = DiskServer()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            disk = asked.pop("disk")
            ((request, arguments),) = asked.items()
            try:
                answer = server.answer(disk, request, arguments)
            except (OSError, ValueError) as error:
                answer = {"error": str(error)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    finally:
        server.close()


if __name__ == "__main__":
    main()
