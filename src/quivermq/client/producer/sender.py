"""The sender of a producer: encodes sealed pending batches and sends them, on an event loop.

One worker for each partition that has something to send: it keeps several batches under way, in
order, and ends when there is nothing left. The loop is woken once for a pending batch, not for a
message.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial

from quivermq import batches
from quivermq.batches import Compression, Frame
from quivermq.client.asyncio_transport import AsyncioConnection
from quivermq.client.core import Core
from quivermq.client.producer.accumulator import Accumulator
from quivermq.client.producer.delivery import PendingBatch
from quivermq.client.producer.partition_stream import (
    IN_FLIGHT_BATCHES_MAX,
    Attempt,
    PartitionStream,
)
from quivermq.client.producer.sequencer import InFlightBatch, ProducerIdentity
from quivermq.client.producer.session_pool import ProducerSession
from quivermq.client.retry import Attempts
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError, TopicNotFound

# Asyncio itself does not keep tasks alive.
_finishing: set[asyncio.Task[None]] = set()


async def await_finishing() -> None:
    """Wait for producers on this event loop that were not closed, and are finishing."""
    await asyncio.sleep(0)  # some may be about to begin
    loop = asyncio.get_running_loop()
    mine = [task for task in list(_finishing) if task.get_loop() is loop]
    await asyncio.gather(*mine, return_exceptions=True)


class Sender:
    """Sends the batches of an accumulator. Lives on the event loop that it was made on."""

    def __init__(
        self,
        core: Core,
        accumulator: Accumulator,
        *,
        compression: Compression,
        identity: ProducerIdentity | None,
        sequence: int,
    ) -> None:
        self.core = core
        self._accumulator = accumulator
        self._compression = compression
        self._identity = identity
        self._sequence = sequence
        self._session: ProducerSession | None = None
        self._session_lock = asyncio.Lock()
        # What it holds may have to be encoded while the program ends.
        batches.prepare_arrays()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._workers: dict[tuple[str, int], _Worker] = {}

    def wake(self) -> None:
        """There is something to look at. Any thread may call this."""
        self._loop.call_soon_threadsafe(self.look)

    def finish_soon(self, finish: Callable[[], Coroutine[None, None, None]]) -> bool:
        """Let it finish on its event loop; False if that does not run. The garbage collector may
        call this, at any point of any thread."""

        def begin() -> None:
            task = self._loop.create_task(finish())
            _finishing.add(task)
            task.add_done_callback(_finishing.discard)

        if self._loop.is_running():
            with suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(begin)
                return True
        return False

    def look(self) -> None:
        """Hand what is ready to the workers, and look again when the next pending batch is due."""
        if self._is_closed:
            return
        ready, look_at = self._accumulator.take_ready()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if look_at is not None:
            self._timer = self._loop.call_at(look_at, self.look)
        for pending_batch in ready:
            place = pending_batch.topic, pending_batch.partition
            worker = self._workers.get(place)
            if worker is None:
                worker = self._workers[place] = _Worker(self, *place)
            worker.push(pending_batch)

    async def learn(self, topic: str, partition: int | None) -> None:
        """Find out how many partitions a topic has, for the accumulator."""
        attempts = self.core.router.attempts(f"producing to {topic}")
        route = await self.core.router.route(topic, attempts, create=True, partition=partition)
        self._accumulator.limits = self.core.router.limits
        self._accumulator.learn(topic, len(route.leaders))

    async def stream(self, topic: str, partition: int, deadline: float) -> PartitionStream:
        """The stream to a partition."""
        router = self.core.router
        what = f"producing to {topic}/{partition}"
        attempts = Attempts(router.transport, router.timeout, what, deadline=deadline)
        try:
            route = await router.route(topic, attempts, create=True, partition=partition)
        except TopicNotFound:
            self._accumulator.forget(topic)
            raise
        self._accumulator.learn(topic, len(route.leaders))
        session = await self._get_session(attempts)
        return session.stream(route, partition)

    def encode(self, pending_batch: PendingBatch, stream: PartitionStream) -> InFlightBatch:
        """A pending batch, laid out as a batch."""
        tracer = self.core.router.tracer
        settle = partial(self._accumulator.settle, pending_batch)
        if tracer is None:
            frame = self._encode(pending_batch, stream, pending_batch.headers)
            return InFlightBatch(frame, pending_batch.deadline, settle)
        span = tracer.send_batch(
            pending_batch.topic,
            pending_batch.partition,
            pending_batch.headers,
            pending_batch.messages,
        )
        # Whatever becomes of it: it may also be given up before it is sent.
        pending_batch.when_settled(lambda: span.end(pending_batch.outcome))
        frame = self._encode(pending_batch, stream, span.headers)
        return InFlightBatch(frame, pending_batch.deadline, settle, span.context)

    def _encode(
        self,
        pending_batch: PendingBatch,
        stream: PartitionStream,
        headers: Sequence[Mapping[str, bytes] | None] | None,
    ) -> Frame:
        if pending_batch.frame is not None:
            return pending_batch.frame
        sequencer = stream.sequencer
        return batches.encode_batch(
            pending_batch.values,
            keys=pending_batch.keys,
            headers=headers,
            timestamps=pending_batch.timestamps,
            compression=self._compression,
            origin=batches.Origin(
                *(sequencer.identity or ProducerIdentity(0)),
                sequencer.next_sequence,
                pending_batch.priority,
                pending_batch.not_before_ms,
            ),
            limits=self.core.router.limits,
        )

    def give_up(self, pending_batch: PendingBatch, error: QuiverError) -> None:
        """A pending batch cannot be sent."""
        self._accumulator.settle(pending_batch, error)

    async def close(self) -> None:
        """Stop; what is not settled is given up."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        workers = list(self._workers.values())
        await asyncio.gather(*(worker.stop() for worker in workers))
        closed = ConnectionFailed("the producer was closed before the message was delivered")
        for pending_batch in self._accumulator.seal_all():
            self._accumulator.settle(pending_batch, closed)
        if self._session is not None:
            self._session.abandon()
        await self.core.transport.close()

    async def _get_session(self, attempts: Attempts) -> ProducerSession:
        async with self._session_lock:
            if self._session is None:
                sessions = self.core.producing.sessions
                is_own = self._identity is None
                identity = self._identity or await sessions.new_identity(attempts)
                self._session = ProducerSession(
                    self.core.router,
                    identity,
                    sessions.new_identity,
                    sequence=self._sequence,
                    is_replaceable=is_own,
                )
            return self._session


