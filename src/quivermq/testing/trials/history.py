"""Records what producers and readers did and saw, and checks the replicas against it.

It knows messages by their values, which must be unique, and shares nothing with the brokers but the
reading of frames. Each check raises `Violation` with the number of the guarantee
(`docs/guarantees.md`) in front.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from quivermq.testing import Violation


class TopicPartition(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class SendAttempt(NamedTuple):
    """A producer began to send a value, its `number`-th for that partition."""

    producer: str
    place: TopicPartition
    number: int


class StoredBatch(NamedTuple):
    """A batch as one replica holds it."""

    first_offset: int
    values: tuple[bytes, ...]
    producer_id: int
    epoch: int
    sequence: int
    raw: bytes
    """Header and body."""


class ReplicaCopy(NamedTuple):
    """The batches of one replica of a partition."""

    node: int
    source: str
    """How it was read, for messages."""
    place: TopicPartition
    start_offset: int
    batches: Sequence[StoredBatch]

    def __str__(self) -> str:
        return f"node {self.node}'s copy of {self.place} ({self.source})"

    def messages(self) -> dict[int, bytes]:
        return {
            batch.first_offset + number: value
            for batch in self.batches
            for number, value in enumerate(batch.values)
        }


class History:
    """Attempts, acknowledgements and reads, from any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: Counter[tuple[str, TopicPartition]] = Counter()
        self._attempts: dict[bytes, SendAttempt] = {}
        self._acked: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)
        self._seen: dict[TopicPartition, dict[int, bytes]] = defaultdict(dict)

    # Recording.

    def attempt(self, producer: str, place: TopicPartition, values: Iterable[bytes]) -> None:
        """A producer is about to send these, in this order."""
        with self._lock:
            for value in values:
                if value in self._attempts:
                    raise ValueError(f"{value!r} was sent before: values must be unique")
                number = self._numbers[producer, place]
                self._numbers[producer, place] += 1
                self._attempts[value] = SendAttempt(producer, place, number)

    def ack(self, place: TopicPartition, first_offset: int, values: Sequence[bytes]) -> None:
        """A producer was told that these are stored, from this offset on."""
        with self._lock:
            self._note("acknowledged", self._acked[place], place, first_offset, values)

    def see(self, place: TopicPartition, first_offset: int, values: Sequence[bytes]) -> None:
        """A reader was shown these, from this offset on."""
        with self._lock:
            self._note("shown", self._seen[place], place, first_offset, values)

    def _note(
        self,
        what: str,
        known: dict[int, bytes],
        place: TopicPartition,
        first_offset: int,
        values: Sequence[bytes],
    ) -> None:
        for offset, value in enumerate(values, first_offset):
            before = known.setdefault(offset, value)
            if before != value:
                raise Violation(
                    f"I6: offset {offset} of {place} was {what} as {before!r}, then as {value!r}"
                )

    # Counting.

    def acked_count(self, place: TopicPartition) -> int:
        return len(self._acked[place])

    def acked_end(self, place: TopicPartition) -> int:
        """Behind the last offset that was acknowledged."""
        with self._lock:
            return max(self._acked[place], default=-1) + 1

    @property
    def places(self) -> list[TopicPartition]:
        return sorted({attempt.place for attempt in self._attempts.values()})

    # Checking.

    def check(self, copies: Sequence[ReplicaCopy], *, may_be_dropped: bool = False) -> None:
        """Compare everything with all copies of all replicas, read after the cluster has healed.
        `may_be_dropped`: retention may have dropped messages from the front."""
        for place in self.places:
            here = [copy for copy in copies if copy.place == place]
            if not here:
                raise Violation(f"I1: no replica of {place} was read")
            for copy in here:
                self._check_copy(copy, may_be_dropped=may_be_dropped)
            self._check_equal(here)

    def _check_copy(self, copy: ReplicaCopy, *, may_be_dropped: bool) -> None:
        if copy.start_offset and not may_be_dropped:
            raise Violation(f"I1: {copy} begins at offset {copy.start_offset}")
        self._check_dense(copy)
        messages = copy.messages()
        self._check_kept("I1", "acknowledged", self._acked[copy.place], copy, messages)
        self._check_kept("I6", "shown to a reader", self._seen[copy.place], copy, messages)
        self._check_sent(copy, messages)
        self._check_order(copy, messages)
        self._check_sequences(copy)

    def _check_dense(self, copy: ReplicaCopy) -> None:
        expected = copy.start_offset
        for batch in copy.batches:
            # Retention drops whole entries, so the first may begin before what is kept.
            if batch.first_offset != expected:
                raise Violation(
                    f"I6: {copy} goes on at offset {batch.first_offset}, {expected} is next"
                )
            expected += len(batch.values)

    def _check_kept(
        self,
        promise: str,
        what: str,
        known: dict[int, bytes],
        copy: ReplicaCopy,
        messages: dict[int, bytes],
    ) -> None:
        for offset, value in sorted(known.items()):
            if offset < copy.start_offset:
                continue
            found = messages.get(offset)
            if found is None:
                raise Violation(f"{promise}: {copy} lacks offset {offset}, {what} as {value!r}")
            if found != value:
                raise Violation(
                    f"{promise}: {copy} has {found!r} at offset {offset}, {what} as {value!r}"
                )

    def _check_sent(self, copy: ReplicaCopy, messages: dict[int, bytes]) -> None:
        for offset, value in messages.items():
            attempt = self._attempts.get(value)
            if attempt is None or attempt.place != copy.place:
                raise Violation(
                    f"I2: {copy} has {value!r} at offset {offset}, which no producer sent there"
                )

    def _check_order(self, copy: ReplicaCopy, messages: dict[int, bytes]) -> None:
        """In the order of offsets a producer's values come in its order, each once."""
        last: dict[str, tuple[int, int]] = {}
        places: dict[bytes, int] = {}
        for offset in sorted(messages):
            value = messages[offset]
            if value in places:
                raise Violation(
                    f"I7: {copy} has {value!r} twice, at offsets {places[value]} and {offset}"
                )
            places[value] = offset
            attempt = self._attempts[value]
            number, before = last.get(attempt.producer, (-1, -1))
            if attempt.number < number:
                raise Violation(
                    f"I3: {copy} has value {attempt.number} of {attempt.producer} at offset "
                    f"{offset}, behind its value {number} at {before}"
                )
            last[attempt.producer] = (attempt.number, offset)

    def _check_sequences(self, copy: ReplicaCopy) -> None:
        """The numbers that the client library gave: per producer and epoch each comes once, and
        they only grow."""
        reached: dict[int, tuple[int, int]] = {}
        for batch in copy.batches:
            if not batch.producer_id:
                continue
            following = reached.get(batch.producer_id, (0, 0))
            if (batch.epoch, batch.sequence) < following:
                raise Violation(
                    f"I7: {copy} has epoch {batch.epoch}, sequence {batch.sequence} of producer "
                    f"{batch.producer_id} at offset {batch.first_offset}, behind {following}"
                )
            reached[batch.producer_id] = (batch.epoch, batch.sequence + len(batch.values))

    def _check_equal(self, copies: Sequence[ReplicaCopy]) -> None:
        """Replicas have the same batches, byte for byte, as far as both keep them."""
        first, *others = copies
        for other in others:
            start = max(first.start_offset, other.start_offset)
            one = [batch for batch in first.batches if batch.first_offset >= start]
            two = [batch for batch in other.batches if batch.first_offset >= start]
            if len(one) != len(two):
                raise Violation(
                    f"I1: {first} has {len(one)} batches from offset {start} on, {other} has "
                    f"{len(two)}"
                )
            for here, there in zip(one, two, strict=True):
                if here.raw != there.raw:
                    raise Violation(f"I1: {first} and {other} differ at offset {here.first_offset}")
