"""The state file: the few facts that must never be lost, kept in two copies.

Both copies are written and fsynced one after the other before a save returns. So whatever one
crash or one flipped bit does, a valid copy with everything that was acknowledged is left: the
newer one, or the one that the crash did not reach.
"""

from typing import Final, NamedTuple

from quivermq.batches import Buffer, Index
from quivermq.errors import Corrupt
from quivermq.log.disk import Disk, File
from quivermq.log.layout import STATE
from quivermq.log.records import Record

_RECORD: Final = Record(b"QUIVRVOT", "16sQQQQQQQQQ")

# Each copy in a block of its own: no single write of a disk reaches both.
_COPY_BYTES: Final = 4096
_FILE_BYTES: Final = 2 * _COPY_BYTES


_GAPS: Final = ((_RECORD.size, _COPY_BYTES), (_COPY_BYTES + _RECORD.size, _FILE_BYTES))


class State(NamedTuple):
    """What a log remembers beside its entries."""

    log_id: bytes
    serial: int = 0
    """Grows with every save; the greater of two copies is the newer."""
    term: int = 0
    vote: int = 0
    """Whom this replica voted for in `term`; 0 for nobody."""
    commit_index: Index = Index(0)
    """How far the log was known to be committed when term or vote were last saved."""
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

    def __init__(self, file: File, state: State, faults: list[str] | None = None) -> None:
        self._file = file
        self.state = state
        self._faults = faults or []
        self._places = [0, _COPY_BYTES]

    @classmethod
    def create(cls, disk: Disk, folder: str, state: State) -> "StateFile":
        file = disk.create(f"{folder}/{STATE}")
        file.allocate(_FILE_BYTES)
        created = cls(file, state)
        created.save(state)
        return created

    @classmethod
    def open(cls, disk: Disk, folder: str) -> "StateFile":
        """The newest state that any intact copy holds, or `Corrupt` if none does."""
        if STATE not in disk.names(folder):
            raise Corrupt(f"{folder}/{STATE} is missing: term and vote are unknown")
        file = disk.open(f"{folder}/{STATE}")
        state, faults = read_state(file.read(0, _FILE_BYTES))
        if state is None:
            raise Corrupt(f"{folder}/{STATE}: both copies are unreadable: {'; '.join(faults)}")
        opened = cls(file, state, [f"{folder}/{STATE}: one copy was {fault}" for fault in faults])
        # The good copy is overwritten last: until the other is durable it is the only one.
        copies = _read_copies(file.read(0, _FILE_BYTES))
        opened._places.sort(key=lambda at: copies[at // _COPY_BYTES] == state)
        return opened

    def heal(self) -> list[str]:
        """Make both copies equal again, and say what was wrong with the other one.

        Before the newer is acted on: if it was lost later, the older would contradict the act.
        """
        if self._faults:
            self.save(self.state)
        return self._faults

    def save(self, state: State) -> None:
        """Replace the state; durable when this returns."""
        state = state._replace(serial=self.state.serial + 1)
        packed = _RECORD.pack(*state)
        for at in self._places:
            self._file.write(at, [packed])
            self._file.sync()
        self.state = state


def read_state(data: bytes) -> tuple[State | None, list[str]]:
    """The newest intact copy, if there is one, and what is wrong with any that differ."""
    copies = _read_copies(data)
    intact = [copy for copy in copies if isinstance(copy, State)]
    newest = max(intact, key=lambda state: state.serial, default=None)
    faults = [_fault(copy) for copy in copies if copy != newest]
    if any(data[end:start].strip(b"\0") for end, start in _GAPS):
        faults.append("intact, with stray bytes behind it")
    return newest, faults


def _read_copies(data: Buffer) -> list[State | Corrupt]:
    view = memoryview(data)
    return [_read_copy(view[at : at + _RECORD.size]) for at in (0, _COPY_BYTES)]


def _read_copy(data: Buffer) -> State | Corrupt:
    try:
        return State(*_RECORD.unpack(data))
    except Corrupt as error:
        return error


def _fault(copy: State | Corrupt) -> str:
    return f"damaged ({copy})" if isinstance(copy, Corrupt) else "older: a save was interrupted"
