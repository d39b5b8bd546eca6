"""Receives messages for a connection of kombu: leases them, keeps the leases, and settles.

All of it happens on an event loop in a thread of its own, so that leases are extended while a
worker is busy with a task. The thread of the connection takes what has arrived, and hands over what
it settles; it never waits for either, unless it asks to.
"""

import asyncio
import logging
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeVar

from quivermq.aio import AsyncClient, AsyncLeasedMessage
from quivermq.errors import LeaseLost, QuiverError, TopicNotFound
from quivermq.integrations.kombu.names import GROUP

logger = logging.getLogger("quivermq.kombu")

BUFFERED_MAX: Final = 100
"""So many messages of a queue wait here for a consumer without a prefetch count."""

POLLED_MAX: Final = 1_000
"""So many messages come at once, however high the prefetch count is."""

_WAIT_SECONDS: Final = 2.0
_PAUSE_SECONDS: Final = 0.5
_CLOSE_SECONDS: Final = 5.0
_TRIES_MAX: Final = 3

T = TypeVar("T")

Outcome = Literal["ack", "requeue", "reject", "release"]
"""`requeue` counts as a failed delivery, `release` does not."""


class ReceiveFailed(ConnectionError):
    """A queue cannot be received from any more. Its consumers have to declare it again."""


class Quota:
    """The prefetch count of a channel, shared by its queues."""

    __slots__ = ("limit", "used")

    def __init__(self) -> None:
        self.limit = 0
        """0: none."""
        self.used = 0
        """Messages that have arrived and are not settled. Only the event loop changes it."""


class Arrival(NamedTuple):
    """A leased message, and the queue that it is for."""

    queue: str
    message: AsyncLeasedMessage


class _Settlement(NamedTuple):
    outcome: Outcome
    messages: Sequence[AsyncLeasedMessage]
    quota: Quota | None
    tries: int = 1


class _Poller:
    """Polls one queue, for as long as it has a consumer."""

    def __init__(self, queue: str, topic: str) -> None:
        self.queue = queue
        self.topic = topic
        self.quota: Quota | None = None
        """None: it has no consumer."""
        self.buffered = 0
        """Messages that have arrived and are not taken."""
        self.task: asyncio.Task[None] | None = None

    @property
    def room(self) -> int:
        """The number of messages that it may still lease."""
        if self.quota is None:
            return 0
        if self.quota.limit:
            return max(0, min(self.quota.limit - self.quota.used, POLLED_MAX))
        return max(0, BUFFERED_MAX - self.buffered)


