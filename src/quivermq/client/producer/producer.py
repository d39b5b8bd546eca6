"""Producers, which take single messages and send them in batches: for threads, and for asyncio.

Both gather messages in an `Accumulator` and ship them with a `Sender` on an event loop: the
blocking producer on a thread in the background, the other on the loop that it is used on.
"""

import asyncio
import logging
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

from quivermq.batches import Compression
from quivermq.client import fork_safety
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.checks import Delay, Payload, check_number
from quivermq.client.core import Core
from quivermq.client.exit_hooks import endings, park_if_ending
from quivermq.client.producer.accumulator import Accumulator, due_ms
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.bulk_send import BulkSend
from quivermq.client.producer.delivery import BatchDelivery, Delivery, PendingBatch
from quivermq.client.producer.message_options import (
    ChosenSerializer,
    Serializer,
    Timestamp,
    Ttl,
    bulk_columns,
    timestamp_ms,
    with_properties,
)
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
AddValue = Callable[[str, Any], Delivery | None]
AddPlain = Callable[[str, Any], BatchDelivery | None]
_PARTITION: Final = 5
"""Its place among the arguments of `add` behind the topic."""


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
    serializer: Serializer | None = None

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
        if self.serializer is not None:
            ChosenSerializer.of(self.serializer)
        if self.batch_bytes > BATCH_BYTES_MAX:
            raise InvalidRequest(
                f"batch_bytes must be at most {BATCH_BYTES_MAX:,}: {self.batch_bytes!r}"
            )

    def adding(self, core: Core, accumulator: Accumulator) -> tuple[Add, AddValue, AddPlain]:
        """The way of a message into the accumulator, and the short ones of a value and of a list
        alone."""
        add: Add = accumulator.add
        if core.router.tracer is None and self.serializer is None:
            return add, accumulator.add_value, accumulator.add_plain
        if core.router.tracer is not None:
            add = core.router.tracer.add_context(add)
        if self.serializer is not None:
            add = ChosenSerializer.of(self.serializer).add(add)
        return add, _leave_to_add, _leave_to_add

    def bulk(self, core: Core, accumulator: Accumulator, many: "Many") -> BulkSend | None:
        """The messages of one call, checked; None if their topic is not known yet."""
        if not accumulator.knows(many.topic, many.partition):
            return None
        columns, context = many.columns, None
        if core.router.tracer is not None:
            tracer = core.router.tracer
            values, headers, context = tracer.add_context_to_all(columns.values, columns.headers)
            columns = columns._replace(values=values, headers=headers)
        return BulkSend(
            many.topic,
            columns,
            Layout(many.priority, due_ms(many.delay), self.compression, self.batch_bytes),
            accumulator.limits,
            partitions=accumulator.partitions_of(many.topic) or 1,
            partition=many.partition,
            context=context,
        )

    def many(
        self,
        topic: str,
        values: Any,
        keys: Any,
        partition: int | None,
        headers: Any,
        timestamps: Any,
        priority: int,
        delay: Delay,
        content_type: str | None,
        ttl: Ttl | None,
        serializer: Serializer | None,
    ) -> "Many":
        """The arguments of one `send_many`."""
        columns = bulk_columns(
            values,
            keys,
            headers,
            timestamps,
            serializer=self.serializer if serializer is None else serializer,
            content_type=content_type,
            ttl=ttl,
            delay=delay,
        )
        return Many(topic, columns, partition, priority, delay)

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


class Many(NamedTuple):
    """The messages of one `send_many`, as columns."""

    topic: str
    columns: BulkColumns
    partition: int | None
    priority: int
    delay: Delay


