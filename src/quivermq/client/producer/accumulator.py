"""Gathers messages into pending batches: one open batch for each partition, sealed when it is full,
when it has waited long enough, or when a message comes that cannot travel with the others. No I/O.

Used by the threads that send and by the sender, so everything happens under one lock, briefly.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from secrets import randbelow
from typing import Any, Final, NamedTuple

from quivermq.batches import DEFAULT_LIMITS, PRIORITY_MAX, Frame, Limits
from quivermq.client.checks import Delay, Payload, as_bytes
from quivermq.client.producer.bulk_send import ENTRY_BYTES, PIECE_ROWS, BulkSend, Piece
from quivermq.client.producer.delivery import BatchDelivery, BatchSlice, Delivery, PendingBatch
from quivermq.client.producer.partitioner import check_partition, partition_of
from quivermq.client.producer.produce import not_before_ms
from quivermq.client.producer.sequencer import StoredAt
from quivermq.errors import InvalidRequest, QuiverError, TooLarge

# Delayed messages travel together if they are due at the same time: so due times are rounded up.
DUE_STEP_MS: Final = 100
FAILURES_KEPT_MAX: Final = 1_000
_TOPICS_NAMED_MAX: Final = 5


class Loss(NamedTuple):
    """Messages that were sent, and are not stored."""

    messages: int
    topics: list[str]
    reason: str = ""

    def __str__(self) -> str:
        count = "1 message" if self.messages == 1 else f"{self.messages:,} messages"
        topics = ", ".join(self.topics[:_TOPICS_NAMED_MAX])
        more = ", ..." if len(self.topics) > _TOPICS_NAMED_MAX else ""
        reason = f" ({self.reason})" if self.reason else ""
        return f"{count} to {topics}{more} may not be stored{reason}"


class Accumulator:
    """All messages of one producer that are not settled yet."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        linger: float,
        timeout: float,
        now: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._limits: Limits = DEFAULT_LIMITS
        self._batch_bytes = self._plain_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._linger = linger
        self._timeout = timeout
        self._now = now
        self._wake = wake
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._sticky: dict[str, int] = {}
        self._open: dict[tuple[str, int], PendingBatch] = {}
        self._plain: dict[str, PendingBatch] = {}
        """By topic, the open pending batch that messages of nothing but a value go to."""
        self._opened: deque[PendingBatch] = deque()
        """Open pending batches, and some that were sealed since, oldest first."""
        self._sealed: deque[PendingBatch] = deque()
        self._unsettled: dict[PendingBatch, None] = {}
        self._buffered_bytes = 0
        self._will_look = False
        """The sender will look by itself, soon enough for any pending batch that is opened
        meanwhile."""
        self._room_waiters: list[Callable[[], object]] = []
        self._failed: deque[PendingBatch] = deque(maxlen=FAILURES_KEPT_MAX)

    @property
    def limits(self) -> Limits:
        """Of the brokers."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._limits = limits
        # No message of a batch is larger than the batch: so small, none needs a look of its own.
        self._plain_bytes = min(self._batch_bytes, limits.message_bytes_max)

    def add(
        self,
        topic: str,
        value: Payload,
        key: Payload | None,
        headers: Mapping[str, bytes] | None,
        priority: int,
        delay: Delay,
        partition: int | None,
        timestamp: int | None = None,
    ) -> Delivery | None:
        """Take a message; None if there is no room, or the topic or partition is not known yet."""
        is_value = key is None and headers is None and partition is None and timestamp is None
        if is_value and not (priority or delay):
            delivery = self.add_value(topic, value)
            if delivery is not None:
                return delivery
        with self._lock:
            if not self.knows(topic, partition):
                return None
            partitions = self._partitions[topic]
            return self._add(
                topic, partitions, value, key, headers, priority, delay, partition, timestamp
            )

    def add_value(self, topic: str, value: Payload) -> Delivery | None:
        """Take a message of nothing but a value, if it fits where such are gathered now; `add`
        takes whatever this does not."""
        with self._lock:
            pending_batch = self._plain.get(topic)
            if pending_batch is None or type(value) is not bytes:
                return None
            size = pending_batch.size + len(value) + ENTRY_BYTES
            if size > self._plain_bytes:
                return None
            values = pending_batch.values
            delivery = Delivery()
            delivery._pending_batch, delivery._place = pending_batch, len(values)  # noqa: SLF001
            values.append(value)
            pending_batch.size = size
            return delivery

    def add_many(self, bulk: BulkSend) -> bool:
        """Take what a call has prepared, batch by batch; False if there is no room for the rest:
        come again with it."""
        with self._lock:
            while (piece := bulk.piece) is not None:
                if not self._add_piece(bulk, piece):
                    return False
            return bulk.frame is None or self._add_frame(bulk, *bulk.frame)

    def add_plain(self, topic: str, values: Any) -> BatchDelivery | None:
        """Take values alone, if they are a short list, and fit where such are gathered now;
        `add_many` takes whatever this does not."""
        is_short = type(values) is list and len(values) <= PIECE_ROWS
        if not is_short or {*map(type, values)} != {bytes}:
            return None
        size = sum(map(len, values)) + ENTRY_BYTES * len(values)
        with self._lock:
            pending_batch = self._plain.get(topic)
            if pending_batch is None or pending_batch.size + size > self._plain_bytes:
                return None
            place = pending_batch.extend(values, None, size)
        return BatchDelivery([BatchSlice(pending_batch, place, len(values))])

    def partitions_of(self, topic: str) -> int | None:
        """The number of partitions of a topic, as far as is known."""
        return self._partitions.get(topic)

    def learn(self, topic: str, partitions: int) -> None:
        """The topic has so many partitions."""
        with self._lock:
            if self._partitions.get(topic) != partitions:
                self._partitions[topic] = partitions
                self._move_on(topic)

    def forget(self, topic: str) -> None:
        """The topic is gone, for all that is known."""
        with self._lock:
            self._partitions.pop(topic, None)
            self._plain.pop(topic, None)

    def knows(self, topic: str, partition: int | None) -> bool:
        """`add` takes messages for it, if there is room."""
        partitions = self._partitions.get(topic)
        if partitions is None:
            return False
        return type(partition) is not int or partition < partitions

    def when_room(self, call: Callable[[], object]) -> None:
        """Call it when there is room again."""
        with self._lock:
            self._room_waiters.append(call)
            has_room = self._has_room()
        if has_room:
            self._call_room_waiters()

    def take_ready(self) -> tuple[list[PendingBatch], float | None]:
        """For the sender: what to send, and when to look again; None: when it is woken."""
        with self._lock:
            expired = self._now() - self._linger
            while self._opened and (
                self._opened[0].is_sealed or self._opened[0].opened_at <= expired
            ):
                pending_batch = self._opened.popleft()
                if not pending_batch.is_sealed:
                    self._seal(pending_batch)
            ready = list(self._sealed)
            self._sealed.clear()
            look_at = self._opened[0].opened_at + self._linger if self._opened else None
            self._will_look = look_at is not None
        return ready, look_at

    def seal_all(self) -> list[PendingBatch]:
        """Let everything go now; returns all that is not settled yet."""
        with self._lock:
            for pending_batch in list(self._open.values()):
                self._seal(pending_batch)
            self._opened.clear()
            unsettled = list(self._unsettled)
        self._wake()
        return unsettled

    def settle(self, pending_batch: PendingBatch, outcome: StoredAt | QuiverError) -> None:
        """A pending batch has arrived, or was given up."""
        with self._lock:
            self._unsettled.pop(pending_batch, None)
            self._buffered_bytes -= pending_batch.size
            if isinstance(outcome, QuiverError):
                self._failed.append(pending_batch)
            has_room = bool(self._room_waiters) and self._has_room()
        pending_batch.settle(outcome)
        if has_room:
            self._call_room_waiters()

    def take_failure(self) -> QuiverError | None:
        """The first failure that the program did not look at; all are forgotten then."""
        with self._lock:
            failed = list(self._failed)
            self._failed.clear()
        outcomes = (
            pending_batch.outcome for pending_batch in failed if not pending_batch.is_looked_at
        )
        return next((each for each in outcomes if isinstance(each, QuiverError)), None)

    def take_loss(self) -> Loss | None:
        """Messages that are not stored, and whose failure the program did not look at; None:
        nothing. From then on nothing counts as given up."""
        with self._lock:
            failed = [
                pending_batch for pending_batch in self._failed if not pending_batch.is_looked_at
            ]
            self._failed.clear()
            left = list(self._unsettled)
        count = sum(pending_batch.count for pending_batch in failed) + sum(
            pending_batch.messages for pending_batch in left
        )
        reasons = [str(pending_batch.outcome) for pending_batch in failed]
        topics = sorted({pending_batch.topic for pending_batch in failed + left})
        return Loss(count, topics, reasons[0] if reasons else "") if count else None

    def _add(
        self,
        topic: str,
        partitions: int,
        value: Payload,
        key: Payload | None,
        headers: Mapping[str, bytes] | None,
        priority: int,
        delay: Delay,
        partition: int | None,
        timestamp: int | None,
    ) -> Delivery | None:
        value_bytes, key_bytes, size = self._checked(value, key, headers, priority)
        if partition is not None:
            check_partition(topic, partition, partitions)
        elif key_bytes is not None:
            partition = partition_of(key_bytes, partitions)
        pending_batch = self._pending_batch_for(topic, partition, size, priority, due_ms(delay))
        if pending_batch is None:
            return None
        place = pending_batch.add(value_bytes, key_bytes, headers, size, timestamp)
        self._charge(pending_batch, size)
        self._note_plain(pending_batch, is_anywhere=partition is None)
        return Delivery.at(pending_batch, place)

    def _add_piece(self, bulk: BulkSend, piece: Piece) -> bool:
        """Put it into the open pending batch, or into the next one."""
        pending_batch = self._pending_batch_for(
            bulk.topic, piece.partition, piece.size, bulk.priority, bulk.due_ms
        )
        if pending_batch is None:
            return False
        place = pending_batch.extend(piece.values, piece.keys, piece.size)
        self._charge(pending_batch, piece.size)
        self._note_plain(pending_batch, is_anywhere=piece.partition is None)
        bulk.took_piece(pending_batch, place)
        return True

    def _add_frame(self, bulk: BulkSend, partition: int, frame: Frame) -> bool:
        """Let a batch that is laid out go, behind what waits for its partition."""
        topic = bulk.topic
        number = self._sticky[topic] if partition < 0 else partition
        waiting = self._open.get((topic, number))
        if waiting is not None:
            self._seal(waiting)
        if not self._has_room():
            return False
        pending_batch = self._open_pending_batch(topic, number, bulk.priority, bulk.due_ms)
        pending_batch.frame, pending_batch.headers = frame, bulk.context
        pending_batch.size = len(frame)
        self._seal(pending_batch)
        bulk.took_frame(pending_batch, frame.header.count)
        return True

    def _charge(self, pending_batch: PendingBatch, size: int) -> None:
        pending_batch.charged += size
        self._buffered_bytes += size

    def _note_plain(self, pending_batch: PendingBatch, *, is_anywhere: bool) -> None:
        """Remember the pending batch for messages of nothing but a value, or that it is none."""
        topic = pending_batch.topic
        if pending_batch.takes_plain:
            if is_anywhere:
                self._plain[topic] = pending_batch
        elif self._plain.get(topic) is pending_batch:
            del self._plain[topic]

    def _checked(
        self,
        value: Payload,
        key: Payload | None,
        headers: Mapping[str, bytes] | None,
        priority: int,
    ) -> tuple[bytes, bytes | None, int]:
        """Value and key as bytes, and what the message takes; raises what would spoil a pending
        batch."""
        if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
            raise InvalidRequest(
                f"priority must be a whole number from 0 to {PRIORITY_MAX}: {priority!r}"
            )
        value = as_bytes("value", value)
        size = len(value) + ENTRY_BYTES
        if key is not None:
            key = as_bytes("key", key)
            size += len(key) + ENTRY_BYTES
        if headers is not None:
            size += _headers_bytes(headers, self.limits)
        if size > self.limits.message_bytes_max:
            raise TooLarge(
                f"a message of {size:,} bytes is above the limit of "
                f"{self.limits.message_bytes_max:,} (message_bytes_max)"
            )
        return value, key, size

    def _pending_batch_for(
        self, topic: str, partition: int | None, size: int, priority: int, due_ms: int
    ) -> PendingBatch | None:
        """The open pending batch, if the message fits in; else another one, if there is room.

        Without a partition, the one that the topic sticks to; a full pending batch makes it move
        on.
        """
        while True:
            place = topic, self._sticky[topic] if partition is None else partition
            pending_batch = self._open.get(place)
            if pending_batch is not None and self._fits(pending_batch, size, priority, due_ms):
                return pending_batch
            if not self._has_room():
                return None
            if pending_batch is None:
                return self._open_pending_batch(*place, priority, due_ms)
            self._seal(pending_batch)

    def _fits(self, pending_batch: PendingBatch, size: int, priority: int, due_ms: int) -> bool:
        return (
            pending_batch.priority == priority
            and pending_batch.not_before_ms == due_ms
            and pending_batch.size + size <= self._batch_bytes
        )

    def _open_pending_batch(
        self, topic: str, partition: int, priority: int, due_ms: int
    ) -> PendingBatch:
        now = self._now()
        pending_batch = PendingBatch(
            topic,
            partition,
            priority=priority,
            not_before_ms=due_ms,
            opened_at=now,
            deadline=now + self._linger + self._timeout,
        )
        self._open[topic, partition] = pending_batch
        self._opened.append(pending_batch)
        self._unsettled[pending_batch] = None
        if not self._will_look:
            self._will_look = True
            self._wake()
        return pending_batch

    def _seal(self, pending_batch: PendingBatch) -> None:
        pending_batch.is_sealed = True
        topic, partition = pending_batch.topic, pending_batch.partition
        del self._open[topic, partition]
        if self._plain.get(topic) is pending_batch:
            del self._plain[topic]
        if self._sticky.get(topic) == partition:
            self._move_on(topic)
        self._buffered_bytes += pending_batch.size - pending_batch.charged
        if not self._sealed:
            self._wake()
        self._sealed.append(pending_batch)

    def _move_on(self, topic: str) -> None:
        """Stick to the next partition."""
        partitions = self._partitions.get(topic, 1)
        sticky = self._sticky.get(topic)
        start = randbelow(partitions) if sticky is None else sticky + 1
        self._sticky[topic] = start % partitions

    def _has_room(self) -> bool:
        return self._buffered_bytes < self._buffer_bytes

    def _call_room_waiters(self) -> None:
        with self._lock:
            waiters, self._room_waiters = self._room_waiters, []
        for call in waiters:
            call()


def due_ms(delay: Delay) -> int:
    """When the delay is over, rounded up, so that messages can travel together; 0: at once."""
    return -(-not_before_ms(delay) // DUE_STEP_MS) * DUE_STEP_MS if delay else 0


def _headers_bytes(headers: Mapping[str, bytes], limits: Limits) -> int:
    """The bytes that headers take; raises what would spoil a pending batch."""
    if not isinstance(headers, Mapping):
        raise InvalidRequest(f"headers are a mapping of names to bytes, not {headers!r}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, bytes | str):
            raise InvalidRequest(f"headers map names to bytes: {name!r}: {value!r}")
        size += len(name.encode()) + len(as_bytes("header", value)) + 2 * ENTRY_BYTES
    if size > limits.headers_bytes_max:
        raise TooLarge(
            f"the headers of a message take {size:,} bytes, above the limit of "
            f"{limits.headers_bytes_max:,} (headers_bytes_max)"
        )
    return size
