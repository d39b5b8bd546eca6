"""Answers polls: leases messages to consumers, and lets consumers wait for some."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from quivermq.errors import (
    Corrupt,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    Overloaded,
    QuiverError,
    StorageFailed,
    Timeout,
    UnsupportedFormat,
)
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.frame_cache import FrameCache
from quivermq.node.delivery.lease_reader import LeaseRead, PendingLease, beyond, read_all, runs_of
from quivermq.node.delivery.rate_limit_client import RateLimitClient
from quivermq.node.delivery.registry import DispatcherRegistry, open_all
from quivermq.node.delivery.wait_table import Waiter
from quivermq.node.handlers.open_poll import (
    WAIT_MS_MAX,
    OpenPoll,
    PollAnswers,
    bytes_wanted,
    check_names,
    check_poll,
)
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.queue import Interval, LeaseManager
from quivermq.wire import proto

_NOT_SERVED: Final = (
    NotLeader, NotEnoughReplicas, InvalidRequest, Corrupt, StorageFailed, UnsupportedFormat,
)  # fmt: skip
"""Why a partition may be left out of a poll for several."""
_EXPIRING_S: Final = 1.0
"""A poll that finds only expired messages looks on for so long past its deadline at most."""
_EXPIRED: Final = "expired"
"""The reason in dead letters."""
_VAIN_S: Final = 0.002
# A client that asks for partitions that are led elsewhere hears of it after so long at the latest.
_ELSEWHERE_S: Final = 0.25
_PARTITIONS_AT_ONCE: Final = 500
"""So many are looked at before others on the loop go on."""
_PACKED_HERE_BYTES: Final = 1 << 20
"""Batches in memory are cut on the event loop if no more than this is leased."""


class PollHandler:
    """Answers polls of partitions that are led here."""

    def __init__(
        self,
        dispatchers: DispatcherRegistry,
        limits: RateLimitClient,
        cache: FrameCache,
        readers: Executor,
        answers: PollAnswers,
    ) -> None:
        self._dispatchers = dispatchers
        self._limits = limits
        self._cache = cache
        self._readers = readers
        self._answers = answers

    def handlers(self) -> dict[str, Handler]:
        return {"await_ready": self.await_ready}

    def bulky(self) -> dict[str, Bulky]:
        return {"poll": Bulky(self.poll, lambda request: bytes_wanted(request.poll))}

    async def poll(self, request: proto.Request, room: Room) -> Answer:
        body = request.poll
        check_poll(body)
        loop = asyncio.get_running_loop()
        wait_s = min(body.wait_ms, WAIT_MS_MAX) / 1000
        poll = OpenPoll(body, room, loop.time() + wait_s)
        waiter: Waiter | None = None
        try:
            while True:
                dispatchers = self._led(poll)
                poll.throttled_s = 0.0
                await open_all(dispatchers, body.group, at_end=body.start_latest)
                await self._take(poll, dispatchers)
                if poll.pending:
                    return self._answers.answer(poll)
                # A poll that waits for messages takes no room from others.
                await room(0)
                if poll.has_expired and loop.time() < poll.deadline_s + _EXPIRING_S:
                    poll.has_expired = poll.is_in_vain = False
                    await asyncio.sleep(0)
                    continue
                if poll.is_in_vain:
                    # Others were faster, or there is no leave to deliver: never in a hot circle.
                    poll.is_in_vain = False
                    await asyncio.sleep(_VAIN_S)
                if loop.time() >= poll.deadline_s:
                    return self._answers.nothing(poll)
                was_woken = waiter is not None
                waiter = Waiter(body.consumer, body.messages_max)
                if not await self._wait(poll, dispatchers, waiter, in_front=was_woken):
                    return self._answers.nothing(poll)
        finally:
            # A poll that was woken, and took nothing, lets the next one look.
            if waiter is not None and waiter.woken.done():
                for number in dict.fromkeys(body.partitions):
                    self._dispatch(body, number)

    def _dispatch(self, body: proto.Poll, number: int) -> None:
        try:
            self._dispatchers.leading(body.topic, body.topic_id, number).dispatch(body.group)
        except QuiverError:
            # Gone: so are all polls that waited there.
            return

    def _led(self, poll: OpenPoll) -> list[DeliveryDispatcher]:
        """The dispatchers of those partitions that are led here; raises if there are none."""
        body = poll.body
        found: list[DeliveryDispatcher] = []
        elsewhere: list[int] = []
        refusal: QuiverError | None = None
        for number in dict.fromkeys(body.partitions):
            try:
                found.append(self._dispatchers.leading(body.topic, body.topic_id, number))
            except _NOT_SERVED as error:
                elsewhere.append(number)
                refusal = refusal or error
        if refusal is not None and not found:
            raise refusal
        if elsewhere and not poll.elsewhere:
            now_s = asyncio.get_running_loop().time()
            poll.deadline_s = min(poll.deadline_s, now_s + _ELSEWHERE_S)
        poll.elsewhere = elsewhere
        return found

    # Waiting.

    async def _wait(
        self,
        poll: OpenPoll,
        dispatchers: list[DeliveryDispatcher],
        waiter: Waiter,
        *,
        in_front: bool,
    ) -> bool:
        """Wait until there may be something; False if there is nothing by the deadline."""
        group = poll.body.group
        for dispatcher in dispatchers:
            dispatcher.park(group, waiter, in_front=in_front)
        is_coming = False
        try:
            # Something may have come while the last of the partitions was looked at; or a
            # leadership was lost, and no waiter is woken there any more.
            if not await _first_ready(dispatchers, group):
                async with asyncio.timeout_at(poll.deadline_s):
                    await waiter.woken
            is_coming = True
        except TimeoutError:
            pass
        finally:
            for dispatcher in dispatchers:
                dispatcher.leave(group, waiter)
                if waiter.is_woken and not is_coming:
                    # Woken in the moment that it gave up: what it was woken for is for others.
                    dispatcher.dispatch_later(group)
        return is_coming

    async def await_ready(self, request: proto.Request) -> proto.Response:
        """Tell which partitions have something to lease, once any has."""
        body = request.await_ready
        check_names(body.group, body.partitions)
        loop = asyncio.get_running_loop()
        wait_s = min(body.wait_ms, WAIT_MS_MAX) / 1000
        wanted = proto.Poll(
            topic=body.topic, topic_id=body.topic_id, partitions=body.partitions, group=body.group
        )
        poll = OpenPoll(wanted, _no_room, loop.time() + wait_s)
        waiter: Waiter | None = None
        while True:
            dispatchers = self._led(poll)
            for dispatcher in dispatchers:
                dispatcher.remember_name(body.consumer, body.consumer_name)
            await open_all(dispatchers, body.group, at_end=body.start_latest)
            ready = await _all_ready(dispatchers, body.group)
            if ready or loop.time() >= poll.deadline_s:
                break
            in_front = waiter is not None
            waiter = Waiter(body.consumer, 1)
            if not await self._wait(poll, dispatchers, waiter, in_front=in_front):
                break
        for dispatcher in ready:
            dispatcher.dispatch_later(body.group)
        numbers = [dispatcher.hosted.name.partition for dispatcher in ready]
        return proto.Response(ready=proto.Ready(partitions=numbers, elsewhere=poll.elsewhere))

    # Leasing.

    async def _take(self, poll: OpenPoll, dispatchers: list[DeliveryDispatcher]) -> None:
        """Lease and read what is ready; `poll.pending` is what leaves."""
        troubles: list[QuiverError] = []
        poll.messages = 0
        try:
            for number, dispatcher in enumerate(dispatchers, 1):
                if poll.messages >= poll.body.messages_max:
                    break
                if number % _PARTITIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)
                try:
                    await self._lease_at(dispatcher, poll)
                except (NotLeader, Overloaded, Timeout, InvalidRequest) as error:
                    # It moved away meanwhile, or has trouble: the others are served.
                    troubles.append(error)
            if poll.pending:
                await self._read(poll)
            elif len(troubles) == len(dispatchers):
                # No message is another answer than no leader.
                raise troubles[0]
            if poll.body.auto_ack:
                await self._acknowledge(poll)
            elif poll.pending:
                await self._keep_leased(poll)
        except BaseException:
            self.give_all_back(poll)
            raise

    async def _lease_at(self, dispatcher: DeliveryDispatcher, poll: OpenPoll) -> None:
        body = poll.body
        dispatcher.remember_name(body.consumer, body.consumer_name)
        dispatcher.trim()
        wanted = poll.wanted(dispatcher)
        ready = dispatcher.ready(body.group, wanted)
        if not ready:
            return
        poll.is_in_vain = True
        # Should this one be held up, by a client that reads slowly, say, others get their chance.
        dispatcher.dispatch_later(body.group)
        if not poll.pending:
            # For all that may come, at once: no poll waits for room with leases in hand.
            await poll.room(poll.expected_bytes(dispatcher))
        # Last, as all that is waited for makes it old.
        await dispatcher.confirm()
        if not dispatcher.settings.rate_per_second:
            self._lease(dispatcher, poll, wanted, tokens=0)
            return
        # Not while it has something: messages that are leased do not wait for more.
        loop = asyncio.get_running_loop()
        wait_s = 0.0 if poll.pending else max(0.0, poll.deadline_s - loop.time())
        taken = await self._limits.take(body.topic, body.topic_id, ready, wait_s)
        poll.throttled_s = taken.again_s
        if taken.tokens:
            try:
                # What was confirmed before the wait is old.
                await dispatcher.confirm()
                self._lease(dispatcher, poll, taken.tokens, tokens=taken.tokens)
            except BaseException:
                self._limits.give_back(body.topic, taken.tokens)
                raise

    def _lease(
        self, dispatcher: DeliveryDispatcher, poll: OpenPoll, wanted: int, tokens: int
    ) -> None:
        given = poll.lease(dispatcher, wanted, tokens)
        if tokens > given:
            self._limits.give_back(poll.body.topic, tokens - given)

    # Reading.

    async def _read(self, poll: OpenPoll) -> None:
        """The batches of everything that is leased; what does not fit goes back."""
        reads = [LeaseRead(pending, self._cache) for pending in poll.pending]
        if can_read_here(reads):
            read_all(reads, poll.bytes_max)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._readers, read_all, reads, poll.bytes_max)
        self.take_over(poll, reads)

    def take_over(self, poll: OpenPoll, reads: Sequence[LeaseRead]) -> None:
        """Keep of a poll what was read for it; give back, or end, what is not delivered."""
        for read in reads:
            if read.trouble is not None:
                self._meet_trouble(read.pending.dispatcher, read.trouble)
            self._keep(read)
            if read.expired:
                self._expire(poll, read)
            self._return_surplus(poll, read.pending)
        poll.pending = [pending for pending in poll.pending if pending.sent.frames]

    async def read_leased(self, request: proto.Request, poll: OpenPoll) -> Answer:
        """The answer to a poll that has leased what it delivers."""
        try:
            await self._read(poll)
            await self._keep_leased(poll)
        except BaseException:
            self.give_all_back(poll)
            raise
        if poll.pending:
            return self._answers.answer(poll)
        poll.shorten(asyncio.get_running_loop().time())
        return await self.poll(request, poll.room)

    def _meet_trouble(self, dispatcher: DeliveryDispatcher, trouble: QuiverError) -> None:
        if isinstance(trouble, Corrupt | StorageFailed | UnsupportedFormat):
            # The log remembers what is damaged; its replica finds out, and repairs it.
            raise dispatcher.hosted.report_unreadable(trouble) from trouble
        if not isinstance(trouble, OffsetOutOfRange):
            raise trouble
        # Retention was faster: the group is told, and the poll goes on.
        dispatcher.trim()

    def _keep(self, read: LeaseRead) -> None:
        dispatcher = read.pending.dispatcher
        for frame in read.read:
            self._cache.add(dispatcher.hosted.id, frame)
        count = sum(frame.header.count for frame in read.pending.sent.frames)
        if count:
            seen = sum(map(len, read.pending.sent.frames)) / count
            dispatcher.message_bytes += (seen - dispatcher.message_bytes) / 4

    def _expire(self, poll: OpenPoll, read: LeaseRead) -> None:
        """Messages whose time is over: to the dead letters, or away."""
        pending, expired = read.pending, read.expired
        dispatcher, lease, group = pending.dispatcher, pending.leased.lease, poll.body.group
        now_ms = dispatcher.now_ms()
        if dispatcher.drop_expired:
            dispatcher.with_leases(
                lambda leases: leases.acknowledge(group, lease, expired), of=group
            )
        else:
            dispatcher.with_leases(
                lambda leases: leases.reject(group, lease, expired, _EXPIRED, now_ms), of=group
            )
        count = sum(end - start for start, end in expired)
        unused = min(pending.tokens, count)
        if unused:
            pending.tokens -= unused
            self._limits.give_back(poll.body.topic, unused)
        pending.lose(expired)
        # The poll goes on at once: there may be others behind them.
        poll.has_expired = True

    def _return_surplus(self, poll: OpenPoll, pending: PendingLease) -> None:
        surplus = beyond(pending.leased.pieces, pending.sent.end)
        if surplus:
            self._release(poll, pending, surplus)

    def _release(self, poll: OpenPoll, pending: PendingLease, intervals: list[Interval]) -> None:
        if pending.tokens:
            unused = min(pending.tokens, sum(end - start for start, end in intervals))
            pending.tokens -= unused
            self._limits.give_back(poll.body.topic, unused)
        pending.dispatcher.give_back(poll.body.group, pending.leased.lease, intervals)

    def give_all_back(self, poll: OpenPoll) -> None:
        for pending in poll.pending:
            self._release(poll, pending, runs_of(pending.leased.pieces))
        poll.pending = []

    async def _acknowledge(self, poll: OpenPoll) -> None:
        """At most once: done before it leaves. What cannot be done does not leave; what is done
        elsewhere does all the same, or it would be lost."""
        group = poll.body.group
        outcomes = await asyncio.gather(
            *(
                pending.dispatcher.commit_lease_ops(_acknowledging(poll.body, pending), of=group)
                for pending in poll.pending
            ),
            return_exceptions=True,
        )
        trouble: BaseException | None = None
        for pending, outcome in zip(list(poll.pending), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                trouble = trouble or outcome
                self._release(poll, pending, runs_of(pending.leased.pieces))
                poll.pending.remove(pending)
            elif outcome and not pending.lose(outcome):
                poll.pending.remove(pending)
        if trouble is not None and not poll.pending:
            raise trouble

    async def _keep_leased(self, poll: OpenPoll) -> None:
        """Nothing leaves whose lease was lost while its batches were read: with the leadership, by
        a seek, or since this broker stood still and another leads. No leader would know of it."""
        trouble: QuiverError | None = None
        for dispatcher in [pending.dispatcher for pending in poll.pending]:
            try:
                await dispatcher.confirm(is_leaving=True)
            except (NotLeader, Overloaded, Timeout) as error:
                trouble = trouble or error
        group = poll.body.group
        for pending in list(poll.pending):
            if not (
                pending.dispatcher.is_confirmed
                and pending.dispatcher.is_leased(group, pending.leased.lease)
            ):
                poll.pending.remove(pending)
                self._release(poll, pending, runs_of(pending.leased.pieces))
        if trouble is not None and not poll.pending:
            raise trouble


def can_read_here(reads: Sequence[LeaseRead]) -> bool:
    """Whether the batches are in memory, and few enough to be cut on the event loop."""
    return all(read.known is not None for read in reads) and (
        sum([read.leased_bytes for read in reads]) <= _PACKED_HERE_BYTES
    )


def _acknowledging(
    body: proto.Poll, pending: PendingLease
) -> Callable[[LeaseManager], list[Interval]]:
    intervals = runs_of(pending.pieces)
    return lambda leases: leases.acknowledge(
        body.group, pending.leased.lease, intervals, body.consumer
    )


async def _all_ready(dispatchers: list[DeliveryDispatcher], group: str) -> list[DeliveryDispatcher]:
    """Those that have something to lease."""
    found: list[DeliveryDispatcher] = []
    for first in range(0, len(dispatchers), _PARTITIONS_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        part = dispatchers[first : first + _PARTITIONS_AT_ONCE]
        found += [dispatcher for dispatcher in part if _is_ready(dispatcher, group)]
    return found


async def _first_ready(dispatchers: list[DeliveryDispatcher], group: str) -> bool:
    """Whether any has something to lease, or is closed."""
    for number, dispatcher in enumerate(dispatchers, 1):
        if dispatcher.is_closed or _is_ready(dispatcher, group):
            return True
        if number % _PARTITIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return False


def _is_ready(dispatcher: DeliveryDispatcher, group: str) -> bool:
    try:
        return bool(dispatcher.ready(group, 1))
    except (NotLeader, InvalidRequest):
        return False


async def _no_room(size: int) -> None:
    """Nothing is sent."""
