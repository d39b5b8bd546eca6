"""Producers, which take single messages and send them in batches: for threads, and for asyncio.

Both gather messages in an `Accumulator` and ship them with a `Sender` on an event loop: the
blocking producer on a thread in the background, the other on the loop that it is used on.
"""

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

from quivermq.batches import Compression
from quivermq.client import fork_safety
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.checks import Delay, Payload, check_number
from quivermq.client.core import Core
from quivermq.client.exit_hooks import endings, park_if_ending
from quivermq.client.producer.accumulator import Accumulator
from quivermq.client.producer.delivery import Delivery, PendingBatch
from quivermq.client.producer.sender import Sender
from quivermq.client.producer.sequencer import ProducerIdentity
from quivermq.errors import InvalidRequest, Overloaded

logger = logging.getLogger("quivermq.client")

BUFFER_BYTES: Final = 32 << 20
BATCH_BYTES_MAX: Final = 8 << 20
"""So that a batch and what is laid out around it stay within what brokers accept."""


# Of the time that there is at the end of the program, what stopping takes.
_STOP_SECONDS: Final = 0.1

Add = Callable[..., Delivery | None]


class ProducerSettings(NamedTuple):
    """How a producer gathers and sends."""

    linger: float = 0.005
    batch_bytes: int = 1_000_000
    compression: Compression = None
    buffer_bytes: int = BUFFER_BYTES
    timeout: float = 10.0
    producer_id: int | None = None
    epoch: int = 0
    sequence: int = 0

    def check(self) -> None:
        """Raise `InvalidRequest` unless it can be done."""
        check_number("linger", self.linger, least=0)
        check_number("batch_bytes", self.batch_bytes, least=1, whole=True)
        check_number("buffer_bytes", self.buffer_bytes, least=1, whole=True)
        check_number("timeout", self.timeout, least=0.001)
        check_number("epoch", self.epoch, least=0, whole=True)
        check_number("sequence", self.sequence, least=0, whole=True)
        if self.producer_id is not None:
            check_number("producer_id", self.producer_id, least=1, whole=True)
        if self.compression not in {None, "lz4", "zstd"}:
            raise InvalidRequest(
                f"compression must be None, 'lz4' or 'zstd', not {self.compression!r}"
            )
        if self.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidRequest(
                f"batch_bytes must be at most {BATCH_BYTES_MAX:,}: {self.batch_bytes!r}"
            )

    def accumulator(self, wake: Callable[[], None]) -> Accumulator:
        """Where messages are gathered."""
        return Accumulator(
            batch_bytes=self.batch_bytes,
            buffer_bytes=self.buffer_bytes,
            linger=self.linger,
            timeout=self.timeout,
            now=time.monotonic,
            wake=wake,
        )

    def sender(self, core: Core, accumulator: Accumulator) -> Sender:
        """The sender of the messages, on a running event loop."""
        is_given = self.producer_id is not None
        return Sender(
            core,
            accumulator,
            compression=self.compression,
            identity=ProducerIdentity(self.producer_id or 0, self.epoch) if is_given else None,
            sequence=self.sequence,
        )


