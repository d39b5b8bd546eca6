"""Idempotent producers: remembers the stored batches of each, so that a repeat is recognised.

A producer has an id, an epoch (one per life) and numbers its messages without gaps from 0 in each
epoch. Part of the replicated state: every replica remembers the same.

What is remembered is bounded, and only the order of entries decides what is forgotten: no clock.

- Of each producer the last `WINDOW_BATCHES` batches.
- Of all together `BATCHES_MAX`. Past it the windows of those idle longest shrink first, a batch at
  a time, but to no fewer than `WINDOW_BATCHES_MIN`; when all are as short, the one idle longest is
  forgotten.
- At most `PRODUCERS_MAX` producers. Past it the one idle longest is forgotten.

So a producer is remembered, with its last `WINDOW_BATCHES_MIN` batches, at least until
`PRODUCERS_MIN` others have stored something after it.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from quivermq.batches import Header, Offset
from quivermq.errors import (
    BrokenInvariant,
    Fenced,
    OutOfSequence,
    Overloaded,
    SequenceReused,
    StoredBefore,
)

# All replicas must forget the same: another release that changes these numbers needs another
# version of the checkpoint.
WINDOW_BATCHES: Final = 1024
WINDOW_BATCHES_MIN: Final = 16
"""More than any client has under way at a time, so that all of it can be sent again."""
BATCHES_MAX: Final = 65_536
PRODUCERS_MAX: Final = 8_000
PRODUCERS_MIN: Final = BATCHES_MAX // WINDOW_BATCHES_MIN


class Bounds(NamedTuple):
    """Limits of what is remembered."""

    window: int = WINDOW_BATCHES
    window_min: int = WINDOW_BATCHES_MIN
    batches: int = BATCHES_MAX
    producers: int = PRODUCERS_MAX


BOUNDS: Final = Bounds()

_COUNTS: Final = Struct("<IQ")
_RESTORING: Final = 1 << 63
"""The highest bit of the number of those that were forgotten."""
_PRODUCER_BYTES: Final = 24
_STORED: Final = Struct("<QIQQI")
_STORED_BYTES: Final = _STORED.size


def _columns(count: int) -> Struct:
    """Ids, next sequences, epochs and numbers of batches of so many producers."""
    return Struct(f"<{count}Q{count}Q{count}I{count}I")


class RememberedBatch(NamedTuple):
    """A batch that is in the log."""

    sequence: int
    messages: int
    base_offset: Offset
    timestamp_ms: int
    body_crc: int
    """A repeat has the same body: another one under the same number is not stored."""


@dataclass(slots=True)
class ProducerState:
    """The remembered batches of one producer."""

    epoch: int
    next_sequence: int = 0
    window: bytearray = field(default_factory=bytearray)
    """The newest batches as a checkpoint has them, oldest first, without gaps: an object for each
    would take eight times as much."""

    @property
    def batches(self) -> int:
        return len(self.window) // _STORED_BYTES

    def find(self, sequence: int) -> RememberedBatch | None:
        """The batch that begins with `sequence`."""
        at = bisect_left(range(self.batches), sequence, key=self._sequence)
        if at == self.batches or self._sequence(at) != sequence:
            return None
        return RememberedBatch(*_STORED.unpack_from(self.window, at * _STORED_BYTES))

    @property
    def oldest_sequence(self) -> int:
        """Where what is remembered begins."""
        return self._sequence(0) if self.window else self.next_sequence

    def _sequence(self, at: int) -> int:
        return int.from_bytes(self.window[at * _STORED_BYTES : at * _STORED_BYTES + 8], "little")


def check_sequence(
    header: Header, epoch: int, next_sequence: int, *, may_be_forgotten: bool = False
) -> bool:
    """True if the batch comes next, False if it was stored before; raises if it is neither.

    `epoch` and `next_sequence` are what is known of its producer; 0 and 0 if nothing is.
    """
    if header.producer_epoch < epoch:
        raise Fenced(
            f"producer {header.producer_id} has epoch {epoch}, this batch is of epoch "
            f"{header.producer_epoch}: a newer producer took over"
        )
    expected = next_sequence if header.producer_epoch == epoch else 0
    if header.sequence > expected:
        story = (
            ": producers that were idle for long are forgotten here, perhaps this one too. What it "
            "sent before may be stored; go on with a higher epoch or another id"
        )
        raise OutOfSequence(
            f"producer {header.producer_id} sent sequence {header.sequence}, {expected} comes next"
            + (story if may_be_forgotten else ""),
            expected=expected,
            may_be_forgotten=may_be_forgotten,
        )
    return header.sequence == expected


class ProducerTable:
    """All producers that a partition remembers, least recently used first."""

    def __init__(self, bounds: Bounds | None = None, *, is_restoring: bool = False) -> None:
        self._bounds = bounds or BOUNDS
        self.is_restoring = is_restoring
        """Batches of a backup are stored: they were recorded where they were first stored, in the
        table that takes the place of this one when all of them are here."""
        self._known: OrderedDict[int, ProducerState] = OrderedDict()
        # Those whose windows can shrink, in the same order.
        self._wide: OrderedDict[int, ProducerState] = OrderedDict()
        self._batches = 0
        self._forgotten = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def batches(self) -> int:
        """Batches that are remembered of all producers."""
        return self._batches

    @property
    def size_bytes(self) -> int:
        """The size of what `pack` gives; memory is about this and 350 bytes for each producer."""
        return _COUNTS.size + len(self._known) * _PRODUCER_BYTES + self._batches * _STORED_BYTES

    def position(self, producer_id: int) -> tuple[int, int]:
        """Epoch and next sequence of a producer; (0, 0) for one that is not known."""
        known = self._known.get(producer_id)
        return (known.epoch, known.next_sequence) if known else (0, 0)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._known

    def check(self, header: Header) -> bool:
        """Whether a batch comes next, by what is remembered; as `check_sequence`."""
        known = self._known.get(header.producer_id)
        if self.is_restoring:
            raise Overloaded("the producers of this partition are being restored; try again")
        if known is None:
            return check_sequence(header, 0, 0, may_be_forgotten=self._forgotten > 0)
        return check_sequence(header, known.epoch, known.next_sequence)

    def find_repeat(self, header: Header) -> RememberedBatch:
        """Where a batch that was stored before is; raises `StoredBefore` if that is forgotten, and
        `SequenceReused` if it is another batch that was."""
        known = self._known.get(header.producer_id)
        stored = known.find(header.sequence) if known else None
        if stored is not None and (stored.messages, stored.body_crc) == (
            header.count,
            header.body_crc,
        ):
            return stored
        if known and header.sequence + header.count <= known.oldest_sequence:
            raise StoredBefore(
                f"producer {header.producer_id} sent sequence {header.sequence} again: it was "
                f"stored before its last {known.batches} batches, which is all that is remembered, "
                "and its offset is not known"
            )
        raise SequenceReused(
            f"producer {header.producer_id} sent sequence {header.sequence} again with "
            f"{header.count} messages, and another batch is stored under that number: does another "
            "producer use the same id?"
        )

    def record(self, header: Header) -> None:
        """A batch is applied. It was checked before it was proposed, so it comes next."""
        producer_id = header.producer_id
        if not producer_id or self.is_restoring:
            return
        known = self._known.get(producer_id)
        if known is None or header.producer_epoch > known.epoch:
            known = self._begin(header, is_new=known is None)
        if header.producer_epoch != known.epoch or header.sequence != known.next_sequence:
            raise BrokenInvariant(
                f"entry {header.index}: producer {producer_id} at epoch {known.epoch}, "
                f"sequence {known.next_sequence} stored epoch {header.producer_epoch}, "
                f"sequence {header.sequence}"
            )
        known.next_sequence = header.sequence + header.count
        known.window += _STORED.pack(
            header.sequence,
            header.count,
            header.base_offset,
            header.timestamp_ms,
            header.body_crc,
        )
        self._batches += 1
        if known.batches > self._bounds.window:
            self._drop_oldest(known)
        self._known.move_to_end(producer_id)
        if known.batches > self._bounds.window_min:
            self._wide[producer_id] = known
            self._wide.move_to_end(producer_id)
        if self._batches > self._bounds.batches:
            self._make_room()

    def _begin(self, header: Header, *, is_new: bool) -> ProducerState:
        """A producer, or a new epoch of one."""
        if is_new:
            if len(self._known) >= self._bounds.producers:
                self._forget_oldest()
            # It may have been known when the batch was proposed, and forgotten by an entry that
            # was in flight: wherever it goes on from is right.
            known = ProducerState(header.producer_epoch, header.sequence)
        else:
            self._batches -= self._known[header.producer_id].batches
            self._wide.pop(header.producer_id, None)
            known = ProducerState(header.producer_epoch)
        self._known[header.producer_id] = known
        return known

    def _make_room(self) -> None:
        """One batch is too many."""
        if not self._wide:
            self._forget_oldest()
            return
        producer_id, idle = next(iter(self._wide.items()))
        self._drop_oldest(idle)
        if idle.batches <= self._bounds.window_min:
            del self._wide[producer_id]

    def _drop_oldest(self, known: ProducerState) -> None:
        del known.window[:_STORED_BYTES]
        self._batches -= 1

    def _forget_oldest(self) -> None:
        producer_id, known = self._known.popitem(last=False)
        self._batches -= known.batches
        self._wide.pop(producer_id, None)
        self._forgotten += 1

    def forget_rest(self) -> None:
        """There were producers, and batches of them, that this table does not know."""
        self._forgotten += 1

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        known = self._known.values()
        windows = [each.window for each in known]
        columns = _columns(len(windows)).pack(
            *self._known,
            *(each.next_sequence for each in known),
            *(each.epoch for each in known),
            *(size // _STORED_BYTES for size in map(len, windows)),
        )
        forgotten = self._forgotten | (_RESTORING if self.is_restoring else 0)
        return b"".join((_COUNTS.pack(len(windows), forgotten), columns, *windows))

    @classmethod
    def unpack(cls, data: memoryview, bounds: Bounds | None = None) -> "ProducerTable":
        producers = cls(bounds)
        count, forgotten = _COUNTS.unpack_from(data)
        producers._forgotten = forgotten & ~_RESTORING
        producers.is_restoring = bool(forgotten & _RESTORING)
        layout = _columns(count)
        columns = layout.unpack_from(data, _COUNTS.size)
        at = _COUNTS.size + layout.size
        for producer_id, next_sequence, epoch, batches in zip(
            *(columns[first : first + count] for first in range(0, len(columns), count or 1)),
            strict=True,
        ):
            window = bytearray(data[at : at + batches * _STORED_BYTES])
            known = producers._known[producer_id] = ProducerState(epoch, next_sequence, window)
            if batches > producers._bounds.window_min:
                producers._wide[producer_id] = known
            producers._batches += batches
            at += batches * _STORED_BYTES
        if at != len(data):
            raise BrokenInvariant(f"{len(data) - at} bytes are left behind the producers")
        return producers

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless everything remembered makes sense together."""
        total = sum(known.batches for known in self._known.values())
        if total != self._batches or total > self._bounds.batches:
            raise BrokenInvariant(f"{total} batches are remembered, {self._batches} are counted")
        if len(self._known) > self._bounds.producers:
            raise BrokenInvariant(f"{len(self._known)} producers are remembered")
        wide = [n for n, known in self._known.items() if known.batches > self._bounds.window_min]
        if wide != list(self._wide):
            raise BrokenInvariant("windows that can shrink are not in the order of use")
        for producer_id, known in self._known.items():
            after = -1
            for stored in map(RememberedBatch._make, _STORED.iter_unpack(known.window)):
                if after not in {-1, stored.sequence}:
                    raise BrokenInvariant(f"producer {producer_id} has a gap before {stored}")
                after = stored.sequence + stored.messages
            if after != known.next_sequence or known.batches > self._bounds.window:
                raise BrokenInvariant(f"producer {producer_id} ends at {after}, not at {known}")