def _leave_to_add(*_: object) -> None:
    """In place of the short ways, where something has to be done to every message."""


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
        self._is_closed = False
        self._sender = background.call(self._make_sender(make_core))
        core = self._sender.core
        self._add, self._add_value, self._add_plain = settings.adding(core, self._accumulator)
        fork_safety.watch(self)
        background.add_user(self)

    def send(
        self,
        topic: str,
        value: Payload | Any,
        key: Payload | None = None,
        # No star: Python looks the default of each keyword-only argument up, for every message.
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
        content_type: str | None = None,
        timestamp: Timestamp | None = None,
        ttl: Ttl | None = None,
    ) -> Delivery:
        """Take a message and return at once; the delivery has its outcome later.

        Blocks while `buffer_bytes` are waiting to be sent, and raises `Overloaded` if that does not
        change within `timeout`. Messages with the same key go to the same partition in order.
        `flush` raises failures of deliveries that were not looked at.
        """
        if content_type is None and ttl is None and timestamp is None:
            if key is None and headers is None and partition is None and not (priority or delay):
                # The commonest call by far: passing on the other options would take as long again.
                delivery = self._add_value(topic, value)
                if delivery is not None:
                    return delivery
            return self._add(
                topic, value, key, headers, priority, delay, partition
            ) or self._wait_and_add(topic, value, key, headers, priority, delay, partition)
        if content_type is not None or ttl is not None:
            headers = with_properties(headers, content_type, ttl, delay)
        message = (value, key, headers, priority, delay, partition)
        time_ms = None if timestamp is None else timestamp_ms(timestamp)
        return self._add(topic, *message, time_ms) or self._wait_and_add(topic, *message, time_ms)

    def send_many(
        self,
        topic: str,
        values: Sequence[Payload] | Any,
        keys: Sequence[Payload | None] | Any = None,
        partition: int | None = None,
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | Any = None,
        timestamps: Sequence[Timestamp | None] | Any = None,
        priority: int = 0,
        delay: Delay = 0.0,
        content_type: str | None = None,
        ttl: Ttl | None = None,
        serializer: Serializer | None = None,
    ) -> BatchDelivery:
        """Take many messages and return at once, as `send` does; by far faster for lists.

        >>> delivery = producer.send_many("orders", [b"one", b"two"])
        >>> delivery.result()
        [BatchReceipt(partition=0, first_offset=0, count=2)]

        `values` is as for `produce_many`, and the other options are for all of the messages. They
        keep their order among themselves, and with messages that are sent before and after them.
        Nothing is taken if any message is invalid. If there is no room in time, the notes of
        `Overloaded` say how many messages of the call were taken.
        """
        has_columns = keys is not None or headers is not None or timestamps is not None
        has_properties = content_type is not None or ttl is not None or serializer is not None
        if not (has_columns or has_properties or priority or delay or partition is not None):
            delivery = self._add_plain(topic, values)
            if delivery is not None:
                return delivery
        many = self._settings.many(
            topic, values, keys, partition, headers, timestamps, priority, delay, content_type, ttl,
            serializer,
        )  # fmt: skip
        return self._add_many(many)

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
            self._add = self._add_value = self._add_plain = _refuse_closed
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
            self._add = self._add_value = self._add_plain = _refuse_closed
            await _finish(self._sender, self._accumulator, deadline)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def after_fork(self) -> None:
        """The thread that sends stayed with the parent."""
        self._is_closed = True
        self._add = self._add_value = self._add_plain = _refuse_after_fork

    async def _make_sender(self, make_core: Callable[[], Core]) -> Sender:
        self._waker.sender = self._settings.sender(make_core(), self._accumulator)
        return self._waker.sender

    def _wait_and_add(self, topic: str, *message: Any) -> Delivery:
        """Add the message once the topic is known and there is room."""
        deadline = time.monotonic() + self._settings.timeout
        partition = message[_PARTITION]
        while True:
            self._check_open()
            if not self._accumulator.knows(topic, partition):
                self._learn(topic, partition)
            else:
                self._wait_for_room(deadline)
            delivery = self._add(topic, *message)
            if delivery is not None:
                return delivery

    def _add_many(self, many: Many) -> BatchDelivery:
        deadline = time.monotonic() + self._settings.timeout
        self._check_open()
        while (bulk := self._settings.bulk(self._core, self._accumulator, many)) is None:
            self._learn(many.topic, many.partition)
        while bulk.prepare():
            self._check_open()
            if not self._accumulator.add_many(bulk):
                try:
                    self._wait_for_room(deadline)
                except Overloaded as error:
                    error.add_note(f"{bulk.count:,} messages of this call were taken before it")
                    raise
        return bulk.delivery()

    @property
    def _core(self) -> Core:
        return self._open_sender().core

    def _open_sender(self) -> Sender:
        if self._is_closed or self._sender is None:
            raise InvalidRequest("the producer is closed: make another")
        return self._sender

    def _check_open(self) -> None:
        if self._add in {_refuse_closed, _refuse_after_fork}:
            self._add()
        self._open_sender()

    def _learn(self, topic: str, partition: int | None) -> None:
        self._background.call(self._open_sender().learn(topic, partition))

    def _wait_for_room(self, deadline: float) -> None:
        room = threading.Event()
        self._accumulator.when_room(room.set)
        if not room.wait(max(0.0, deadline - time.monotonic())):
            raise _overloaded(self._settings)


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
        self._is_closed = False
        self._sender = waker.sender = settings.sender(make_core(), self._accumulator)
        core = self._sender.core
        self._add, self._add_value, self._add_plain = settings.adding(core, self._accumulator)
        fork_safety.watch(self)
        endings.hold(self)

    async def send(
        self,
        topic: str,
        value: Payload | Any,
        key: Payload | None = None,
        # No star: Python looks the default of each keyword-only argument up, for every message.
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
        content_type: str | None = None,
        timestamp: Timestamp | None = None,
        ttl: Ttl | None = None,
    ) -> Delivery:
        """Take a message; see `quivermq.client.Producer.send`. Await the delivery for its receipt.

        Waits while `buffer_bytes` are waiting to be sent, and raises `Overloaded` if that does not
        change within `timeout`.
        """
        if content_type is None and ttl is None and timestamp is None:
            if key is None and headers is None and partition is None and not (priority or delay):
                # The commonest call by far: passing on the other options would take as long again.
                delivery = self._add_value(topic, value)
                if delivery is not None:
                    return delivery
            return self._add(
                topic, value, key, headers, priority, delay, partition
            ) or await self._wait_and_add(topic, value, key, headers, priority, delay, partition)
        if content_type is not None or ttl is not None:
            headers = with_properties(headers, content_type, ttl, delay)
        message = (value, key, headers, priority, delay, partition)
        time_ms = None if timestamp is None else timestamp_ms(timestamp)
        return self._add(topic, *message, time_ms) or await self._wait_and_add(
            topic, *message, time_ms
        )

    async def send_many(
        self,
        topic: str,
        values: Sequence[Payload] | Any,
        keys: Sequence[Payload | None] | Any = None,
        partition: int | None = None,
        *,
        headers: Mapping[str, bytes] | Sequence[Mapping[str, bytes] | None] | Any = None,
        timestamps: Sequence[Timestamp | None] | Any = None,
        priority: int = 0,
        delay: Delay = 0.0,
        content_type: str | None = None,
        ttl: Ttl | None = None,
        serializer: Serializer | None = None,
    ) -> BatchDelivery:
        """Take many messages; see `quivermq.client.Producer.send_many`. Await the delivery for its
        receipts.

        >>> delivery = await producer.send_many("orders", [b"one", b"two"])
        >>> await delivery
        [BatchReceipt(partition=0, first_offset=0, count=2)]
        """
        has_columns = keys is not None or headers is not None or timestamps is not None
        has_properties = content_type is not None or ttl is not None or serializer is not None
        if not (has_columns or has_properties or priority or delay or partition is not None):
            delivery = self._add_plain(topic, values)
            if delivery is not None:
                return delivery
        many = self._settings.many(
            topic, values, keys, partition, headers, timestamps, priority, delay, content_type, ttl,
            serializer,
        )  # fmt: skip
        return await self._add_many(many)

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
            self._add = self._add_value = self._add_plain = _refuse_closed
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
        self._add = self._add_value = self._add_plain = _refuse_after_fork

    async def _wait_and_add(self, topic: str, *message: Any) -> Delivery:
        """Add the message once the topic is known and there is room."""
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        partition = message[_PARTITION]
        while True:
            self._check_open()
            if not self._accumulator.knows(topic, partition):
                await self._sender.learn(topic, partition)
            else:
                await self._wait_for_room(deadline)
            delivery = self._add(topic, *message)
            if delivery is not None:
                return delivery

    async def _add_many(self, many: Many) -> BatchDelivery:
        deadline = asyncio.get_running_loop().time() + self._settings.timeout
        self._check_open()
        core = self._sender.core
        while (bulk := self._settings.bulk(core, self._accumulator, many)) is None:
            await self._sender.learn(many.topic, many.partition)
        while bulk.prepare():
            self._check_open()
            if not self._accumulator.add_many(bulk):
                try:
                    await self._wait_for_room(deadline)
                except Overloaded as error:
                    error.add_note(f"{bulk.count:,} messages of this call were taken before it")
                    raise
        return bulk.delivery()

    def _check_open(self) -> None:
        if self._add in {_refuse_closed, _refuse_after_fork}:
            self._add()
        if self._is_closed:
            raise InvalidRequest("the producer is closed: make another")

    async def _wait_for_room(self, deadline: float) -> None:
        room = asyncio.Event()
        self._accumulator.when_room(room.set)
        try:
            async with asyncio.timeout_at(deadline):
                await room.wait()
        except TimeoutError as error:
            raise _overloaded(self._settings) from error


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
