"""Files of frames: written under another name first, and read with every checksum checked."""

import os
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from quivermq.backup.manifest import BackupFile
from quivermq.batches import HEADER_BYTES, Frame, Header, Limits
from quivermq.errors import Corrupt, QuiverError

TEMPORARY: Final = ".tmp"
_ANY: Final = (1 << 31) - 1
STORED_LIMITS: Final = Limits(_ANY, _ANY, _ANY)
"""A batch that was accepted once can be read whatever the limits of brokers are."""
_READ_BYTES: Final = 1 << 20


class FrameFileWriter:
    """A file that has its name only once all of it is on the disk."""

    def __init__(self, root: Path, name: str) -> None:
        self._path = root / name
        self._name = name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = Path(f"{self._path}{TEMPORARY}").open("wb")  # noqa: SIM115 - see `finish`
        self._digest = sha256()
        self.size = 0

    def write(self, frame: Frame) -> None:
        for part in frame.buffers():
            self._file.write(part)
            self._digest.update(part)
            self.size += len(part)

    def finish(self) -> BackupFile:
        """It is durable, under its own name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        Path(f"{self._path}{TEMPORARY}").replace(self._path)
        sync_folder(self._path.parent)
        return BackupFile(self._name, self.size, self._digest.hexdigest())

    def discard(self) -> None:
        """Not finished: nothing of it stays."""
        self._file.close()
        Path(f"{self._path}{TEMPORARY}").unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """All of it, or what was there before."""
    temporary = Path(f"{path}{TEMPORARY}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A rename lasts. Mounted object stores may have no folders to sync."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def read_frames(path: Path, at: int = 0, size: int | None = None) -> Iterator[Frame]:
    """The frames of a file, or of a part of it, one in memory at a time; raises `Corrupt` at the
    first that is not as it was written, or where the file ends too early."""
    try:
        with path.open("rb") as file:
            file.seek(at)
            left = path.stat().st_size - at if size is None else size
            while left > 0:
                head = _read(file.read(HEADER_BYTES), HEADER_BYTES)
                header = Header.unpack(head, 0, STORED_LIMITS)
                body = _read(file.read(header.body_bytes), header.body_bytes)
                yield Frame.parse(head + body, 0, STORED_LIMITS)
                left -= header.frame_bytes
            if left:
                raise Corrupt("the last frame goes beyond its section")
    except OSError as error:
        raise Corrupt(f"it cannot be read: {error.strerror}") from error
    except QuiverError as error:
        raise Corrupt(f"{path.name}: {error}") from error


def _read(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise Corrupt("it ends too early")
    return data


def digest_of_file(path: Path) -> tuple[int, str]:
    """Its size and its SHA-256."""
    digest, size = sha256(), 0
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
            size += len(part)
    return size, digest.hexdigest()
