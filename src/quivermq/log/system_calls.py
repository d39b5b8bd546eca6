"""Calls for files in which operating systems differ, chosen once for the system at hand.

Linux has `fdatasync`, `posix_fallocate` and a `SEEK_DATA` that can be relied on. macOS has none of
them, and its `fsync` leaves data in the cache of the drive, where a power loss takes it: there
`F_FULLFSYNC` is asked for. A system is described by its modules, so that tests can describe one
that they do not run on.
"""

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from quivermq.batches import Buffer

_NOT_OFFERED: Final = {
    number
    for name in ("ENOTSUP", "EOPNOTSUPP", "ENOTTY", "EINVAL")
    if (number := getattr(errno, name, None)) is not None
}
"""By which a file system says that it does not have an operation, not that it failed."""


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """Each takes a file descriptor first, and raises `OSError`."""

    sync: Callable[[int], object]
    """Make the bytes of a file durable."""
    sync_folder: Callable[[int], object]
    """Make the names in a folder durable."""
    write: Callable[[int, Sequence[Buffer], int], int]
    """Write buffers at a position; returns how many bytes of them."""
    allocate: Callable[[int, int, int], object]
    """Make a file longer: from its size by so many bytes of zeros, reserved where that can be."""
    seek_data: int | None
    """For `lseek`; None: where data begins cannot be found out."""


def system_calls(
    system: Any = os, control: Any = fcntl, platform: str = sys.platform
) -> SystemCalls:
    """The calls of a system, by what its modules `os` and `fcntl` have."""
    full = getattr(control, "F_FULLFSYNC", None)
    if full is not None:
        sync = sync_folder = partial(_sync_fully, system, control, full)
    else:
        sync = partial(_call, system, "fdatasync" if hasattr(system, "fdatasync") else "fsync")
        sync_folder = partial(_call, system, "fsync")
    write, allocate = partial(_write_joined, system), partial(_lengthen, system)
    if hasattr(system, "pwritev"):  # from macOS 11 on
        write = partial(_call, system, "pwritev")
    if hasattr(system, "posix_fallocate"):
        allocate = partial(_call, system, "posix_fallocate")
    return SystemCalls(
        sync=sync,
        sync_folder=sync_folder,
        write=write,
        allocate=allocate,
        # APFS may show a hole where bytes are that it has not written out yet.
        seek_data=None if platform == "darwin" else getattr(system, "SEEK_DATA", None),
    )


def _call(system: Any, name: str, *arguments: Any) -> Any:
    """Looked up when it is called, so that a test can let a call of its own system fail."""
    return getattr(system, name)(*arguments)


def _sync_fully(system: Any, control: Any, operation: int, descriptor: int) -> None:
    """Down to the medium. A file system that has no such operation, as of a network, is asked to
    do what it can; a failure is never asked again, since that would hide it."""
    try:
        control.fcntl(descriptor, operation)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        system.fsync(descriptor)


def _write_joined(system: Any, descriptor: int, buffers: Sequence[Buffer], at: int) -> int:
    return int(system.pwrite(descriptor, b"".join(buffers), at))


def _lengthen(system: Any, descriptor: int, at: int, size: int) -> None:
    """Nothing is reserved: a write may find the disk full, and then fails as on a broken one."""
    system.ftruncate(descriptor, at + size)


THIS_SYSTEM: Final = system_calls()
