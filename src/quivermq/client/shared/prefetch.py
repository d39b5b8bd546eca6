"""Prefetching for a subscription: keeps messages coming and their leases alive, on an event
loop."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import count, groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from quivermq.client.ask_leaders import recover_partitions
from quivermq.client.checks import check_number
from quivermq.client.core import Core
from quivermq.client.deserialize import Deserializer, kind_with_data
from quivermq.client.retry import Attempts
from quivermq.client.router import LeaderPartitions
from quivermq.client.shared.ack_batcher import AckBatcher
from quivermq.client.shared.delivery_run import DeliveryRun
from quivermq.client.shared.in_hand import InHandTracker, Loop, Worker
from quivermq.client.shared.key_order import GRACE_SECONDS, KeyOrder
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import (
    ACK,
    RELEASE,
    Lease,
    Settlement,
    SettlementTerms,
    extend_terms,
    settlements_of,
)
from quivermq.client.shared.outbox import SettlementOutbox
from quivermq.client.shared.poll import PollRequest, rotate_leaders
from quivermq.client.shared.prefetch_buffer import PrefetchBuffer
from quivermq.client.topic_choice import TopicChoice, TopicLookup, Topics
from quivermq.errors import InvalidRequest, LeaseLost, QuiverError, TopicNotFound
from quivermq.intervals import IntervalSet

PREFETCH_MAX: Final = 100_000
CONCURRENCY_MAX: Final = 1_000


class SubscribeOptions(NamedTuple):
    """The parameters of `subscribe`."""

    topics: Topics
    group: str
    prefetch: int
    visibility: float
    ack: str
    concurrency: int
    start: str
    pattern: bool = False
    ordered_by_key: bool = False
    deserializer: Deserializer | None = None

    def check(self, handler: object) -> None:
        """Raise `InvalidRequest` unless it can be done."""
        for name, most in (("prefetch", PREFETCH_MAX), ("concurrency", CONCURRENCY_MAX)):
            check_number(name, getattr(self, name), least=1, whole=True)
            if getattr(self, name) > most:
                raise InvalidRequest(f"{name} must be at most {most:,}: {getattr(self, name)!r}")
        if handler is not None and not callable(handler):
            raise InvalidRequest(
                f"a handler is called with a message: {handler!r} cannot be called"
            )
        kind_with_data(LeasedFields, self.deserializer)
        if self.ordered_by_key and handler is None:
            raise InvalidRequest("ordered_by_key is for handlers: one loop has all in its order")

    def poll_request(
        self, core: Core, settle: Callable[[Sequence[Settlement]], Any]
    ) -> PollRequest:
        """The request that is polled again and again, checked."""
        return core.consuming.poll_request(
            self.topics,
            self.group,
            self.prefetch,
            WAIT_SECONDS,
            self.visibility,
            self.ack,
            self.start,
            settle,
            pattern=self.pattern,
        )

    def __str__(self) -> str:
        return f"subscription of group {self.group!r} to {self.topics!r}"


def checked_list_size(max_messages: int | None) -> int:
    """How many messages a list may have; None: as many as there are."""
    if max_messages is None:
        return PREFETCH_MAX
    check_number("max_messages", max_messages, least=1, whole=True)
    return max_messages


# A parked poll does not hear of partitions that its leader has come to lead: so never for long.
WAIT_SECONDS: Final = 2.0
REFRESH_SECONDS: Final = 2.0
EXTEND_SECONDS_MIN: Final = 0.02
DUE_SECONDS: Final = 0.1
DUE_MAX: Final = 100
"""Messages that may be taken beside the one that a key waits for; see `Prefetcher._due`."""

_COUNT_OF: Final = attrgetter("count")


LeaderKey = tuple[str, int]
"""A topic, and the broker that leads partitions of it."""


class Prefetcher:
    """Polls for one subscription: keeps messages ready, and extends their leases."""

    def __init__(
        self,
        core: Core,
        request: PollRequest,
        prefetch: int,
        kind: type[LeasedFields],
        on_arrival: Callable[[], None],
        *,
        ordered_by_key: bool = False,
    ) -> None:
        self.error: QuiverError | None = None
        """Why it ended by itself."""
        self.is_closing = False
        """It polls no more."""
        self._is_closed = False
        """Nor can anything be settled."""
        self._core = core
        self.tracer = core.router.tracer
        self._request = request
        self._prefetch = prefetch
        self._is_auto_ack = request.auto_ack
        self._on_arrival = on_arrival
        self._loop = asyncio.get_running_loop()
        self.in_hand = InHandTracker(self._loop.time)
        self._visibility_s = request.visibility_ms / 1000
        self._left: dict[Lease, IntervalSet] = {}
        """Messages that are not settled, of leases that this consumer holds."""
        self._lost: dict[Lease, IntervalSet] = {}
        """The same of leases that ended while their messages are in hand: unless another consumer
        has them by then, they can still be acknowledged."""
        self._until: dict[Lease, float] = {}
        self._order = KeyOrder() if ordered_by_key else None
        # What waits for others of its key is looked at one by one.
        self._buffer = PrefetchBuffer(kind, self._left, packs=not ordered_by_key)
        """Not handed out yet."""
        self._ack_batcher = AckBatcher(core.router, core.consuming.settling, self._wake)
        self.outbox = SettlementOutbox(self, lambda: self._ack_batcher.is_busy or self._has_runs())
        """For threads."""
        self._choice = request.choice or TopicChoice((request.topic,))
        self._lookup = TopicLookup(core.offsets.names, self._loop.time)
        self._topics: tuple[str, ...] = ()
        self._leaders: dict[LeaderKey, LeaderPartitions] = {}
        self._pollers: dict[LeaderKey, asyncio.Task[None]] = {}
        self._asked: set[LeaderKey] = set()
        """Whose answers are on their way."""
        self._extensions: set[asyncio.Task[None]] = set()
        self._turns = count()
        self._credit_changed = asyncio.Event()
        self._refresh_soon = asyncio.Event()
        # What is fetched ahead is of no caller's span.
        with nullcontext() if self.tracer is None else self.tracer.apart():
            self._supervisor = asyncio.create_task(self._supervise())
        self._lease_extender = asyncio.create_task(self._extend_leases())

    # ---- handing out

    def pop(self, worker: Worker) -> LeasedFields | None:
        """The next message, if there is one; it is in the hand of `worker` from then on. Any
        thread may call this."""
        if self._order is not None:
            return self._pop_in_order(self._order, worker)
        made = self._buffer.made
        message: LeasedFields | None
        try:
            message = found = made.popleft()
        except IndexError:
            message = self._buffer.pop()
        else:
            if found.lease not in self._left and found.lease.token:
                # Another consumer may have it by now.
                message = self._buffer.pop()
        if message is None:
            self.in_hand.empty(worker)
            return None
        if not made or self._is_auto_ack:
            self._look_for_room()
        self.in_hand.take_one(worker, message)
        return message

    @property
    def gives_runs(self) -> bool:
        """Threads may be given several messages in a row."""
        # Of a key that failed the next message waits, and each delivery has a span of its own.
        return self._order is None and self.tracer is None

    def take_run(self, owner: int | object, most: int) -> DeliveryRun | None:
        """Messages in a row, up to so many, for a handler, by its number, or for a loop."""
        run = None if self.is_closing else self._buffer.take_run(most)
        if run is None:
            self.in_hand.leave_run(owner)
            return None
        self._look_for_room()
        self.in_hand.take_run(owner, run)
        if self.is_closing:
            # The event loop may have given back all else before it knew of the run.
            self._loop.call_soon_threadsafe(run.take_back, self._buffer.made)
            self._loop.call_soon_threadsafe(self._give_back_waiting)
            return None
        if len(run.rest) > 1:
            self.outbox.wake()
        return run

    def leave_run(self, owner: object, worker: Loop, last: LeasedFields | None) -> None:
        """A loop is left; it still has the last message in hand, if that is not None."""
        run = self.in_hand.runs.get(owner)
        if run is not None:
            run.take_back(self._buffer.made)
        if last is not None:
            self.in_hand.take_one(worker, last)
        self.in_hand.leave_run(owner)
        self._on_arrival()

    def _has_runs(self) -> bool:
        return any(run.is_long for run in list(self.in_hand.runs.values()))

    def look_at_runs(self) -> list[tuple[DeliveryRun, int]]:
        """The runs of handlers, each with the offset up to which its handler is done."""
        runs = list(self.in_hand.runs.items())
        found = [(run, run.done_until()) for owner, run in runs if isinstance(owner, int)]
        for _, run in runs:
            if run.is_long and run.is_stuck():
                run.take_back(self._buffer.made)
                self._on_arrival()
        return found

    def acknowledge_run(self, run: DeliveryRun, until: int) -> None:
        """Acknowledge what a handler is done with, unless it settled that itself."""
        left = self._remainder(run.lease)
        if left is not None and until > run.acknowledged:
            parts = left.within(run.acknowledged, until)
            if parts:
                self.enqueue([Settlement(run.lease, ACK, parts)])
        run.acknowledged = until

    def _pop_in_order(self, order: KeyOrder, worker: Worker) -> LeasedFields | None:
        while (message := order.take_from(self._buffer.made)) is not None:
            if message.lease in self._left or not message.lease.token:
                break
            order.finish(message)
        self._loop.call_soon_threadsafe(self._wake)
        if message is not None:
            self.in_hand.take_one(worker, message)
        else:
            self.in_hand.empty(worker)
        return message

    def take(self, worker: Loop, most: int) -> list[LeasedFields]:
        """The same for up to so many messages that are there."""
        found = self._buffer.take(most)
        if found:
            self._look_for_room()
            self.in_hand.take(worker, found)
        else:
            self.in_hand.empty(worker)
        return found

    def _look_for_room(self) -> None:
        """Something was taken: there may be a point in asking for more."""
        buffer = self._buffer
        if buffer.is_empty or (self._is_auto_ack and 2 * len(buffer) <= self._prefetch):
            self._loop.call_soon_threadsafe(self._wake)

    def is_unsettled(self, message: LeasedFields) -> bool:
        """It has no settlement yet."""
        left = self._remainder(message.lease)
        return left is not None and bool(left.within(message.offset, message.offset + 1))

    def _remainder(self, lease: Lease) -> IntervalSet | None:
        left = self._left.get(lease)
        return self._lost.get(lease) if left is None else left

    def free_key(self, message: LeasedFields, terms: SettlementTerms) -> None:
        """A handler is done with a message: the next of its key may be handled, if this one did not
        fail. Any thread may call this."""
        if self._order is not None and not terms.is_failure:
            self._order.finish(message)

    def _hold_key(self, message: LeasedFields) -> None:
        """It failed: its key waits until it comes again, if it does."""
        order = self._order
        if order is None:
            return
        if not message.lease.token or not self.is_unsettled(message):
            order.finish(message)  # it is settled: it will not come
        elif (seconds := order.fail(message, self._loop.time())) is not None:
            self._loop.call_later(seconds, self._give_up, order, message)
            self._loop.call_later(seconds - GRACE_SECONDS, self._wake)
            self._wake()
        self._on_arrival()

    def _give_up(self, order: KeyOrder, message: LeasedFields) -> None:
        order.give_up(message)
        self._on_arrival()

    def finish(self, done: Sequence[tuple[LeasedFields, SettlementTerms]]) -> None:
        """Settle messages that handlers are done with, unless these settled them themselves."""
        if self._order is not None:
            for message, terms in done:
                if terms.is_failure:
                    self._hold_key(message)
        for terms, some in groupby(done, itemgetter(1)):
            open_ones = [message for message, _ in some if message.lease.token]
            origins = None if self.tracer is None else self.tracer.origins_of(open_ones)
            for settlement in settlements_of(open_ones, terms):
                left = self._remainder(settlement.lease)
                if left is not None:
                    spans = settlement.intervals
                    parts = [part for start, end in spans for part in left.within(start, end)]
                    if parts:
                        self.enqueue([settlement._replace(intervals=parts)], origins)

    # ---- settling

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Send settlements, and wait until they are durable."""
        self._record(settlements)
        await self._ack_batcher.settle(settlements)

    def enqueue(
        self, settlements: Sequence[Settlement], origins: Sequence[str] | None = None
    ) -> None:
        """Send settlements soon, without waiting for the result."""
        self._record(settlements)
        self._ack_batcher.enqueue(settlements, origins)

    async def flush(self) -> None:
        """Wait for all settlements; raises the first failure that no caller waited for."""
        self.outbox.empty()
        await self._ack_batcher.flush()
        failure = self._ack_batcher.take_failure()
        if failure is not None:
            raise failure

    def _record(self, settlements: Sequence[Settlement]) -> None:
        if self._is_closed:
            raise InvalidRequest("the subscription is closed: its messages went back to the group")
        for settlement in settlements:
            if not settlement.terms.ends_lease:
                seconds = settlement.terms.visibility_ms / 1000
                self._until[settlement.lease] = self._loop.time() + seconds
                continue
            left = self._remainder(settlement.lease)
            if left is not None:
                for start, end in settlement.intervals:
                    left.remove(start, end)
                if not left.count:
                    self._drop(settlement.lease)
        self._wake()

    def _drop(self, lease: Lease) -> None:
        self._left.pop(lease, None)
        self._until.pop(lease, None)

    # ---- the end

    async def stop(self) -> None:
        """Stop polling, and give back messages that were not handed out.

        What was asked for already may be leased by now: it goes back when it comes, and nobody
        waits for that. With auto-ack nothing can go back.
        """
        self.is_closing = True
        asked = () if self._is_auto_ack else self._asked
        pollers = [task for key, task in self._pollers.items() if key not in asked]
        await _end_tasks([self._supervisor, *pollers])
        self._give_back_waiting()
        self._on_arrival()

    def _give_back_waiting(self) -> None:
        waiting = [message for message in self._take_waiting() if message.lease.token]
        if waiting and not self._is_closed:
            self.enqueue(settlements_of(waiting, RELEASE))

    def _take_waiting(self) -> list[LeasedFields]:
        for run in list(self.in_hand.runs.values()):
            run.take_back(self._buffer.made)
        waiting = [] if self._order is None else self._order.take_all()
        # A thread that takes some meanwhile works on them.
        waiting += self._buffer.take(len(self._buffer))
        return [each for each in waiting if each.lease in self._left or not each.lease.token]

    def forget_waiting(self) -> None:
        """Have nothing to hand out, and give nothing back by itself: `close` gives all back."""
        self._take_waiting()

    async def close(self) -> None:
        """Send the last settlements, give back all leases, and close the connections."""
        self._ack_batcher.stop_retrying()
        await self.stop()
        await _end_tasks([*self._pollers.values()])
        self.outbox.empty()
        await self._ack_batcher.flush()
        self._is_closed = True
        await _end_tasks([self._lease_extender])
        await self._ack_batcher.stop()
        await self._core.consuming.release()
        await self._core.close()

    def _end(self, error: QuiverError) -> None:
        """It cannot go on."""
        if self.error is None and not self.is_closing:
            self.error = error
            self._supervisor.cancel()
            for task in self._pollers.values():
                task.cancel()
            self._on_arrival()

    # ---- taking in

    async def _supervise(self) -> None:
        """Know the leaders, and keep a task that polls each."""
        try:
            while True:
                self._refresh_soon.clear()
                try:
                    await self._refresh_leaders()
                except QuiverError as error:
                    if not error.retriable:
                        raise
                    continue  # it was tried for long, with pauses
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(REFRESH_SECONDS, self._choice.seconds_max)):
                        await self._refresh_soon.wait()
        except QuiverError as error:
            self._end(error)

    async def _refresh_leaders(self) -> None:
        """Know which topics there are, and which brokers lead each of them."""
        names = await self._lookup.find(self._choice)
        found = await asyncio.gather(*map(self._leaders_of, names), return_exceptions=True)
        failures = [each for each in found if isinstance(each, BaseException)]
        for name, leaders in zip(names, found, strict=True):
            if not isinstance(leaders, BaseException):
                self._set_leaders(name, leaders)
        for gone in set(self._topics).difference(names):
            self._set_leaders(gone, [])
            if self._order is not None:
                self._order.topics.pop(gone, None)
        self._topics = tuple(names)
        # One that will not pass comes first.
        for failure in sorted(failures, key=lambda each: getattr(each, "retriable", False)):
            if not self._is_gone(failure):
                raise failure

    async def _leaders_of(self, topic: str) -> list[LeaderPartitions]:
        attempts = self._attempts(topic)
        if self._order is not None and topic not in self._order.topics:
            (self._order.topics[topic],) = await self._core.admin.describe([topic])
        return await self._by_leader(topic, attempts)

    async def _by_leader(self, topic: str, attempts: Attempts) -> list[LeaderPartitions]:
        return await self._core.consuming.polling.by_leader(
            topic, attempts, may_create=self._request.names_topic
        )

    def _set_leaders(self, topic: str, leaders: Sequence[LeaderPartitions]) -> None:
        # Partitions without a leader each have their own.
        found = {(topic, led.leader or -1 - led.partitions[0]): led for led in leaders}
        others = {key: led for key, led in self._leaders.items() if key[0] != topic}
        self._leaders = others | found
        for key in found:
            if key not in self._pollers:
                self._pollers[key] = asyncio.create_task(self._poll_leader(key))

    def _is_gone(self, error: BaseException) -> bool:
        """A topic was deleted that is not wanted by its name: the others stay."""
        return isinstance(error, TopicNotFound) and self._choice.pattern is not None

    async def _poll_leader(self, key: LeaderKey) -> None:
        """Poll one leader of a topic for as long as it is one."""
        topic = key[0]
        attempts: Attempts | None = None
        try:
            while not self.is_closing:
                free = await self._credit(key)
                led = self._leaders.get(key)
                if led is None:
                    return
                try:
                    await self._poll_once(key, led, free)
                    attempts = None
                except QuiverError as error:
                    attempts = attempts or self._attempts(topic)
                    attempts = await self._recover(topic, led, error, attempts)
        except QuiverError as error:
            if self._is_gone(error):
                self._set_leaders(topic, [])
            else:
                self._end(error)
        except Exception as error:
            self._end(QuiverError(f"the subscription failed: {error!r}"))
            raise
        finally:
            del self._pollers[key]
            self._refresh_soon.set()

    async def _poll_once(self, key: LeaderKey, led: LeaderPartitions, free: int) -> None:
        topic = key[0]
        request = self._request._replace(topic=topic, messages_max=free)
        (led,) = rotate_leaders([led], next(self._turns))
        self._asked.add(key)
        try:
            result = await self._core.consuming.polling.poll_leader(
                request, led, WAIT_SECONDS, self._attempts(topic)
            )
        finally:
            self._asked.discard(key)
        if self.is_closing:
            for lease, pieces, _ in result.leased_runs:
                self.enqueue([Settlement(lease, RELEASE, [piece[:2] for piece in pieces])])
            return
        if not result.is_led:
            self._refresh_soon.set()
        until = self._loop.time() + self._visibility_s
        for leased_run in result.leased_runs:
            if leased_run.lease.token:
                self._left[leased_run.lease] = IntervalSet(piece[:2] for piece in leased_run.pieces)
                self._until[leased_run.lease] = until
        if self._buffer.put(result.leased_runs, self._core.router.limits):
            self._on_arrival()
            # So that what is acknowledged at once leaves in one write with the next poll.
            await asyncio.sleep(0)
        elif result.throttled_s:
            await asyncio.sleep(result.throttled_s)

    async def _recover(
        self, topic: str, led: LeaderPartitions, error: QuiverError, attempts: Attempts
    ) -> Attempts:
        """Return when it is time to go on, with the patience that is left; for ever, if need be."""
        try:
            await recover_partitions(self._core.router, topic, led, error, attempts)
            leaders = await self._by_leader(topic, attempts)
            if topic in self._topics:
                self._set_leaders(topic, leaders)
        except QuiverError as last:
            if not last.retriable:
                raise
            return self._attempts(topic)
        return attempts

    async def _credit(self, key: LeaderKey) -> int:
        """How many more may be held, once there is a point in asking for them."""
        while not (free := self._free()):
            self._credit_changed.clear()
            if self._order is not None and self._due(self._order, key):
                # Not at once: what is asked for too early brings others, which only wait here.
                await asyncio.sleep(DUE_SECONDS)
                if not self._free() and (due := self._due(self._order, key)):
                    return due
            else:
                await self._credit_changed.wait()
        return free

    def _due(self, order: KeyOrder, key: LeaderKey) -> int:
        """How many messages that failed a leader has to give, for which keys wait here that have
        taken all the room. A leader gives out those first."""
        led = self._leaders.get(key)
        if led is None or self._held() >= 2 * self._prefetch + max(self._prefetch, DUE_MAX):
            return 0
        return order.count_due(key[0], led.partitions, self._loop.time())

    def _held(self) -> int:
        if not self._is_auto_ack:
            return sum(map(_COUNT_OF, self._left.values()))
        return len(self._buffer) + (0 if self._order is None else len(self._order.waiting()))

    def _free(self) -> int:
        held = self._held()
        if self._order is not None:
            # As many again may wait behind messages that failed.
            held -= min(self._order.behind_failed, self._prefetch)
        # Messages whose settlements are not sent yet take room too.
        free = self._prefetch - held - max(0, self._ack_batcher.messages - self._prefetch)
        # As long as there is work here, not for every single message.
        if free <= 0 or (2 * free < self._prefetch and not self._buffer.is_empty):
            return 0
        # Topics that have more to give must not take the room of the others.
        return max(1, free // max(1, len(self._topics)))

    def _wake(self) -> None:
        self._credit_changed.set()

    # ---- keeping

    async def _extend_leases(self) -> None:
        """Extend leases of messages that wait here or are in hand, long before they end."""
        terms = extend_terms(self._visibility_s)
        while True:
            await asyncio.sleep(max(EXTEND_SECONDS_MIN, self._visibility_s / 6))
            now = self._loop.time()
            worked_on = self.in_hand.leases(self.is_unsettled) | self._leases_of_runs()
            held = self._buffer.leases() | worked_on
            if self._order is not None:
                held.update(message.lease for message in self._order.waiting())
            self._lost = {lease: left for lease, left in self._lost.items() if lease in worked_on}
            for lease, until in list(self._until.items()):
                if lease in held and until - now <= self._visibility_s * 2 / 3:
                    self._until[lease] = now + self._visibility_s
                    extension = asyncio.create_task(self._extend(Settlement(lease, terms, [])))
                    self._extensions.add(extension)
                    extension.add_done_callback(self._extensions.discard)
                elif lease not in held and until <= now:
                    # The user let it expire: the group has it again.
                    self._drop(lease)
                    self._wake()

    def _leases_of_runs(self) -> set[Lease]:
        found, now = set(), self._loop.time()
        for run in list(self.in_hand.runs.values()):
            left = self._remainder(run.lease)
            if left is not None and now < run.until and left.within(run.done_until(), run.end):
                found.add(run.lease)
        return found

    async def _extend(self, settlement: Settlement) -> None:
        try:
            await self._ack_batcher.settle([settlement])
        except LeaseLost:
            if settlement.lease in self._left:
                self._lost[settlement.lease] = self._left[settlement.lease]
            self._drop(settlement.lease)
            self._wake()
        except QuiverError:
            pass  # whether it lasted shows when its messages are settled

    def _attempts(self, topic: str) -> Attempts:
        return self._core.router.attempts(f"subscribing to {topic}")


async def _end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
