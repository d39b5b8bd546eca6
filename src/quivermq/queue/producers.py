"""Idempotent producers: which batches of whom are stored, so that a repeat is recognised.

A producer has an id, an epoch (one per life) and numbers its messages without gaps from 0 in each
epoch. Part of the replicated state: every replica remembers the same, and time comes from the
entries, so they forget at the same point of the log too.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import starmap
from struct import Struct
from typing import Final, NamedTuple

from quivermq.batches import Header, Offset
from quivermq.errors import (
    BrokenInvariant,
    Fenced,
    OutOfSequence,
    SequenceReused,
    StoredBefore,
)

WINDOW_BATCHES: Final = 1024
KEEP_MS: Final = 24 * 3600 * 1000

_COUNT: Final = Struct("<I")
_PRODUCER: Final = Struct("<QIQQI")
_STORED: Final = Struct("<QIQQI")


class Stored(NamedTuple):
    """A batch that is in the log."""

    sequence: int
    messages: int
    base_offset: Offset
    timestamp_ms: int
    body_crc: int
    """A repeat has the same body: another one under the same number is not stored."""


@dataclass(slots=True)
class Producer:
    """What is remembered of one producer."""

    epoch: int
    next_sequence: int = 0
    last_used_ms: int = 0
    window: dict[int, Stored] = field(default_factory=dict)
    """The newest batches by first sequence, oldest first."""


def check_sequence(header: Header, epoch: int, next_sequence: int) -> bool:
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
        raise OutOfSequence(
            f"producer {header.producer_id} sent sequence {header.sequence}, {expected} comes next",
            expected=expected,
        )
    return header.sequence == expected


class Producers:
    """All producers that a partition remembers, least recently used first."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, Producer] = OrderedDict()
        self._batches = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def size_bytes(self) -> int:
        """What `pack` takes."""
        return _COUNT.size + len(self._known) * _PRODUCER.size + self._batches * _STORED.size

    def position(self, producer_id: int) -> tuple[int, int]:
        """Epoch and next sequence of a producer; (0, 0) for one that is not known."""
        known = self._known.get(producer_id)
        return (known.epoch, known.next_sequence) if known else (0, 0)

    def knows(self, producer_id: int) -> bool:
        return producer_id in self._known

    def repeated(self, header: Header) -> Stored:
        """Where a batch that was stored before is; raises `StoredBefore` if that is forgotten, and
        `SequenceReused` if it is another batch that was."""
        known = self._known.get(header.producer_id)
        stored = known.window.get(header.sequence) if known else None
        if stored is not None and (stored.messages, stored.body_crc) == (
            header.count,
            header.body_crc,
        ):
            return stored
        oldest = next(iter(known.window), 0) if known else 0
        if header.sequence + header.count <= oldest:
            raise StoredBefore(
                f"producer {header.producer_id} sent sequence {header.sequence} again: it was "
                f"stored before its last {WINDOW_BATCHES} batches, and nobody remembers where"
            )
        raise SequenceReused(
            f"producer {header.producer_id} sent sequence {header.sequence} again with "
            f"{header.count} messages, and another batch is stored under that number: does another "
            "producer use the same id?"
        )

    def record(self, header: Header) -> None:
        """A batch is applied. It was checked before it was proposed, so it comes next."""
        self._expire(header.timestamp_ms)
        if not header.producer_id:
            return
        known = self._known.get(header.producer_id)
        if known is None:
            # It may have been known when the batch was proposed, and forgotten by this entry's time
            # or by one that was in flight: wherever it goes on from is right.
            known = Producer(header.producer_epoch, header.sequence)
            self._known[header.producer_id] = known
        elif header.producer_epoch > known.epoch:
            self._batches -= len(known.window)
            known = self._known[header.producer_id] = Producer(header.producer_epoch)
        if header.producer_epoch != known.epoch or header.sequence != known.next_sequence:
            raise BrokenInvariant(
                f"entry {header.index}: producer {header.producer_id} at epoch {known.epoch}, "
                f"sequence {known.next_sequence} stored epoch {header.producer_epoch}, "
                f"sequence {header.sequence}"
            )
        known.next_sequence = header.sequence + header.count
        known.last_used_ms = header.timestamp_ms
        known.window[header.sequence] = Stored(
            header.sequence,
            header.count,
            header.base_offset,
            header.timestamp_ms,
            header.body_crc,
        )
        self._batches += 1
        if len(known.window) > WINDOW_BATCHES:
            self._batches -= 1
            del known.window[next(iter(known.window))]
        self._known.move_to_end(header.producer_id)

    def _expire(self, now_ms: int) -> None:
        """Forget producers that were not used for a day. Times in a log never go back."""
        while self._known:
            producer_id, oldest = next(iter(self._known.items()))
            if oldest.last_used_ms + KEEP_MS > now_ms:
                break
            self._batches -= len(oldest.window)
            del self._known[producer_id]

    def pack(self) -> bytes:
        """The same bytes on every replica that applied the same entries."""
        return b"".join(self._parts())

    def _parts(self) -> Iterator[bytes]:
        yield _COUNT.pack(len(self._known))
        for producer_id, known in self._known.items():
            yield _PRODUCER.pack(
                producer_id, known.epoch, known.next_sequence, known.last_used_ms, len(known.window)
            )
            yield b"".join(starmap(_STORED.pack, known.window.values()))

    @classmethod
    def unpack(cls, data: memoryview) -> "Producers":
        producers = cls()
        (count,) = _COUNT.unpack_from(data)
        at = _COUNT.size
        for _ in range(count):
            producer_id, epoch, next_sequence, last_used_ms, batches = _PRODUCER.unpack_from(
                data, at
            )
            at += _PRODUCER.size
            known = Producer(epoch, next_sequence, last_used_ms)
            for _ in range(batches):
                stored = Stored(*_STORED.unpack_from(data, at))
                known.window[stored.sequence] = stored
                at += _STORED.size
            producers._known[producer_id] = known
            producers._batches += batches
        if at != len(data):
            raise BrokenInvariant(f"{len(data) - at} bytes are left behind the producers")
        return producers

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless everything remembered makes sense together."""
        last_used_ms = 0
        for producer_id, known in self._known.items():
            if known.last_used_ms < last_used_ms:
                raise BrokenInvariant(f"producer {producer_id} is out of order of use")
            last_used_ms = known.last_used_ms
            after = -1
            for stored in known.window.values():
                if after not in {-1, stored.sequence}:
                    raise BrokenInvariant(f"producer {producer_id} has a gap before {stored}")
                after = stored.sequence + stored.messages
            if after != known.next_sequence or len(known.window) > WINDOW_BATCHES:
                raise BrokenInvariant(f"producer {producer_id} ends at {after}: {known}")