class QueueReceiver:
    """The consuming half of a connection."""

    def __init__(
        self, connect: Callable[[], Coroutine[Any, Any, AsyncClient]], visibility: float
    ) -> None:
        self._visibility = visibility
        self._process = os.getpid()
        self._arrivals: deque[Arrival] = deque()
        self._failure: QuiverError | None = None
        self._changed = threading.Condition()
        self._reading, self._writing = socket.socketpair()
        for end in (self._reading, self._writing):
            end.setblocking(False)
        self._pollers: dict[str, _Poller] = {}
        self._held: dict[object, tuple[AsyncLeasedMessage, set[int]]] = {}
        """By lease: one of its messages, and the offsets that are not settled."""
        self._settlements: deque[_Settlement] = deque()
        self._is_posted = False
        self._room_changed = asyncio.Event()
        self._settling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        clients: list[AsyncClient] = []
        self._thread = threading.Thread(
            target=_run, args=(self._loop, clients), name="quivermq-kombu", daemon=True
        )
        self._thread.start()
        # Also at the end of a program that closes nothing.
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread, self._process)
        try:
            self._client = self._call(connect())
        except BaseException:
            self._is_closed = True
            self._stop()
            raise
        clients.append(self._client)
        self._call(self._start_extending())

    def fileno(self) -> int:
        """Readable when something has arrived, or has failed."""
        return self._reading.fileno()

    def consume(self, queue: str, topic: str, quota: Quota) -> None:
        """Receive the messages of a queue from here on, as many as the quota has room for."""
        self._post(self._consume, queue, topic, quota)

    def cancel(self, queue: str) -> None:
        """Receive no more of a queue; what has arrived and was not taken goes back."""
        if self._is_usable:
            self._call(self._cancel(queue))

    def take(self, timeout: float | None) -> list[Arrival]:
        """Everything that has arrived, as soon as there is something; empty: nothing in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._arrivals or self._failure, timeout)
            return self._take_all()

    def take_ready(self) -> list[Arrival]:
        """Everything that has arrived, for a caller that waits for `fileno` itself."""
        with suppress(BlockingIOError):
            while self._reading.recv(4096):
                pass
        with self._changed:
            return self._take_all()

    def give_back(self, arrivals: Sequence[Arrival]) -> None:
        """Have arrivals that were taken taken again, first."""
        if arrivals:
            with self._changed:
                self._arrivals.extendleft(reversed(arrivals))
            self._announce(())

    def get(self, topic: str, quota: Quota) -> AsyncLeasedMessage | None:
        """Lease one message at once, if there is one."""
        return self._call(self._get(topic, quota))

    def settle(
        self, outcome: Outcome, messages: Sequence[AsyncLeasedMessage], quota: Quota | None
    ) -> None:
        """Settle messages soon, without waiting for it."""
        if self._is_usable:
            self._settlements.append(_Settlement(outcome, messages, quota))
            if not self._is_posted:
                self._is_posted = True
                self._post(self._begin_settling)

    def flush(self) -> None:
        """Wait until everything so far is settled."""
        if self._is_usable:
            self._call(self._flush())

    def poke(self) -> None:
        """A prefetch count has changed."""
        if self._is_usable:
            self._post(self._room_changed.set)

    def close(self) -> None:
        """Settle what is to be settled, and give everything else back."""
        if not self._is_usable:
            return
        try:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._flush(), self._loop).result(_CLOSE_SECONDS)
        finally:
            self._is_closed = True
            self._stop()
            self._reading.close()
            self._writing.close()

    # ---- between the threads

    @property
    def _is_usable(self) -> bool:
        # The thread, and all leases, stay with the process that made them.
        return not self._is_closed and self._process == os.getpid()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _post(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended: so has everything that it did
            self._loop.call_soon_threadsafe(call, *arguments)

    def _take_all(self) -> list[Arrival]:
        if self._failure is not None and not self._arrivals:
            failure, self._failure = self._failure, None
            raise ReceiveFailed(str(failure)) from failure
        found = [self._arrivals.popleft() for _ in range(len(self._arrivals))]
        if found:
            self._post(self._count_taken, found)
        return found

    def _announce(self, arrivals: Iterable[Arrival], failure: QuiverError | None = None) -> None:
        with self._changed:
            self._arrivals.extend(arrivals)
            self._failure = failure or self._failure
            self._changed.notify_all()
        with suppress(BlockingIOError):  # it is readable already
            self._writing.send(b"\0")

    # ---- on the event loop: receiving

    def _consume(self, queue: str, topic: str, quota: Quota) -> None:
        poller = self._pollers.setdefault(queue, _Poller(queue, topic))
        poller.quota = quota
        if poller.task is None:
            poller.task = asyncio.create_task(self._poll(poller))
        self._room_changed.set()

    async def _cancel(self, queue: str) -> None:
        poller = self._pollers.get(queue)
        if poller is None:
            return
        quota, poller.quota = poller.quota, None
        with self._changed:
            back = [each.message for each in self._arrivals if each.queue == queue]
            kept = [each for each in self._arrivals if each.queue != queue]
            self._arrivals.clear()
            self._arrivals.extend(kept)
        poller.buffered = 0
        self._room_changed.set()
        if back:
            self._settlements.append(_Settlement("release", back, quota))
            self._begin_settling()

    def _count_taken(self, arrivals: Sequence[Arrival]) -> None:
        for each in arrivals:
            if (poller := self._pollers.get(each.queue)) is not None:
                poller.buffered = max(0, poller.buffered - 1)
        self._room_changed.set()

    async def _poll(self, poller: _Poller) -> None:
        try:
            while poller.quota is not None:
                if not (room := poller.room):
                    self._room_changed.clear()
                    await self._room_changed.wait()
                    continue
                try:
                    messages = await self._client.poll(
                        poller.topic, GROUP, room, _WAIT_SECONDS, self._visibility
                    )
                except QuiverError as error:
                    if not error.retriable:
                        raise
                    logger.warning("queue %r: %s; tried again", poller.queue, error)
                    await asyncio.sleep(_PAUSE_SECONDS)
                else:
                    await self._arrive(poller, messages)
        except QuiverError as error:
            if poller.quota is not None:
                self._announce((), error)
        finally:
            poller.task = None
            if self._pollers.get(poller.queue) is poller:
                del self._pollers[poller.queue]

    async def _arrive(self, poller: _Poller, messages: list[AsyncLeasedMessage]) -> None:
        # Other queues of the channel may have used its prefetch count meanwhile.
        room = poller.room
        # Messages that came back stand before fresh ones, whatever their priority.
        messages.sort(key=_urgency)
        surplus = messages[room:]
        del messages[room:]
        if messages and poller.quota is not None:
            self._hold(messages, poller.quota)
            poller.buffered += len(messages)
            self._announce([Arrival(poller.queue, message) for message in messages])
        if surplus:
            with suppress(QuiverError):  # then their lease ends
                await self._client.release(surplus)

    async def _get(self, topic: str, quota: Quota) -> AsyncLeasedMessage | None:
        await self._flush()
        messages = await self._client.poll(topic, GROUP, 1, 0.0, self._visibility)
        self._hold(messages, quota)
        return messages[0] if messages else None

    # ---- on the event loop: leases

    def _hold(self, messages: Iterable[AsyncLeasedMessage], quota: Quota) -> None:
        for message in messages:
            _, offsets = self._held.setdefault(message.lease, (message, set()))
            offsets.add(message.offset)
            quota.used += 1

    def _let_go(self, messages: Iterable[AsyncLeasedMessage], quota: Quota | None) -> None:
        for message in messages:
            _, offsets = self._held.get(message.lease, (message, set()))
            offsets.discard(message.offset)
            if not offsets:
                self._held.pop(message.lease, None)
            if quota is not None:
                quota.used = max(0, quota.used - 1)
        self._room_changed.set()

    async def _start_extending(self) -> None:
        # By a weak reference: a receiver that is forgotten ends.
        task = asyncio.create_task(_extend_for_ever(weakref.ref(self), self._visibility / 4))
        self._tasks.add(task)

    async def extend(self) -> None:
        """Extend every lease, on the event loop."""
        for lease, (message, _) in list(self._held.items()):
            if lease not in self._held:
                continue  # settled meanwhile
            try:
                await message.extend(self._visibility)
            except (LeaseLost, TopicNotFound) as error:
                # An ack may still be in time, unless another consumer has the message by then.
                if self._held.pop(lease, None) is not None:
                    logger.warning("%s", error)
            except QuiverError as error:
                logger.warning("%r could not be extended: %s", lease, error)

    # ---- on the event loop: settling

    def _begin_settling(self) -> None:
        # First: what is appended from here on is posted again.
        self._is_posted = False
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle_all())

    async def _settle_all(self) -> None:
        try:
            while self._settlements:
                waiting = [self._settlements.popleft() for _ in range(len(self._settlements))]
                for each in waiting:
                    self._let_go(each.messages, each.quota)
                for outcome in ("ack", "requeue", "reject", "release"):
                    some = [each for each in waiting if each.outcome == outcome]
                    if some:
                        await self._send(some)
        finally:
            self._settling = None

    async def _send(self, some: Sequence[_Settlement]) -> None:
        messages = [message for each in some for message in each.messages]
        try:
            match some[0].outcome:
                case "ack":
                    await self._client.ack(messages)
                case "requeue":
                    await self._client.nack(messages, 0)
                case "reject":
                    await self._client.reject(messages, "rejected by a consumer")
                case "release":
                    await self._client.release(messages)
        except TopicNotFound as error:
            logger.debug("%s", error)  # the queue was deleted, and everything in it
        except LeaseLost as error:
            logger.warning("%s", error)
        except QuiverError as error:
            again = [each._replace(quota=None, tries=each.tries + 1) for each in some]
            again = [each for each in again if error.retriable and each.tries <= _TRIES_MAX]
            self._settlements.extendleft(reversed(again))
            logger.warning("%s", error)

    async def _flush(self) -> None:
        self._begin_settling()
        while self._settling is not None:
            await asyncio.wait([self._settling])


def _urgency(message: AsyncLeasedMessage) -> int:
    return -message.priority


async def _extend_for_ever(receiver: "weakref.ref[QueueReceiver]", seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        if (found := receiver()) is None:
            return
        await found.extend()
        del found


def _run(loop: asyncio.AbstractEventLoop, clients: Sequence[AsyncClient]) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(_end(clients))
    finally:
        loop.close()


async def _end(clients: Sequence[AsyncClient]) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        # It gives back every lease of this consumer, also of a poll that was just cancelled.
        with suppress(QuiverError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await client.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, process: int) -> None:
    if process != os.getpid() or not thread.is_alive():
        return
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(2 * _CLOSE_SECONDS)
