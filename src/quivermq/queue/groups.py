"""All groups of a partition, and the operations that change them.

An operation is a JSON list: its kind, then its arguments. It says exactly what happens to which
offsets, so that carrying it out needs neither a clock nor settings nor a look at the log. Whoever
leads carries an operation out on its working copy when it is proposed, every replica when it is
committed; since nothing else changes groups, both start from the same state.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, Final

from quivermq.batches import Buffer
from quivermq.errors import BrokenInvariant
from quivermq.queue.group import Group
from quivermq.queue.intervals import Interval, IntervalSet
from quivermq.queue.pieces import Piece
from quivermq.queue.stretches import Delayed, Stretches

_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class Op(IntEnum):
    """What can happen to groups."""

    CREATE = 1
    SHARE = 2
    GRANT = 3
    FINISH = 4
    GIVE_BACK = 5
    CONDEMN = 6
    BURY = 7
    RENUMBER = 8
    EXTEND = 9
    PARK = 10
    SEEK = 11
    DROP = 12
    TRIM = 13
    CANCEL = 14
    CLAIM = 15
    COMMIT = 16
    SEND_BACK = 17
    PURGE = 18
    EXPIRE = 19
    """From feature level 2 on."""


def packed(operation: Iterable[Any]) -> bytes:
    """One operation as it goes into an entry."""
    return _encode(list(operation)).encode()


class Groups:
    """Groups by name and by number."""

    def __init__(self) -> None:
        self.by_name: dict[str, Group] = {}
        self.by_number: dict[int, Group] = {}
        self.cancelled = IntervalSet()
        """Delayed messages that nobody is to get."""
        self.next_number = 1
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
            Op.CANCEL: self._cancel,
            Op.SEEK: self._seek,
            Op.DROP: self._drop,
            Op.CLAIM: self._claim,
            Op.COMMIT: self._commit,
            Op.SEND_BACK: self._send_back,
            Op.PURGE: self._purge,
            Op.EXPIRE: self._expire,
        }

    def __len__(self) -> int:
        return len(self.by_name)

    def apply(self, body: Buffer, stretches: Stretches) -> None:
        """Carry out the operations of a committed entry. `stretches` are the partition's own."""
        for operation in json.loads(bytes(body)):
            self.carry_out(operation)
            if operation[0] == Op.TRIM:
                stretches.trim(operation[1])

    def apply_ahead(self, body: Buffer) -> None:
        """The same on a working copy, before it is committed: the index is not its own."""
        for operation in json.loads(bytes(body)):
            self.carry_out(operation)

    def carry_out(self, operation: list[Any]) -> None:
        """One operation; changes nothing but groups."""
        kind = operation[0]
        if kind not in self._acts:
            raise BrokenInvariant(f"operation {kind} is of a newer release: upgrade this broker")
        self._acts[kind](*operation[1:])

    def _create(self, number: int, name: str) -> None:
        # A group that is made again under its old name is another producer of dead letters.
        group = Group(number, name, dead_epoch=number)
        self.by_name[name] = self.by_number[number] = group
        self.next_number = number + 1

    def _share(self, number: int, start: int) -> None:
        self.by_number[number].share_from(start)

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
        group = self.by_number[number]
        pieces = [Piece(start, end, priority, 0) for start, end, priority in fresh]
        for start, end in returned:
            pieces += group.waiting.take(start, end)
        for level, cursor in cursors:
            group.cursors[level] = cursor
        if lease:
            group.grant(lease, consumer, visibility_ms, pieces)
        else:
            group.hand_out(pieces)

    def _finish(
        self, number: int, lease: int, intervals: list[Interval], fresh: list[Interval]
    ) -> None:
        self.by_number[number].finish(lease, intervals, fresh)

    def _give_back(
        self, number: int, lease: int, returns: list[tuple[int, int, int, bool]]
    ) -> None:
        group = self.by_number[number]
        for start, end, due_ms, failed in returns:
            group.give_back(lease, start, end, due_ms, failed=failed)

    def _condemn(
        self, number: int, lease: int, intervals: list[Interval], reason: str, at_ms: int
    ) -> None:
        for start, end in intervals:
            self.by_number[number].condemn(lease, start, end, reason, at_ms)

    def _bury(self, number: int, record: int, kept: Sequence[Interval] = ()) -> None:
        self.by_number[number].bury(record, kept)

    def _renumber(self, number: int) -> None:
        # Epochs count with the numbers of groups: none is ever used by two lives of a name.
        self.by_number[number].renumber(self.next_number)
        self.next_number += 1

    def _extend(self, number: int, lease: int, visibility_ms: int) -> None:
        self.by_number[number].leases[lease].visibility_ms = visibility_ms

    def _park(self, number: int, batches: list[tuple[int, int, int, int]]) -> None:
        found = [Delayed(*batch) for batch in batches]
        self.by_number[number].park(found, self.cancelled)

    def _seek(self, number: int, offset: int, first_lease: int) -> None:
        self.by_number[number].seek(offset, first_lease)

    def _drop(self, number: int) -> None:
        del self.by_name[self.by_number.pop(number).name]

    def _expire(self, number: int, first_lease: int) -> None:
        group = self.by_number[number]
        if group.committed is None and not group.claimed:
            self._drop(number)
        else:
            group.cease_sharing(first_lease)

    def _trim(self, begin: int) -> None:
        for group in self.by_name.values():
            group.trim(begin, self.cancelled)
        self.cancelled.remove(0, begin)

    def _cancel(self, intervals: list[Interval]) -> None:
        for start, end in intervals:
            self.cancelled.add(start, end)
            for group in self.by_name.values():
                group.cancel(start, end)

    def _claim(self, number: int, epoch: int) -> None:
        self.by_number[number].claimed = epoch

    def _commit(self, number: int, offset: int) -> None:
        self.by_number[number].committed = offset

    def _send_back(self, number: int, intervals: list[Interval], at_ms: int) -> None:
        for start, end in intervals:
            self.by_number[number].send_back(start, end, at_ms)

    def _purge(self, number: int, intervals: list[Interval]) -> None:
        for start, end in intervals:
            self.by_number[number].drop(start, end)

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries; none if there is none."""
        if not self.by_name and self.next_number == 1 and not len(self.cancelled):
            return b""
        groups = [group.state() for group in self.by_number.values()]
        return packed([self.next_number, list(self.cancelled), groups])

    @classmethod
    def unpack(cls, data: Buffer) -> "Groups":
        groups = cls()
        if len(data):
            groups.next_number, cancelled, states = json.loads(bytes(data))
            groups.cancelled = IntervalSet(cancelled)
            for state in states:
                group = Group.of_state(state)
                groups.by_name[group.name] = groups.by_number[group.number] = group
        return groups

    def copy(self) -> "Groups":
        """The same state, to be changed apart."""
        return Groups.unpack(self.pack())

    def first_fresh(self, stretches: Stretches) -> int:
        """Below this, every group has taken everything."""
        shared = [group for group in self.by_name.values() if group.is_shared]
        return min((group.first_fresh(stretches) for group in shared), default=stretches.end)

    def validate(self, stretches: Stretches) -> None:
        """Raise `BrokenInvariant` unless every group is in order."""
        for group in self.by_name.values():
            group.validate(stretches)
