"""The state file: the few facts that must never be lost, kept in two copies.

Both copies are written and fsynced one after the other before a save returns. So whatever one
crash or one flipped bit does, a valid copy with everything that was acknowledged is left: the
newer one, or the one that the crash did not reach.
"""

from typing import Final, NamedTuple

from quivermq.batches import Buffer, Index
from quivermq.errors import Corrupt, UnsupportedFormat
from quivermq.log.disk import Disk, File, Unreadable
from quivermq.log.layout import STATE
from quivermq.log.records import Record

_RECORD: Final = Record(b"QUIVRVOT", "16s16sQQQQQQQQ", 512, version_1="16sQQQQQQQQ")

# Each copy in a block of its own: no single write of a disk reaches both.
_COPY_BYTES: Final = 4096
STATE_BYTES: Final = 2 * _COPY_BYTES


class State(NamedTuple):
    """What a log remembers beside its entries."""

    log_id: bytes
    secret: bytes
    """Known to this log alone, and never sent: bytes that bear it were written by the log, and not
    by a client inside of a message."""
    serial: int = 0
    """Grows with every save; the greater of two copies is the newer."""
    term: int = 0
    vote: int = 0
    """Whom this replica voted for in `term`; 0 for nobody."""
    first_index: Index = Index(1)
    """Where the log starts: a segment missing from here on was lost, not dropped."""
    active_index: Index = Index(1)
    active_bytes: int = 0
    """Which segment was the last, and how long its file was: a shorter one was cut by others."""
    cut_index: Index = Index(0)
    """Not 0 while entries from here on are being erased; they are not part of the log."""
    reset_index: Index = Index(0)
    """Not 0 while the log is being replaced by a checkpoint with this next index."""


class StateFile:
    """The file that holds a `State`."""

    def __init__(self, file: File, state: State) -> None:
        self._file = file
        self.state = state

    @classmethod
    def create(cls, disk: Disk, folder: str, state: State) -> "StateFile":
        file = disk.create(f"{folder}/{STATE}")
        file.allocate(STATE_BYTES)
        created = cls(file, state)
        created.save(state)
        return created

    @classmethod
    def open(cls, disk: Disk, folder: str) -> tuple["StateFile", list[str]]:
        """The newest state that any intact copy holds, and what is wrong with them; `Corrupt` if no
        copy is intact, `UnsupportedFormat` if one is of another release. Changes nothing."""
        if STATE not in disk.names(folder):
            raise Corrupt(f"{folder}/{STATE} is missing: term and vote are unknown")
        file = disk.open(f"{folder}/{STATE}")
        try:
            state, faults = read_state(file)
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{folder}/{STATE}: {error}") from error
        if state is None:
            raise Corrupt(f"{folder}/{STATE}: both copies are unreadable: {'; '.join(faults)}")
        return cls(file, state), [f"{folder}/{STATE}: one copy was {fault}" for fault in faults]

    def save(self, state: State) -> None:
        """Replace the state; durable when this returns."""
        self.state = state._replace(serial=self.state.serial + 1)
        self._write(*self._places())

    def _places(self) -> tuple[int, int]:
        """Where the copies go, in their order, which alternates.

        If the fsync of the second copy failed, the first of that save is the only one that the
        disk surely has. The next save begins with the other one.
        """
        return (0, _COPY_BYTES) if self.state.serial % 2 else (_COPY_BYTES, 0)

    def heal(self) -> None:
        """Make both copies equal, before the newer one is acted on.

        A damaged copy was being written, so the other was durable: it must not be touched. Where
        one is older, the newer may never have been fsynced: it is written again, and first.
        """
        copies = [_read_copy(block) for block in _read_blocks(self._file)]
        damaged = [n * _COPY_BYTES for n, copy in enumerate(copies) if isinstance(copy, Corrupt)]
        if damaged or copies[0] != copies[1]:
            self._write(*(damaged or self._places()))

    def _write(self, *places: int) -> None:
        # The whole block: where its sector cannot be read, a part could not be written either.
        packed = _RECORD.pack(*self.state).ljust(_COPY_BYTES, b"\0")
        for at in places:
            self._file.write(at, [packed])
            self._file.sync()


def read_state(file: File) -> tuple[State | None, list[str]]:
    """The newest intact copy, if there is one, and what is wrong with any that differ.

    `UnsupportedFormat` if either is of another release: it may say what this one must not undo.
    """
    blocks = _read_blocks(file)
    copies = [_read_copy(block) for block in blocks]
    intact = [copy for copy in copies if isinstance(copy, State)]
    newest = max(intact, key=lambda state: state.serial, default=None)
    faults = [_fault(copy) for copy in copies if copy != newest]
    if any(block[_RECORD.size :].strip(b"\0") for block in blocks):
        faults.append("intact, with stray bytes behind it")
    return newest, faults


def _read_blocks(file: File) -> list[bytes]:
    """Both copies, each read on its own; nothing for one that the disk has lost."""
    blocks = []
    for at in (0, _COPY_BYTES):
        try:
            blocks.append(file.read(at, _COPY_BYTES))
        except Unreadable:
            blocks.append(b"")
    return blocks


def _read_copy(data: Buffer) -> State | Corrupt:
    try:
        return State(*_RECORD.unpack(data))
    except Corrupt as error:
        return error


def _fault(copy: State | Corrupt) -> str:
    return f"damaged ({copy})" if isinstance(copy, Corrupt) else "older: a save was interrupted"