class _Worker:
    """Sends the pending batches of one partition, in order."""

    def __init__(self, sender: Sender, topic: str, partition: int) -> None:
        self._sender = sender
        self._place = topic, partition
        self._pending_batches: deque[PendingBatch] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def push(self, pending_batch: PendingBatch) -> None:
        """One more to send."""
        self._pending_batches.append(pending_batch)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Send nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        try:
            while self._pending_batches:
                try:
                    deadline = self._pending_batches[0].deadline
                    stream = await self._sender.stream(*self._place, deadline)
                    await self._send_batches(stream)
                except QuiverError as error:
                    self._give_up(error)
        finally:
            self._task = None

    def _give_up(self, error: QuiverError) -> None:
        """The first pending batch cannot be sent; nor can the others, unless they have more
        time."""
        now = asyncio.get_running_loop().time()
        self._sender.give_up(self._pending_batches.popleft(), error)
        while self._pending_batches and (
            not error.retriable or self._pending_batches[0].deadline <= now
        ):
            self._sender.give_up(self._pending_batches.popleft(), error)

    async def _send_batches(self, stream: PartitionStream) -> None:
        """Until nothing is left: settle what is answered, post what there is room for."""
        in_flight = stream.sequencer.in_flight
        while self._pending_batches or in_flight:
            self._wake.clear()
            if in_flight and stream.first_is_answered():
                await stream.settle_first()
            elif self._pending_batches and len(in_flight) < IN_FLIGHT_BATCHES_MAX:
                await self._post(stream, self._pending_batches.popleft())
            else:
                await self._answer_or_pending_batch(stream)
            in_flight = stream.sequencer.in_flight

    async def _post(self, stream: PartitionStream, pending_batch: PendingBatch) -> None:
        try:
            batch = self._sender.encode(pending_batch, stream)
        except InvalidRequest as error:
            self._sender.give_up(pending_batch, error)
            return
        await stream.post(batch)
        attempt = batch.attempt
        if isinstance(attempt, Attempt) and isinstance(attempt.connection, AsyncioConnection):
            attempt.connection.when_answered(attempt.request_id, self._wake.set)

    async def _answer_or_pending_batch(self, stream: PartitionStream) -> None:
        """Wait until there is something to do; an answer that does not come is something too."""
        attempt = stream.sequencer.in_flight[0].attempt
        deadline = attempt.deadline if isinstance(attempt, Attempt) else 0.0
        loop = asyncio.get_running_loop()
        timer = loop.call_at(deadline, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        if loop.time() >= deadline and not stream.first_is_answered():
            await stream.settle_first()
