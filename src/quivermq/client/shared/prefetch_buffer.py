"""Buffers what was fetched ahead, as the batches that it came in, until it is taken.

Messages are made of a batch some at a time, by the thread that takes them. Made on arrival, forty
thousand of them would be ten megabytes that one core writes, the garbage collector walks through,
and another core reads: that took longer than making them (decision 0068).
"""

import threading
from collections import deque
from collections.abc import Container, Sequence
from typing import Any, Final, Generic, TypeVar

from quivermq import batches
from quivermq.batches import Header, Limits
from quivermq.client.shared.delivery_run import DeliveryRun
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease
from quivermq.client.shared.poll import LeasedRun
from quivermq.client.shared.poll_result import (
    LeasedSlice,
    messages_of_columns,
    messages_of_slice,
    slices_of_runs,
)
from quivermq.garbage_pause import GARBAGE_PAUSE

M = TypeVar("M", bound=LeasedFields)

MADE_AT_ONCE: Final = 500
"""Messages that are made when the next one is asked for."""
SMALL_LIST: Final = 64
"""Lists of fewer are made of messages that were made together: to cut a batch takes as long as to
make so many."""


class PackedSlice:
    """Messages in a row of one batch, of which no Python objects were made yet."""

    __slots__ = ("_batch", "_delivery", "_header", "_start", "count", "lease")

    def __init__(self, lease: Lease, leased_slice: LeasedSlice, limits: Limits) -> None:
        """Raises `Corrupt` here, and not when they are taken."""
        self.lease = lease
        self._header: Header = leased_slice.frame.header
        self._start = leased_slice.start
        first = self._start - self._header.base_offset
        self._batch: Any = batches.decode_batch(
            leased_slice.frame, limits, first=first, stop=first + leased_slice.run_lengths[0]
        )
        self.count: int = self._batch.num_rows
        (self._delivery,) = leased_slice.deliveries

    def take(self, most: int, kind: type[M]) -> list[M]:
        """The next of them."""
        start, size = self._start, min(most, self.count)
        columns = batches.columns_of(self._batch[:size], self._header)
        self._start += size
        self.count -= size
        self._batch = self._batch[size:]
        return messages_of_columns(self.lease, start, columns, self._header, self._delivery, kind)


class PrefetchBuffer(Generic[M]):
    """Leased messages in the order to hand them out. The event loop puts them in, any thread may
    take them."""

    def __init__(self, kind: type[M], held: Container[Lease], *, packs: bool = True) -> None:
        """`held` are the leases that have not ended: others may have the messages of the rest by
        now. With `packs` messages are made when they are taken, and not before."""
        self.made: deque[M] = deque()
        """The first of them."""
        self._kind = kind
        self._held = held
        self._packs = packs
        self._packed: deque[PackedSlice | list[M]] = deque()
        self._unpacking = threading.Lock()

    def __len__(self) -> int:
        return len(self.made) + sum(map(_count_of, self._packed.copy()))

    @property
    def is_empty(self) -> bool:
        """There is nothing to take."""
        return not self.made and not self._packed

    def put(self, leased_runs: Sequence[LeasedRun], limits: Limits) -> bool:
        """Add what a poll brought; False if that is nothing."""
        parts = [self._part_of(*found, limits) for found in slices_of_runs(leased_runs)]
        if self._packs:
            self._packed.extend(parts)
        else:
            for part in parts:
                self.made.extend(part if isinstance(part, list) else ())
        return bool(parts)

    def _part_of(
        self, lease: Lease, leased_slice: LeasedSlice, limits: Limits
    ) -> PackedSlice | list[M]:
        # What failed before comes in pieces, and a lone message needs no Arrow.
        is_plain = len(leased_slice.deliveries) == 1 and leased_slice.frame.header.count > 1
        if self._packs and is_plain:
            return PackedSlice(lease, leased_slice, limits)
        return messages_of_slice(lease, leased_slice, self._kind, limits)

    def pop(self) -> M | None:
        """The next message; None if there is none."""
        made, held = self.made, self._held
        while True:
            try:
                message = made.popleft()
            except IndexError:
                with self._unpacking:
                    if not self._unpack_some():
                        return None
                continue
            lease = message.lease
            if lease in held or not lease.token:
                return message

    def take(self, most: int) -> list[M]:
        """The next messages that are there, up to so many."""
        found: list[M] = []
        with self._unpacking:
            self._take_made(found, most)
            while len(found) < most and self._packed:
                if most < SMALL_LIST:
                    self._unpack_some()
                    self._take_made(found, most)
                    continue
                part = self._packed[0]
                if isinstance(part, list):
                    self.made.extend(self._packed.popleft())  # type: ignore[arg-type]  # it is one
                    self._take_made(found, most)
                else:
                    found += self._unpack(part, most - len(found))
        return found

    def take_run(self, most: int) -> DeliveryRun | None:
        """The next messages in a row, up to so many; None if there are none."""
        if most == 1:
            message = self.pop()
            return None if message is None else DeliveryRun([message])
        found: list[M] = []
        with self._unpacking:
            self._take_made_row(found, most)
            while not found and self._packed:
                part = self._packed[0]
                if isinstance(part, list):
                    self.made.extend(self._packed.popleft())  # type: ignore[arg-type]  # it is one
                    self._take_made_row(found, most)
                else:
                    found = self._unpack(part, most)
        return DeliveryRun(found) if found else None

    def _take_made_row(self, found: list[M], most: int) -> None:
        made = self.made
        while made and len(found) < most:
            try:
                message = made.popleft()
            except IndexError:  # another thread was faster
                return
            if found and not _follows(found[-1], message):
                made.appendleft(message)
                return
            if message.lease in self._held or not message.lease.token:
                found.append(message)

    def _take_made(self, found: list[M], most: int) -> None:
        popleft, held = self.made.popleft, self._held
        try:
            while len(found) < most:
                message = popleft()
                if message.lease in held or not message.lease.token:
                    found.append(message)
        except IndexError:  # that was all, or another thread was faster
            return

    def _unpack_some(self) -> bool:
        """Have some made; False if there are no more. The caller holds the lock."""
        while not self.made and self._packed:
            part = self._packed[0]
            if isinstance(part, list):
                self.made.extend(part)
                self._packed.popleft()
            else:
                self.made.extend(self._unpack(part, MADE_AT_ONCE))
        return bool(self.made)

    def _unpack(self, part: PackedSlice, most: int) -> list[M]:
        is_held = part.lease in self._held or not part.lease.token
        found: list[M] = []
        if is_held:
            with GARBAGE_PAUSE:
                found = part.take(most, self._kind)
        if not is_held or not part.count:
            self._packed.popleft()
        return found

    def leases(self) -> set[Lease]:
        """Of all that is there."""
        found = {message.lease for message in self.made.copy()}
        for part in self._packed.copy():
            if isinstance(part, list):
                found.update(message.lease for message in part)
            else:
                found.add(part.lease)
        return found


def _follows(last: LeasedFields, message: LeasedFields) -> bool:
    return message.lease is last.lease and message.offset == last.offset + 1


def _count_of(part: PackedSlice | list[Any]) -> int:
    return len(part) if isinstance(part, list) else part.count
