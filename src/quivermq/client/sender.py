"""The sender of a producer: takes sealed crates, lays them out, and ships them. On an event loop.

One worker for each partition that has something to send: it keeps several batches under way, in
order, and ends when there is nothing left. The loop is woken once for a crate, not for a message.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial

from quivermq.batches import Compression, Origin, encode_batch
from quivermq.client.accumulator import Accumulator
from quivermq.client.asyncio_door import AsyncioConnection
from quivermq.client.core import Core
from quivermq.client.deliveries import Crate
from quivermq.client.lanes import Lane
from quivermq.client.outlets import Identity, Shipment
from quivermq.client.retry import Attempts
from quivermq.client.shipping import IN_FLIGHT_BATCHES_MAX, Stream, Ticket
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError, TopicNotFound

# Asyncio itself does not keep tasks alive.
_finishing: set[asyncio.Task[None]] = set()


async def all_finished() -> None:
    """Wait for those on this event loop that finish because nobody closed them."""
    await asyncio.sleep(0)  # some may be about to begin
    loop = asyncio.get_running_loop()
    mine = [task for task in list(_finishing) if task.get_loop() is loop]
    await asyncio.gather(*mine, return_exceptions=True)


class Sender:
    """Ships what an accumulator gathers. Lives on the event loop that it was made on."""

    def __init__(
        self,
        core: Core,
        accumulator: Accumulator,
        *,
        compression: Compression,
        identity: Identity | None,
        sequence: int,
    ) -> None:
        self.core = core
        self._accumulator = accumulator
        self._compression = compression
        self._identity = identity
        self._sequence = sequence
        self._lane: Lane | None = None
        self._lane_lock = asyncio.Lock()
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
        """Hand what is ready to the workers, and look again when the next crate is due."""
        if self._is_closed:
            return
        ready, look_at = self._accumulator.take_ready()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if look_at is not None:
            self._timer = self._loop.call_at(look_at, self.look)
        for crate in ready:
            place = crate.topic, crate.partition
            worker = self._workers.get(place)
            if worker is None:
                worker = self._workers[place] = _Worker(self, *place)
            worker.push(crate)

    async def learn(self, topic: str) -> None:
        """Find out how many partitions a topic has, for the accumulator."""
        attempts = self.core.router.attempts(f"producing to {topic}")
        route = await self.core.router.route(topic, attempts, create=True)
        self._accumulator.limits = self.core.router.limits
        self._accumulator.learn(topic, len(route.leaders))

    async def stream(self, topic: str, partition: int, deadline: float) -> Stream:
        """The stream to a partition."""
        router = self.core.router
        what = f"producing to {topic}/{partition}"
        attempts = Attempts(router.door, router.timeout, what, deadline=deadline)
        try:
            route = await router.route(topic, attempts, create=True)
        except TopicNotFound:
            self._accumulator.forget(topic)
            raise
        self._accumulator.learn(topic, len(route.leaders))
        lane = await self._get_lane(attempts)
        return lane.stream(route, route.check(partition))

    def shipment(self, crate: Crate, stream: Stream) -> Shipment:
        """A crate, laid out as a batch."""
        outlet = stream.outlet
        frame = encode_batch(
            crate.values,
            keys=crate.keys,
            headers=crate.headers,
            compression=self._compression,
            origin=Origin(
                *(outlet.identity or Identity(0)),
                outlet.next_sequence,
                crate.priority,
                crate.not_before_ms,
            ),
            limits=self.core.router.limits,
        )
        return Shipment(frame, crate.deadline, partial(self._accumulator.settle, crate))

    def give_up(self, crate: Crate, error: QuiverError) -> None:
        """A crate cannot be sent."""
        self._accumulator.settle(crate, error)

    async def close(self) -> None:
        """Stop; what is not settled is given up."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        workers = list(self._workers.values())
        await asyncio.gather(*(worker.stop() for worker in workers))
        closed = ConnectionFailed("the producer was closed before the message was delivered")
        for crate in self._accumulator.seal_all():
            self._accumulator.settle(crate, closed)
        if self._lane is not None:
            self._lane.abandon()
        await self.core.door.close()

    async def _get_lane(self, attempts: Attempts) -> Lane:
        async with self._lane_lock:
            if self._lane is None:
                lanes = self.core.producing.lanes
                is_own = self._identity is None
                identity = self._identity or await lanes.new_identity(attempts)
                self._lane = Lane(
                    self.core.router,
                    identity,
                    lanes.new_identity,
                    sequence=self._sequence,
                    is_replaceable=is_own,
                )
            return self._lane


class _Worker:
    """Sends the crates of one partition, in order."""

    def __init__(self, sender: Sender, topic: str, partition: int) -> None:
        self._sender = sender
        self._place = topic, partition
        self._crates: deque[Crate] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def push(self, crate: Crate) -> None:
        """One more to send."""
        self._crates.append(crate)
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
            while self._crates:
                try:
                    deadline = self._crates[0].deadline
                    stream = await self._sender.stream(*self._place, deadline)
                    await self._ship(stream)
                except QuiverError as error:
                    self._give_up(error)
        finally:
            self._task = None

    def _give_up(self, error: QuiverError) -> None:
        """The first crate cannot be sent; nor can the others, unless they have more time."""
        now = asyncio.get_running_loop().time()
        self._sender.give_up(self._crates.popleft(), error)
        while self._crates and (not error.retriable or self._crates[0].deadline <= now):
            self._sender.give_up(self._crates.popleft(), error)

    async def _ship(self, stream: Stream) -> None:
        """Until nothing is left: settle what is answered, post what there is room for."""
        flying = stream.outlet.flying
        while self._crates or flying:
            self._wake.clear()
            if flying and stream.first_is_answered():
                await stream.settle_first()
            elif self._crates and len(flying) < IN_FLIGHT_BATCHES_MAX:
                await self._post(stream, self._crates.popleft())
            else:
                await self._answer_or_crate(stream)
            flying = stream.outlet.flying

    async def _post(self, stream: Stream, crate: Crate) -> None:
        try:
            shipment = self._sender.shipment(crate, stream)
        except InvalidRequest as error:
            self._sender.give_up(crate, error)
            return
        await stream.post(shipment)
        ticket = shipment.ticket
        if isinstance(ticket, Ticket) and isinstance(ticket.connection, AsyncioConnection):
            ticket.connection.when_answered(ticket.request_id, self._wake.set)

    async def _answer_or_crate(self, stream: Stream) -> None:
        """Wait until there is something to do; an answer that does not come is something too."""
        ticket = stream.outlet.flying[0].ticket
        deadline = ticket.deadline if isinstance(ticket, Ticket) else 0.0
        loop = asyncio.get_running_loop()
        timer = loop.call_at(deadline, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        if loop.time() >= deadline and not stream.first_is_answered():
            await stream.settle_first()
