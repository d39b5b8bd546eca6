"""Deliveries, as `Producer.send` returns them: cheap enough to make one for every message.

Messages that travel together share a pending batch, and the pending batch holds their common
outcome. A delivery is no more than a pending batch and a place in it; nothing is done per message
when a pending batch arrives.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any

from quivermq.client.models import Receipt
from quivermq.client.producer.sequencer import StoredAt
from quivermq.errors import BrokenInvariant, QuiverError, Timeout


class PendingBatch:
    """Messages on their way to one partition together, up to their outcome."""

    __slots__ = (
        "_waiters", "charged", "count", "deadline", "headers", "is_looked_at", "is_sealed", "keys",
        "not_before_ms", "opened_at", "outcome", "partition", "priority", "size", "topic", "values",
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
        """None while no message has a key; likewise the headers."""
        self.headers: list[Mapping[str, bytes] | None] | None = None
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

    def add(
        self, value: bytes, key: bytes | None, headers: Mapping[str, bytes] | None, size: int
    ) -> int:
        """Put a message in, and return its place."""
        values = self.values
        place = len(values)
        if key is not None and self.keys is None:
            self.keys = [None] * place
        if headers is not None and self.headers is None:
            self.headers = [None] * place
        values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        self.size += size
        return place

    def settle(self, outcome: StoredAt | QuiverError) -> None:
        """The messages are stored, or given up."""
        self.count = len(self.values)
        self.values, self.keys, self.headers = [], None, None
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

    def __init__(self, pending_batch: PendingBatch, place: int) -> None:
        self._pending_batch = pending_batch
        self._place = place

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
        if pending_batch.outcome is None:
            loop = asyncio.get_running_loop()
            settled = loop.create_future()
            pending_batch.when_settled(lambda: loop.call_soon_threadsafe(_set, settled))
            yield from settled
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


def _set(settled: "asyncio.Future[None]") -> None:
    if not settled.done():
        settled.set_result(None)
