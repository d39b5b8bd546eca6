"""The folder that a backup is in: its manifest in two copies, its lock, and what is left over."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from quivermq.backup.frame_file import TEMPORARY, write_durably
from quivermq.backup.manifest import BackupFile, Manifest, MessagesFile, StateSection
from quivermq.batches import Frame
from quivermq.errors import Corrupt, InvalidRequest, QuiverError, StorageFailed, UnsupportedFormat

MANIFEST: Final = "backup.json"
MANIFEST_COPY: Final = "backup.copy.json"
LOCK: Final = "backup.lock"
MESSAGES: Final = "messages"
STATE: Final = "state"
_OWN: Final = frozenset({MANIFEST, MANIFEST_COPY, LOCK, MESSAGES, STATE})


class BackupFolder:
    """A folder with one backup in it; the next one into the same folder takes its place."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path)

    def __str__(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        return self.root / name

    def has(self, file: BackupFile) -> bool:
        """Whether a file is there, in its size; what is in it is not looked at."""
        path = self.path(file.name)
        return path.is_file() and path.stat().st_size == file.bytes

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder if it is not there, and keep other backups out of it."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            number = os.open(self.path(LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageFailed(f"no backup can be written to {self}: {error}") from error
        try:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InvalidRequest(
                    f"another backup into {self} is under way: wait for it, or use another folder"
                ) from error
            except OSError:
                # Some mounted stores have no locks. Then it is for their users to see to.
                pass
            yield
        finally:
            os.close(number)

    def load(self) -> Manifest | None:
        """The manifest, or None in a folder without a backup. Raises `Corrupt` if neither copy is
        intact, and for a folder that is none of ours."""
        found: list[Manifest] = []
        troubles: list[str] = []
        for name in (MANIFEST, MANIFEST_COPY):
            try:
                found.append(Manifest.decode(self.path(name).read_bytes()))
            except FileNotFoundError:
                continue
            except UnsupportedFormat:
                raise
            except (QuiverError, OSError, TypeError, LookupError) as error:
                troubles.append(f"{name}: {error}")
        if found:
            return max(found, key=lambda manifest: manifest.serial)
        if troubles:
            raise Corrupt(
                f"the manifest of the backup in {self} is damaged in both copies "
                f"({'; '.join(troubles)}): without it the files cannot be put together"
            )
        others = sorted(
            entry.name
            for entry in (self.root.iterdir() if self.root.is_dir() else ())
            if entry.name.removesuffix(TEMPORARY) not in _OWN
        )
        if others:
            raise InvalidRequest(
                f"{self} is no backup, and holds other things ({others[0]}): use an empty folder"
            )
        return None

    def loaded(self) -> Manifest:
        """The same of a folder that must have one."""
        manifest = self.load()
        if manifest is None:
            raise InvalidRequest(f"there is no finished backup in {self}")
        return manifest

    def save(self, manifest: Manifest) -> None:
        """From here on the folder holds this backup; files that it does not name are removed."""
        data = manifest.encode()
        write_durably(self.path(MANIFEST), data)
        write_durably(self.path(MANIFEST_COPY), data)
        self._prune({file.name for file in manifest.files()})

    def _prune(self, kept: set[str]) -> None:
        for top in (MESSAGES, STATE):
            for folder, _, names in os.walk(self.path(top), topdown=False):
                for name in names:
                    path = Path(folder, name)
                    if path.relative_to(self.root).as_posix() not in kept:
                        path.unlink(missing_ok=True)
                with suppress(OSError):
                    Path(folder).rmdir()


def messages_name(topic_id: str, partition: int, first: int) -> str:
    """The file of batches from this offset on."""
    return f"{MESSAGES}/{topic_id}/{partition}/{first:020}.frames"


def state_name(serial: int, kind: str) -> str:
    """The file of the states of all partitions: `groups` or `producers`."""
    return f"{STATE}/{serial:010}.{kind}"


def section_of(frames: list[Frame], at: int) -> StateSection:
    """Frames that are written from byte `at` on."""
    return StateSection(at, sum(map(len, frames)))


def contiguous(files: tuple[MessagesFile, ...], start: int, end: int) -> bool:
    """Whether these files hold everything from `start` to `end`."""
    at = start
    for file in files:
        if file.first > at or file.end <= at:
            return False
        at = file.end
    return at == end if files else start == end
