"""Deliveries, as producers return them: cheap enough to make one for every message.

Messages that travel together share a pending batch, and the pending batch holds their common
outcome. A delivery is no more than a pending batch and a place in it; nothing is done per message
when a pending batch arrives.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, Self

from quivermq.batches import Frame
from quivermq.client.models import BatchReceipt, Receipt
from quivermq.client.producer.sequencer import StoredAt
from quivermq.errors import BrokenInvariant, QuiverError, Timeout


class PendingBatch:
    """Messages on their way to one partition together, up to their outcome."""

    __slots__ = (
        "_waiters", "charged", "count", "deadline", "frame", "headers", "is_looked_at", "is_sealed",
        "keys", "not_before_ms", "opened_at", "outcome", "partition", "priority", "size",
        "timestamps", "topic", "values",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        priority: int,
        not_before_ms: int,
        opened_at: float,
        deadline: float,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.priority = priority
        self.not_before_ms = not_before_ms
        self.opened_at = opened_at
        self.deadline = deadline
        self.values: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        """None while no message has a key; likewise headers and timestamps."""
        self.headers: list[Mapping[str, bytes] | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.frame: Frame | None = None
        """The messages, if they came laid out; then `values` is empty."""
        self.size = 0
        """Roughly what the messages take."""
        self.charged = 0
        """How much of it counts as buffered already."""
        self.is_sealed = False
        self.outcome: StoredAt | QuiverError | None = None
        self.is_looked_at = False
        """The program asked for the outcome, and will see a failure."""
        self.count = 0
        """How many messages it had when it was settled."""
        self._waiters: deque[Callable[[], object]] = deque()

    @property
    def messages(self) -> int:
        """The number of messages that it holds, until it is settled."""
        return len(self.values) if self.frame is None else self.frame.header.count

    @property
    def takes_plain(self) -> bool:
        """A message of nothing but a value can be put in."""
        has_columns = not (self.keys is None and self.headers is None and self.timestamps is None)
        return not (has_columns or self.priority or self.not_before_ms)

    def add(
        self,
        value: bytes,
        key: bytes | None,
        headers: Mapping[str, bytes] | None,
        size: int,
        timestamp: int | None = None,
    ) -> int:
        """Put a message in, and return its place."""
        values = self.values
        place = len(values)
        if key is not None and self.keys is None:
            self.keys = [None] * place
        if headers is not None and self.headers is None:
            self.headers = [None] * place
        if timestamp is not None and self.timestamps is None:
            self.timestamps = [None] * place
        values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        if self.timestamps is not None:
            self.timestamps.append(timestamp)
        self.size += size
        return place

    def extend(self, values: list[bytes], keys: list[bytes | None] | None, size: int) -> int:
        """Put messages in, and return the place of the first."""
        place, count = len(self.values), len(values)
        if keys is not None and self.keys is None:
            self.keys = [None] * place
        self.values += values
        if self.keys is not None:
            self.keys += [None] * count if keys is None else keys
        if self.headers is not None:
            self.headers += [None] * count
        if self.timestamps is not None:
            self.timestamps += [None] * count
        self.size += size
        return place

    def settle(self, outcome: StoredAt | QuiverError) -> None:
        """The messages are stored, or given up."""
        self.count = self.messages
        self.values, self.keys, self.headers, self.timestamps = [], None, None, None
        self.frame = None
        self.outcome = outcome
        self._call_waiters()

    def when_settled(self, call: Callable[[], object]) -> None:
        """Call it once there is an outcome; at once if there is."""
        self._waiters.append(call)
        # If it was settled in between, only this calls; if both see it, each takes its own.
        if self.outcome is not None:
            self._call_waiters()

    def wait(self, timeout: float | None) -> bool:
        """Block until there is an outcome; False if there was none in time."""
        if self.outcome is None:
            settled = threading.Event()
            self.when_settled(settled.set)
            return settled.wait(timeout)
        return True

    def await_outcome(self) -> Generator[Any, None, None]:
        """Await the outcome, on an event loop."""
        if self.outcome is None:
            loop = asyncio.get_running_loop()
            settled = loop.create_future()
            self.when_settled(lambda: loop.call_soon_threadsafe(_set, settled))
            yield from settled

    def _call_waiters(self) -> None:
        while self._waiters:
            try:
                call = self._waiters.popleft()
            except IndexError:
                return
            call()


class Delivery:
    """The future of one message that was sent. Wait for it in a thread, or await it.

    >>> delivery = producer.send("orders", b"an order")
    >>> delivery.result().offset
    """

    __slots__ = ("_pending_batch", "_place")
    _pending_batch: PendingBatch
    _place: int

    # Not a constructor: `Accumulator.add_value` makes one for every message without this call.
    @classmethod
    def at(cls, pending_batch: PendingBatch, place: int) -> Self:
        """Of the message at this place."""
        delivery = cls()
        delivery._pending_batch, delivery._place = pending_batch, place
        return delivery

    def done(self) -> bool:
        """True once the message is stored or given up."""
        return self._pending_batch.outcome is not None

    def result(self, timeout: float | None = None) -> Receipt:
        """Where the message was stored; raises why it was not, or `Timeout` if that is open."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._receipt()

    def exception(self, timeout: float | None = None) -> QuiverError | None:
        """Why the message was not stored; None if it was."""
        pending_batch = self._pending_batch
        pending_batch.is_looked_at = True
        if not pending_batch.wait(timeout):
            raise Timeout(f"not delivered within {timeout:g} s; it is still under way")
        return pending_batch.outcome if isinstance(pending_batch.outcome, QuiverError) else None

    def add_done_callback(self, call: "Callable[[Delivery], object]") -> None:
        """Call `call(delivery)` once it is done, on the producer's thread: be quick there."""
        self._pending_batch.is_looked_at = True
        self._pending_batch.when_settled(lambda: call(self))

    def __await__(self) -> Generator[Any, None, Receipt]:
        pending_batch = self._pending_batch
        pending_batch.is_looked_at = True
        yield from pending_batch.await_outcome()
        if isinstance(pending_batch.outcome, QuiverError):
            raise pending_batch.outcome
        return self._receipt()

    def __repr__(self) -> str:
        pending_batch = self._pending_batch
        match pending_batch.outcome:
            case None:
                state = "under way"
            case QuiverError() as error:
                state = f"failed: {error}"
            case StoredAt() as stored:
                state = f"stored at offset {stored.first_offset + self._place}"
        return f"<Delivery to {pending_batch.topic}/{pending_batch.partition} {state}>"

    def _receipt(self) -> Receipt:
        pending_batch = self._pending_batch
        if not isinstance(pending_batch.outcome, StoredAt):
            raise BrokenInvariant("a delivery without an outcome was asked for its receipt")
        return Receipt(
            pending_batch.topic,
            pending_batch.partition,
            pending_batch.outcome.first_offset + self._place,
        )