class Producer:
    """Sends messages in the background, many together. Any thread may use it.

    >>> with client.producer(linger=0.005) as producer:
    ...     for order in orders:
    ...         producer.send("orders", order)

    Leaving the block waits until everything is delivered, and raises if something was not. What a
    program sent that ends without that is still sent, for a moment, and what was not stored is
    logged as an error.
    """

    ends_first = False

    def __init__(
        self, background: BackgroundLoop, make_core: Callable[[], Core], settings: ProducerSettings
    ) -> None:
        settings.check()
        self._settings = settings
        self._background = background
        self._sender: Sender | None = None
        self._waker = _Waker()
        self._accumulator = settings.accumulator(self._waker.wake)
        self._add: Add = self._accumulator.add
        self._is_closed = False
        self._sender = background.call(self._make_sender(make_core))
        tracer = self._sender.core.router.tracer
        if tracer is not None:
            self._add = tracer.add_context(self._add)
        fork_safety.watch(self)
        background.add_user(self)

    def send(
        self,
        topic: str,
        value: Payload,
        key: Payload | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
    ) -> Delivery:
        """Take a message and return at once; the delivery has its outcome later.

        Blocks while `buffer_bytes` are waiting to be sent, and raises `Overloaded` if that does not
        change within `timeout`. Messages with the same key go to the same partition in order.
        `flush` raises failures of deliveries that were not looked at.
        """
        return self._add(
            topic, value, key, headers, priority, delay, partition
        ) or self._wait_and_add(topic, partition, value, key, headers, priority, delay)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is delivered or given up.

        Raises the first failure since the last flush that was not looked at.
        """
        if self._add is _refuse_after_fork:
            _refuse_after_fork()
        deadline = None if timeout is None else time.monotonic() + timeout
        for pending_batch in self._accumulator.seal_all():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not pending_batch.wait(left):
                raise Overloaded(f"not everything was delivered within {timeout:g} s")
        failure = self._accumulator.take_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush, and stop."""
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Stop without waiting: what is not delivered yet is given up."""
        if not self._is_closed:
            self._is_closed = True
            self._add = _refuse_closed
            if self._sender is not None:
                self._background.call(self._sender.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif not self._is_closed:
            # Whatever went wrong is more important than what was not delivered.
            for pending_batch in self._accumulator.seal_all():
                pending_batch.wait(self._settings.timeout)
            self.abandon()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and self._sender is not None:
            deadline = time.monotonic() + self._settings.timeout
            self._background.later(partial(_finish, self._sender, self._accumulator, deadline))
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    async def end(self, deadline: float) -> None:
        """The program ends: send what there is."""
        if not self._is_closed and self._sender is not None:
            self._is_closed = True
            self._add = _refuse_closed
            await _finish(self._sender, self._accumulator, deadline)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def after_fork(self) -> None:
        """The thread that sends stayed with the parent."""
        self._is_closed = True
        self._add = _refuse_after_fork

    async def _make_sender(self, make_core: Callable[[], Core]) -> Sender:
        self._waker.sender = self._settings.sender(make_core(), self._accumulator)
        return self._waker.sender

    def _wait_and_add(self, topic: str, partition: int | None, *message: Any) -> Delivery:
        """Add the message once the topic is known and there is room."""
        deadline = time.monotonic() + self._settings.timeout
        while True:
            if self._is_closed or self._sender is None:
                raise InvalidRequest("the producer is closed: make another")
            if not self._accumulator.knows(topic, partition):
                self._background.call(self._sender.learn(topic, partition))
            else:
                room = threading.Event()
                self._accumulator.when_room(room.set)
                if not room.wait(max(0.0, deadline - time.monotonic())):
                    raise _overloaded(self._settings)
            delivery = self._add(topic, *message, partition)
            if delivery is not None:
                return delivery


class AsyncProducer:
    """Sends messages in the background, many together.

    >>> async with client.producer(linger=0.005) as producer:
    ...     for order in orders:
    ...         await producer.send("orders", order)

    `await producer.send(...)` waits for room, not for delivery: it returns a delivery, and awaiting
    that gives the receipt. Leaving the block waits until everything is delivered.
    """

    def __init__(self, make_core: Callable[[], Core], settings: ProducerSettings) -> None:
        settings.check()
        self._settings = settings
        waker = _Waker()
        self._accumulator = settings.accumulator(waker.wake)
        self._add: Add = self._accumulator.add
        self._is_closed = False
        self._sender = waker.sender = settings.sender(make_core(), self._accumulator)
        tracer = self._sender.core.router.tracer
        if tracer is not None:
            self._add = tracer.add_context(self._add)
        fork_safety.watch(self)
        endings.hold(self)

    async def send(
        self,
        topic: str,
        value: Payload,
        key: Payload | None = None,
        *,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
    ) -> Delivery:
        """Take a message; see `quivermq.client.Producer.send`. Await the delivery for its receipt.

        Waits while `buffer_bytes` are waiting to be sent, and raises `Overloaded` if that does not
        change within `timeout`.
        """
        return self._add(
            topic, value, key, headers, priority, delay, partition
        ) or await self._wait_and_add(topic, partition, value, key, headers, priority, delay)

    async def flush(self) -> None:
        """Wait until everything sent so far is delivered or given up.

        Raises the first failure since the last flush that was not looked at.
        """
        if self._add is _refuse_after_fork:
            _refuse_after_fork()
        await _await_settled(self._accumulator.seal_all())
        failure = self._accumulator.take_failure()
        if failure is not None:
            raise failure

    async def close(self) -> None:
        """Flush, and stop."""
        if self._is_closed:
            return
        try:
            await self.flush()
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Stop without waiting: what is not delivered yet is given up."""
        if not self._is_closed:
            self._is_closed = True
            self._add = _refuse_closed
            await self._sender.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        elif not self._is_closed:
            try:
                if issubclass(kind, Exception):
                    await _await_settled(self._accumulator.seal_all())
            finally:
                await self.abandon()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            deadline = time.monotonic() + self._settings.timeout
            finish = partial(_finish, self._sender, self._accumulator, deadline)
            if not self._sender.finish_soon(finish):
                _report(self._accumulator)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def end(self, deadline: float) -> None:  # noqa: ARG002  (others have something to wait for)
        """The program ends, and the event loop most likely has: only log what is lost."""
        if not self._is_closed:
            self._is_closed = True
            _report(self._accumulator)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def after_fork(self) -> None:
        """The event loop is the parent's."""
        self._is_closed = True
        self._add = _refuse_after_fork

    async def _wait_and_add(self, topic: str, partition: int | None, *message: Any) -> Delivery:
        """Add the message once the topic is known and there is room."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.timeout
        while True:
            if self._is_closed:
                raise InvalidRequest("the producer is closed: make another")
            if not self._accumulator.knows(topic, partition):
                await self._sender.learn(topic, partition)
            else:
                room = asyncio.Event()
                self._accumulator.when_room(room.set)
                try:
                    async with asyncio.timeout_at(deadline):
                        await room.wait()
                except TimeoutError as error:
                    raise _overloaded(self._settings) from error
            delivery = self._add(topic, *message, partition)
            if delivery is not None:
                return delivery


async def _await_settled(pending_batches: list[PendingBatch]) -> None:
    loop = asyncio.get_running_loop()
    for pending_batch in pending_batches:
        if pending_batch.outcome is None:
            settled = asyncio.Event()
            pending_batch.when_settled(partial(loop.call_soon_threadsafe, settled.set))
            await settled.wait()


class _Waker:
    """Wakes the sender. It does not know the producer: what is under way on the event loop must not
    keep a producer alive that the program no longer refers to."""

    def __init__(self) -> None:
        self.sender: Sender | None = None

    def wake(self) -> None:
        """There is something to look at. Any thread may call this."""
        if self.sender is not None:
            self.sender.wake()


async def _finish(sender: Sender, accumulator: Accumulator, deadline: float) -> None:
    """Send the messages of a producer that was not closed, stop, and log what is lost."""
    try:
        async with asyncio.timeout_at(deadline - _STOP_SECONDS):
            await _await_settled(accumulator.seal_all())
    except TimeoutError:
        pass  # the log says so
    finally:
        _report(accumulator)
        await sender.close()


def _report(accumulator: Accumulator) -> None:
    loss = accumulator.take_loss()
    if loss is not None:
        logger.error(
            "a producer was not closed, and %s: close() it, or use it in a `with` block", loss
        )


def _overloaded(settings: ProducerSettings) -> Overloaded:
    return Overloaded(
        f"{settings.buffer_bytes:,} bytes (buffer_bytes) wait to be sent, and that did not change "
        f"within {settings.timeout:g} s: send more slowly, or let the cluster recover"
    )


def _refuse_closed(*_: object) -> NoReturn:
    park_if_ending()
    raise InvalidRequest("the producer is closed: make another")


def _refuse_after_fork(*_: object) -> NoReturn:
    raise InvalidRequest(
        "this producer was made before the process was forked: make one in the child"
    )
