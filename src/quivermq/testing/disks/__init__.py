"""Disks for brokers that are real processes: they fail when told to, and can lose power.

Knows folders, files and how programs reach them; must never know brokers. `FaultyDisk` keeps the
files in a folder and knows what was synced. Programs reach it through a mounted file system
(`fuse`) or a socket (`disk_socket`). `Disks` runs it in a process of its own, so that a program
can be killed and its disk not.
"""

from quivermq.testing.disks.control import DiskControl, Disks
from quivermq.testing.disks.disk_socket import RemoteDisk, SocketDoor
from quivermq.testing.disks.faulty_disk import FAULTS, DiskFault, FaultyDisk
from quivermq.testing.disks.fuse import FuseDoor, why_no_fuse

__all__ = [
    "FAULTS",
    "DiskControl",
    "DiskFault",
    "Disks",
    "FaultyDisk",
    "FuseDoor",
    "RemoteDisk",
    "SocketDoor",
    "why_no_fuse",
]
