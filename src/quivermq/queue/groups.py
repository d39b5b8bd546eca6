"""All groups of a partition, and the operations that change them.

An operation is a JSON list: its kind, then its arguments. It says exactly what happens to which
offsets, so that carrying it out needs neither a clock nor settings nor a look at the log. The
leader carries an operation out on its working copy when it is proposed, every replica when it is
committed; since nothing else changes groups, both start from the same state.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.errors import BrokenInvariant, UnsupportedFormat
from quivermq.intervals import Interval, IntervalSet
from quivermq.names import check_group_name
from quivermq.queue.columns import ColumnReader, column
from quivermq.queue.delayed import LAST_KEY, Delayed, DueKey
from quivermq.queue.group import DELAYED, Group
from quivermq.queue.group_columns import (
    pack_additions,
    pack_group,
    unpack_additions,
    unpack_group,
)
from quivermq.queue.pieces import Piece
from quivermq.queue.priority_index import NO_OFFSET, PriorityIndex

_HEAD: Final = Struct("<QII")

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Op(IntEnum):
    """The kinds of operations."""

    CREATE = 1
    SHARE = 2
    GRANT = 3
    GIVE_BACK = 5
    CONDEMN = 6
    BURY = 7
    RENUMBER = 8
    EXTEND = 9
    PARK = 10
    DROP = 12
    TRIM = 13
    CANCEL = 14
    CLAIM = 15
    COMMIT = 16
    SEND_BACK = 17
    PURGE = 18
    FINISH = 19
    SEEK = 20
    PASS = 21
    EXPIRE = 22
    REVIVE = 25
    """The last two: from feature level 2 on."""


OF_ALL: Final = frozenset({Op.TRIM, Op.CANCEL})
"""Operations that are not about one group."""


def pack_operation(operation: Iterable[Any]) -> bytes:
    """One operation as it goes into an entry."""
    return _encode(list(operation)).encode()


class Groups:
    """Groups by name and by number.

    A fork shares them with what it was made from: the first of the two to change one makes a
    copy of it then (`own`). So a leader's working copy, and a state to be written to disk, cost
    nothing but for what changes meanwhile.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Group] = {}
        self.by_number: dict[int, Group] = {}
        self.cancelled = IntervalSet()
        """Delayed messages that no group is to get."""
        self.next_number = 1
        self.with_dying: set[int] = set()
        """Numbers of groups that have messages on their way to the dead letters."""
        self.groups_bytes = 0
        self._owned: set[int] = set()
        self._acts: dict[int, Callable[..., None]] = {
            Op.CREATE: self._create,
            Op.SHARE: self._share,
            Op.GRANT: self._grant,
            Op.FINISH: self._finish,
            Op.GIVE_BACK: self._give_back,
            Op.CONDEMN: self._condemn,
            Op.BURY: self._bury,
            Op.RENUMBER: self._renumber,
            Op.EXTEND: self._extend,
            Op.PARK: self._park,
            Op.TRIM: self._trim,
            Op.PASS: self._pass,
            Op.CANCEL: self._cancel,
            Op.SEEK: self._seek,
            Op.DROP: self._drop,
            Op.CLAIM: self._claim,
            Op.COMMIT: self._commit,
            Op.SEND_BACK: self._send_back,
            Op.PURGE: self._purge,
            Op.EXPIRE: self._expire,
            Op.REVIVE: self._revive,
        }

    def __len__(self) -> int:
        return len(self.by_name)

    def apply(self, body: Buffer, priority_index: PriorityIndex) -> None:
        """Carry out the operations of a committed entry on the groups and the index."""
        operations = json.loads(bytes(body))
        # All of them first: an entry takes effect as a whole, or not at all.
        for operation in operations:
            self._check_known(operation[0])
        for operation in operations:
            self.carry_out(operation)
            if operation[0] == Op.TRIM:
                priority_index.trim(operation[1])

    def apply_ahead(self, body: Buffer) -> None:
        """The same on a working copy, before it is committed: the index is not its own."""
        for operation in json.loads(bytes(body)):
            self.carry_out(operation)

    @property
    def size_bytes(self) -> int:
        """The size of all of it in a checkpoint, at most."""
        return self.groups_bytes + 16 * len(self.cancelled)

    def own(self, number: int) -> Group:
        """A group that may be changed."""
        group = self.by_number[number]
        if number not in self._owned:
            group = self.by_number[number] = self.by_name[group.name] = group.copy()
            self._owned.add(number)
        return group

    def fork(self) -> "Groups":
        """The same state, to be changed apart."""
        made = Groups()
        made.by_name, made.by_number = self.by_name.copy(), self.by_number.copy()
        made.cancelled = self.cancelled.copy()
        made.next_number = self.next_number
        made.with_dying, made.groups_bytes = self.with_dying.copy(), self.groups_bytes
        self._owned = set()
        return made

    def count(self, group: Group) -> None:
        """A group has changed: what is counted of all of them changes with it."""
        size = group.size_bytes
        self.groups_bytes += size - group.counted_bytes
        group.counted_bytes = size
        if group.dying:
            self.with_dying.add(group.number)
        else:
            self.with_dying.discard(group.number)

    def carry_out(self, operation: list[Any]) -> None:
        """One operation; changes nothing but groups."""
        kind = operation[0]
        self._check_known(kind)
        self._acts[kind](*operation[1:])
        if kind not in OF_ALL and (group := self.by_number.get(operation[1])) is not None:
            self.count(group)

    def _check_known(self, kind: int) -> None:
        if kind not in self._acts:
            raise UnsupportedFormat(f"operation {kind} is of a newer release: upgrade this broker")

    def _create(self, number: int, name: str) -> None:
        # A group that is made again under its old name is another producer of dead letters.
        group = Group(number, name, dead_epoch=number)
        self.by_name[name] = self.by_number[number] = group
        self._owned.add(number)
        self.next_number = number + 1

    def _share(self, number: int, start: int) -> None:
        self.own(number).share_from(start)

    def _grant(
        self,
        number: int,
        lease: int,
        consumer: int,
        visibility_ms: int,
        fresh: list[list[int]],
        returned: list[Interval],
        cursors: list[tuple[int, int]],
    ) -> None:
        """Lease 0: done at once."""
        group = self.own(number)
        pieces = [Piece(start, end, priority, 0) for start, end, priority in fresh]
        for start, end in returned:
            pieces += group.waiting.take(start, end)
        for level, cursor in cursors:
            group.cursors[level] = cursor
        if lease:
            group.grant(lease, consumer, visibility_ms, pieces)
        else:
            group.hand_out(pieces)

    def _finish(self, number: int, lease: int, consumer: int, intervals: list[Interval]) -> None:
        self.own(number).finish(lease, consumer, intervals)

    def _give_back(
        self, number: int, lease: int, returns: list[tuple[int, int, int, bool]], reason: str = ""
    ) -> None:
        """A reason: from feature level 2 on."""
        self.own(number).give_back(lease, returns, reason)

    def _condemn(
        self, number: int, lease: int, intervals: list[Interval], reason: str, at_ms: int
    ) -> None:
        self.own(number).condemn(lease, intervals, reason, at_ms)

    def _bury(self, number: int, record: int, kept: Sequence[Interval] = ()) -> None:
        self.own(number).bury(record, kept)

    def _revive(self, number: int, redrive: int, pieces: list[tuple[int, int, int]]) -> None:
        found = [Piece(start, end, priority, 0) for start, end, priority in pieces]
        self.own(number).revive(redrive, found)

    def _renumber(self, number: int) -> None:
        # Epochs count with the numbers of groups: none is ever used by two lives of a name.
        self.own(number).renumber(self.next_number)
        self.next_number += 1

    def _extend(self, number: int, lease: int, visibility_ms: int) -> None:
        leases = self.own(number).leases
        leases[lease] = leases[lease]._replace(visibility_ms=visibility_ms)

    def _park(
        self,
        number: int,
        batches: list[tuple[int, int, int, int]],
        cursor: int,
        due: tuple[int, int],
    ) -> None:
        found = [Delayed(*batch) for batch in batches]
        self.own(number).park(found, cursor, DueKey(*due), self.cancelled)

    def _seek(self, number: int, offset: int) -> None:
        self.own(number).seek(offset)

    def _drop(self, number: int) -> None:
        group = self.by_number.pop(number)
        del self.by_name[group.name]
        self.groups_bytes -= group.counted_bytes
        self.with_dying.discard(number)
        self._owned.discard(number)

    def behind(self, begin: int) -> Iterator[int]:
        """Numbers of groups that have not come to `begin`."""
        groups = self.by_number.values()
        return (group.number for group in groups if group.is_shared and group.floor < begin)

    def _pass(self, number: int, begin: int) -> None:
        """As `_trim`, of one group: where there are very many, it is said of each before."""
        self.own(number).trim(begin, self.cancelled)

    def _expire(self, number: int) -> None:
        group = self.by_number[number]
        if group.committed is None and not group.claimed:
            self._drop(number)
        else:
            self.own(number).cease_sharing()

    def _trim(self, begin: int) -> None:
        for number in list(self.behind(begin)):
            owned = self.own(number)
            owned.trim(begin, self.cancelled)
            self.count(owned)
        self.cancelled.remove(0, begin)

    def _cancel(self, intervals: list[Interval]) -> None:
        for start, end in intervals:
            self.cancelled.add(start, end)
        for group in list(self.by_number.values()):
            # A group that has not taken them over yet finds them cancelled then.
            if group.waiting.messages:
                owned = self.own(group.number)
                for start, end in intervals:
                    owned.cancel(start, end)
                self.count(owned)

    def _claim(self, number: int, epoch: int) -> None:
        self.own(number).claimed = epoch

    def _commit(self, number: int, offset: int) -> None:
        self.own(number).committed = offset

    def _send_back(
        self, number: int, intervals: list[Interval], at_ms: int, target: str = ""
    ) -> None:
        """A target: from feature level 2 on."""
        for start, end in intervals:
            self.own(number).send_back(start, end, at_ms, target)

    def _purge(self, number: int, intervals: list[Interval]) -> None:
        for start, end in intervals:
            self.own(number).drop(start, end)

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries; none if there is none.

        Nothing of it takes long by itself, so that others can go on while it is packed.
        """
        if not self.by_name and self.next_number == 1 and not len(self.cancelled):
            return b""
        head = _HEAD.pack(self.next_number, len(self.cancelled), len(self.by_number))
        parts = [head, column("Q", self.cancelled.starts), column("Q", self.cancelled.ends)]
        parts += map(pack_group, self.by_number.values())
        parts += map(pack_additions, self.by_number.values())
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: Buffer) -> "Groups":
        groups = cls()
        if len(data):
            reader = ColumnReader(memoryview(data))
            groups.next_number, cancelled, count = reader.values(_HEAD)
            columns = reader.column("Q", cancelled), reader.column("Q", cancelled)
            groups.cancelled = IntervalSet.of_columns(*columns)
            for _ in range(count):
                group = unpack_group(reader)
                groups.by_name[group.name] = groups.by_number[group.number] = group
            while reader.has_more:
                unpack_additions(reader, groups.by_number)
            for group in groups.by_number.values():
                groups.count(group)
            groups._owned = set(groups.by_number)
        return groups

    def part(self, after: int, bytes_max: int) -> tuple["Groups", int]:
        """Some groups with numbers above `after`, of about so many bytes, at least one; and the
        last number among them, or 0 if there are no more. The first part has what all share."""
        found, size = Groups(), 0
        found.next_number = self.next_number
        if not after:
            found.cancelled = self.cancelled.copy()
        for number in sorted(number for number in self.by_number if number > after):
            if size > bytes_max:
                return found, after
            group = self.by_number[number].copy()
            # Members are of this life of the cluster: in another one epochs count anew, and by
            # one of this life nobody could ever claim.
            group.claimed = 0
            found.by_name[group.name] = found.by_number[number] = group
            size += group.size_bytes
            after = number
        return found, 0

    def check(self) -> None:
        """Raise unless each group is in order by itself, whatever its partition holds."""
        any_end = PriorityIndex()
        any_end.end = NO_OFFSET
        for group in self.by_name.values():
            check_group_name(group.name)
            group.validate(any_end)

    def adopt(self, part: "Groups", begin: int) -> None:
        """Take over groups of a backup, in a partition that holds messages from `begin` on."""
        self.next_number = max(self.next_number, part.next_number)
        for start, end in part.cancelled:
            self.cancelled.add(start, end)
        for number, group in part.by_number.items():
            for known in (self.by_name.get(group.name), self.by_number.get(number)):
                if known is not None and known.number in self.by_number:
                    self._drop(known.number)
            group.counted_bytes = 0
            self.by_name[group.name] = self.by_number[number] = group
            self._owned.add(number)
            self.count(group)
        self._trim(begin)

    def first_fresh(self, priority_index: PriorityIndex) -> int:
        """Below this, every group has taken everything."""
        shared = (group for group in self.by_name.values() if group.is_shared)
        return min(
            (group.first_fresh(priority_index) for group in shared), default=priority_index.end
        )

    def taken_by_all(self) -> tuple[DueKey, int]:
        """Delayed batches up to this due time, and below this offset, are taken over by all."""
        shared = [group for group in self.by_name.values() if group.is_shared]
        return (
            min((group.due for group in shared), default=LAST_KEY),
            min((group.cursors[DELAYED] for group in shared), default=NO_OFFSET),
        )

    def validate(self, priority_index: PriorityIndex) -> None:
        """Raise `BrokenInvariant` unless every group is in order."""
        for group in self.by_name.values():
            group.validate(priority_index)
        if self.groups_bytes != sum(group.size_bytes for group in self.by_name.values()):
            raise BrokenInvariant(f"the groups count {self.groups_bytes} bytes")
        if self.with_dying != {n for n, group in self.by_number.items() if group.dying}:
            raise BrokenInvariant(f"groups {self.with_dying} have dead letters")
