"""The state of a log: the few facts that must never be lost, kept in two files.

Both are written and fsynced one after the other before a save returns. So whatever one crash does,
or damage to one file, a valid copy with everything that was acknowledged is left: the newer one, or
the one that the crash did not reach. Each says whose log it is, so that one which came from another
folder is never believed.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from quivermq.batches import Index
from quivermq.errors import Corrupt, StorageFailed, UnsupportedFormat
from quivermq.log.disk import Disk, Unreadable
from quivermq.log.layout import SEGMENT, SEGMENT_HEADER_BYTES, STATES, SegmentHeader, index_of
from quivermq.log.records import Record

_RECORD: Final = Record(b"QUIVRSTA", "16s16sQQQQQQQQQ", 512, version_1="16sQQQQQQQQQ")
_FORMER: Final = Record(b"QUIVRVOT", "16s16sQQQQQQQQ", 512, version_1="16sQQQQQQQQ")
"""The record that earlier builds kept twice in one file."""

# No single write of a disk reaches more than one block.
STATE_BYTES: Final = 4096


class Owner(NamedTuple):
    """The replica that a log belongs to."""

    log_id: bytes
    member: int


class State(NamedTuple):
    """The facts that a log keeps beside its entries."""

    log_id: bytes
    secret: bytes
    """Known to this log alone, and never sent: bytes that bear it were written by the log, and not
    by a client inside of a message."""
    member: int = 0
    """The member number under which the replica has voted."""
    serial: int = 0
    """Grows with every save; the greater of two copies is the newer."""
    term: int = 0
    vote: int = 0
    """The member that this replica voted for in `term`; 0: none."""
    first_index: Index = Index(1)
    """Where the log starts: a segment missing from here on was lost, not dropped."""
    active_index: Index = Index(1)
    active_bytes: int = 0
    """Which segment was the last, and how long its file was: a shorter one was cut by others."""
    cut_index: Index = Index(0)
    """Not 0 while entries from here on are being erased; they are not part of the log."""
    reset_index: Index = Index(0)
    """Not 0 while the log is being replaced by a checkpoint with this next index."""

    @property
    def owner(self) -> Owner:
        return Owner(self.log_id, self.member)


class Fault(NamedTuple):
    """A fault of one of the two files."""

    path: str
    text: str


class _NotGiven(Corrupt):
    """A copy that the disk does not give: what it holds is not known."""


class StateFile:
    """The two files that hold a `State`.

    They are open only while they are written: votes are rare, and a broker with thousands of logs
    would keep two files of each open for nothing.
    """

    def __init__(self, disk: Disk, folder: str, state: State) -> None:
        self._disk = disk
        self._folder = folder
        self.state = state

    @classmethod
    def open(
        cls, disk: Disk, folder: str, log_id: bytes | None = None
    ) -> tuple["StateFile", list[str]]:
        """The newest state that any intact copy holds, and what is wrong with them; `Corrupt` if no
        copy is intact, or is one of the log `log_id`; `UnsupportedFormat` if one is of another
        release; `StorageFailed` if the disk gives neither. Changes nothing: `heal` comes next."""
        state, faults = read_state(disk, folder, log_id)
        if state is None:
            reasons = "; ".join(f"{fault.path} is {fault.text}" for fault in faults)
            raise Corrupt(f"term and vote are unknown: {reasons}")
        return cls(disk, folder, state), [f"{fault.path} was {fault.text}" for fault in faults]

    def save(self, state: State) -> None:
        """Replace the state; durable when this returns."""
        self.state = state._replace(serial=self.state.serial + 1)
        self._write(*self._order())

    def _order(self) -> tuple[int, int]:
        """In which order the copies are written; it alternates.

        If the fsync of the second copy failed, the first of that save is the only one that the
        disk surely has. The next save begins with the other one.
        """
        return (0, 1) if self.state.serial % 2 else (1, 0)

    def heal(self) -> None:
        """Make both copies equal, before the newer one is acted on.

        A damaged copy was being written, so the other was durable: it must not be touched. Where
        one is older, the newer may never have been fsynced: it is written again, and first.
        """
        disk, names = self._disk, self._disk.names(self._folder)
        copies = _read_copies(disk, self._folder, self.state.log_id)
        for name in STATES:
            _make_writable(disk, f"{self._folder}/{name}", is_there=name in names)
        damaged = [number for number, copy in enumerate(copies) if isinstance(copy, Corrupt)]
        if damaged or copies[0] != copies[1]:
            self._write(*(damaged or self._order()))
        # Names that were seen, or just made, may still be lost; what follows relies on them.
        disk.sync_folder(self._folder)

    def _write(self, *numbers: int) -> None:
        packed = packed_state(self.state)
        for number in numbers:
            file = self._disk.open(f"{self._folder}/{STATES[number]}")
            file.write(0, [packed])
            file.sync()


def packed_state(state: State) -> bytes:
    """The content of either file. The whole block: where its sector cannot be read, a part could
    not be written either."""
    return _RECORD.pack(*state).ljust(STATE_BYTES, b"\0")


def _make_writable(disk: Disk, path: str, *, is_there: bool) -> None:
    """See that there is a file to be opened and written."""
    if is_there:
        try:
            disk.open(path)
        except Unreadable:
            # Not even its place is known to the disk: it gets another.
            disk.remove(path)
        else:
            return
    disk.create(path).allocate(STATE_BYTES)


def read_state(
    disk: Disk, folder: str, log_id: bytes | None = None
) -> tuple[State | None, list[Fault]]:
    """The newest intact copy, if there is one, and what is wrong with any that differ.

    `UnsupportedFormat` if either is of another release: it may say what this one must not undo.
    `StorageFailed` if the disk gives neither: a disk that fails for a while, or a cable, is more
    likely than two files whose sectors are gone, and may give them later.
    """
    return _newest(folder, _read_copies(disk, folder, log_id))


def read_owner(disk: Disk, folder: str) -> Owner | None:
    """Whose log a folder holds, as the log itself says; None if that cannot be told for sure."""
    owners = {copy.owner for copy in _read_copies(disk, folder) if isinstance(copy, State)}
    return owners.pop() if len(owners) == 1 else None


def _segment_ids(disk: Disk, folder: str) -> set[bytes]:
    found = set()
    for name in disk.names(folder):
        if index_of(name, SEGMENT) is not None:
            path = f"{folder}/{name}"
            try:
                head = disk.open_to_read(path).read(0, SEGMENT_HEADER_BYTES)
                found.add(SegmentHeader.unpack(head).log_id)
            except UnsupportedFormat as error:
                raise UnsupportedFormat(f"{path}: {error}") from error
            except (Corrupt, Unreadable):
                continue
    return found


def _newest(folder: str, copies: Sequence[State | Corrupt]) -> tuple[State | None, list[Fault]]:
    if all(isinstance(copy, _NotGiven) for copy in copies):
        raise StorageFailed(f"{folder}: neither copy of its state can be read: {copies[0]}")
    intact = [copy for copy in copies if isinstance(copy, State)]
    if len({copy.owner for copy in intact}) > 1:
        raise Corrupt(f"{folder}: the two copies of its state are of two logs")
    newest = max(intact, key=lambda state: state.serial, default=None)
    return newest, [
        Fault(f"{folder}/{name}", _fault(copy))
        for name, copy in zip(STATES, copies, strict=True)
        if copy != newest
    ]


def _read_copies(disk: Disk, folder: str, log_id: bytes | None = None) -> list[State | Corrupt]:
    names = disk.names(folder)
    copies = [
        _read_copy(disk, f"{folder}/{name}") if name in names else Corrupt("missing")
        for name in STATES
    ]
    ids = {copy.log_id for copy in copies if isinstance(copy, State)}
    if log_id is not None:
        known = {log_id}
    else:
        # Where one of the two came from another log, the segments know which.
        known = ids if len(ids) == 1 else ids & _segment_ids(disk, folder)
    return [
        Corrupt(f"that of another log, {copy.log_id.hex()}")
        if isinstance(copy, State) and copy.log_id not in known
        else copy
        for copy in copies
    ]


def _read_copy(disk: Disk, path: str) -> State | Corrupt:
    try:
        data = disk.open_to_read(path).read(0, STATE_BYTES)
        if data.startswith(_FORMER.magic):
            _FORMER.unpack(data)
            raise UnsupportedFormat("the state of a log as earlier builds kept it: use that build")
        state = State(*_RECORD.unpack(data))
    except UnsupportedFormat as error:
        raise UnsupportedFormat(f"{path}: {error}") from error
    except Unreadable as error:
        return _NotGiven(f"damaged ({error})")
    except Corrupt as error:
        return Corrupt(f"damaged ({error})")
    if len(data) < STATE_BYTES or data[_RECORD.size :].strip(b"\0"):
        return Corrupt("damaged (what stands behind the record is not what was written)")
    return state


def _fault(copy: State | Corrupt) -> str:
    return str(copy) if isinstance(copy, Corrupt) else "older: a save was interrupted"