class BatchSlice(NamedTuple):
    """Messages of one call in a row in a pending batch."""

    pending_batch: PendingBatch
    place: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, of no use here

    def ends_at(self, pending_batch: PendingBatch, place: int) -> bool:
        """The next message of that pending batch is in this place."""
        return self.pending_batch is pending_batch and self.place + self.count == place


class BatchDelivery:
    """The future of the messages of one `send_many`. Wait for it in a thread, or await it.

    >>> delivery = producer.send_many("orders", [b"one", b"two"])
    >>> delivery.result()
    [BatchReceipt(partition=0, first_offset=0, count=2)]
    """

    __slots__ = ("_segments",)

    def __init__(self, segments: list[BatchSlice]) -> None:
        self._segments = segments

    def done(self) -> bool:
        """True once every message is stored or given up."""
        return all(each.pending_batch.outcome is not None for each in self._segments)

    def result(self, timeout: float | None = None) -> list[BatchReceipt]:
        """Where the messages were stored; raises why some were not, or `Timeout` if that is open.

        The notes of an error say how many messages of the call were stored all the same.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._receipts()

    def exception(self, timeout: float | None = None) -> QuiverError | None:
        """Why some of the messages were not stored; None if all were."""
        self._look_at()
        deadline = None if timeout is None else time.monotonic() + timeout
        for each in self._segments:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not each.pending_batch.wait(left):
                raise Timeout(f"not all delivered within {timeout:g} s; the rest is under way")
        return self._failure()

    def add_done_callback(self, call: "Callable[[BatchDelivery], object]") -> None:
        """Call `call(delivery)` once it is done, on the producer's thread: be quick there."""
        self._look_at()
        segments = iter(self._segments)

        def go_on() -> None:
            for each in segments:
                if each.pending_batch.outcome is None:
                    each.pending_batch.when_settled(go_on)
                    return
            call(self)

        go_on()

    def __await__(self) -> Generator[Any, None, list[BatchReceipt]]:
        self._look_at()
        for each in self._segments:
            yield from each.pending_batch.await_outcome()
        error = self._failure()
        if error is not None:
            raise error
        return self._receipts()

    def __repr__(self) -> str:
        count = sum(each.count for each in self._segments)
        state = "under way"
        if self.done():
            error = self._failure()
            state = "stored" if error is None else f"failed: {error}"
        return f"<BatchDelivery of {count:,} messages {state}>"

    def _look_at(self) -> None:
        for each in self._segments:
            each.pending_batch.is_looked_at = True

    def _failure(self) -> QuiverError | None:
        outcomes = [each.pending_batch.outcome for each in self._segments]
        failed = next((each for each in outcomes if isinstance(each, QuiverError)), None)
        if failed is not None and len(self._segments) > 1:
            stored = sum(
                each.count
                for each in self._segments
                if isinstance(each.pending_batch.outcome, StoredAt)
            )
            note = f"{stored:,} messages of this call were stored before or beside it"
            # The error may be that of other deliveries too.
            if note not in getattr(failed, "__notes__", ()):
                failed.add_note(note)
        return failed

    def _receipts(self) -> list[BatchReceipt]:
        found: list[BatchReceipt] = []
        for pending_batch, place, count in self._segments:
            if not isinstance(pending_batch.outcome, StoredAt):
                raise BrokenInvariant("a delivery without an outcome was asked for its receipts")
            first = pending_batch.outcome.first_offset + place
            found.append(BatchReceipt(pending_batch.partition, first, count))
        return found


def _set(settled: "asyncio.Future[None]") -> None:
    if not settled.done():
        settled.set_result(None)
