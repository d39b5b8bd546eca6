"""Dispatches leased messages of one partition to waiting polls, while this broker leads it.

The lease manager decides; the dispatcher tells it that time has passed and messages have come,
wakes polls that may find some, and has dead letters moved. There is one dispatcher per leadership:
when that ends, it closes, and waiting polls look for the next leader.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from quivermq.batches import Offset
from quivermq.cluster import Topic
from quivermq.errors import InvalidRequest, NotLeader, Overloaded, QuiverError
from quivermq.intervals import IntervalSet
from quivermq.node.clock import LONG_AGO, Moment
from quivermq.node.delivery.idle_groups import CountedTime, IdleGroups
from quivermq.node.delivery.rate_limiter import RateLimiter
from quivermq.node.delivery.wait_table import WaitingPoll, WaitTable
from quivermq.node.hosted_replica import HostedReplica
from quivermq.queue import GrantedLease, Interval, LeaseManager, LeaseRequest, TopicSettings
from quivermq.replica import Replica, Result

logger = logging.getLogger("quivermq.dispatcher")

_T = TypeVar("_T")

_ALARM_S_MAX: Final = 1.0
"""The wall clock, which delays go by, may jump: so long is the most that is noticed late."""
_ALARM_S_MIN: Final = 0.001
_LOOK_AGAIN_S: Final = 0.05
"""A poll that was woken for messages has so long to take them."""
_APPLY_AGAIN_S: Final = 0.5
_BUSY_MS: Final = 50
_COUNTED_MAX: Final = 10_000
_GROUPS_AT_ONCE: Final = 500
"""Groups whose consumers are woken in one turn of the event loop."""
_NAMES_MAX: Final = 10_000
_FORGOTTEN_AT_ONCE: Final = 100
_NAME_CHARACTERS_MAX: Final = 200
_MESSAGE_BYTES: Final = 1024.0
"""The assumed size of a message before any was seen."""


class GroupProgress(NamedTuple):
    """How far a group is, for metrics."""

    group: str
    lag: int
    """Messages that the group is not done with."""
    in_flight: int


class DeliveryDispatcher:
    """Polls, timers and lease operations of one partition, for as long as it is led here."""

    def __init__(
        self, hosted: HostedReplica, on_dying: Callable[["DeliveryDispatcher"], None]
    ) -> None:
        self.hosted = hosted
        self.waiting = WaitTable()
        self.is_closed = False
        self.names: dict[int, str] = {}
        """The names of consumers that polled here, by their number."""
        self.message_bytes = _MESSAGE_BYTES
        """The average size of a message of this partition, more or less."""
        self.limiter: RateLimiter | None = None
        """Of the topic's rate limit, if this is its partition 0."""
        self._on_dying = on_dying
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._dispatch_handle: asyncio.Handle | None = None
        # Groups with lease operations since the last dispatch.
        self._all_due = False
        self._groups_due: dict[str, None] = {}
        # Groups that are dispatched in a moment: one timer for each.
        self._dispatching_later: set[str] = set()
        # As long as the leadership lasts there is one lease manager: what only looks at it, and
        # needs no proposal, uses this one.
        self._leases: LeaseManager | None = None
        # When something is due, by the wall clock and by the steady one: whichever comes first.
        self._due_ms: tuple[int, int] | None = None
        # When the alarm rings to look at that: now and then, and sooner if it is due sooner.
        self._rings_ms = 0
        self._trimmed = 0
        self.topic: Topic | None = None
        """The record whose settings were applied last."""
        self.settings = TopicSettings()
        """Those of the topic, as the catalog has them."""
        self.drop_expired = False
        """Expired messages are dropped; else they go to the dead letters."""
        self._is_applying = False
        # When the leadership was last asked about, with a quorum's confirmation.
        self._confirmed = LONG_AGO
        self._confirming: asyncio.Future[Result] | None = None
        self._idle: IdleGroups | None = None
        """Made when groups of the topic are first to be forgotten."""

    # Lease operations.

    def with_leases(self, act: Callable[[LeaseManager], _T], of: str | None = None) -> _T:
        """Let `act` use the lease manager, and do not wait until its operations are committed.
        `of`: the group that they are about, if it is one."""
        self._check_open()
        found = self.hosted.with_leases(act)
        self.schedule_dispatch(of)
        if of is not None:
            self.use(of)
        return found

    def _check_open(self) -> None:
        """The leadership may have been won again, and have another dispatcher: this one would
        dispatch nothing any more."""
        if self.is_closed:
            raise NotLeader(f"{self.hosted.name} is not led by this leader any more; try again")

    def _remember(self, leases: LeaseManager) -> LeaseManager:
        """Remember the lease manager, to look at it without waking the replica."""
        if self._leases is not leases:
            self._leases = leases
            leases.on_restart = self.schedule_dispatch
        return leases

    def is_leased(self, group: str, lease: int) -> bool:
        """Whether a lease that was given here still is one: nothing else is delivered."""
        leases = self._leases
        if self.is_closed or leases is None or not self.hosted.replica.is_leader:
            return False
        found = leases.working_copy.groups.by_name.get(group)
        return found is not None and lease in found.leases

    async def commit_lease_ops(
        self, act: Callable[[LeaseManager], _T], of: str | None = None
    ) -> _T:
        """Let `act` use the lease manager; returns when its operations, and all before, are
        committed."""
        self._check_open()
        self.schedule_dispatch(of)
        if of is not None:
            self.use(of)
        return await self.hosted.commit_lease_ops(act)

    def submit_lease_ops(
        self, act: Callable[[LeaseManager], object], done: Callable[[Result], None], of: str
    ) -> None:
        """The same without waiting: `done` is called once, unless this raises."""
        self._check_open()
        self.hosted.with_leases(act, done)
        self.schedule_dispatch(of)
        self.use(of)

    def now_ms(self) -> int:
        """The wall clock: what delays go by."""
        return self.hosted.now_ms()

    def steady_ms(self) -> int:
        """The clock that never jumps: what leases go by."""
        return self.hosted.steady_ms()

    @property
    def start(self) -> Offset:
        """The first message that is kept."""
        return self.hosted.log.start.next_offset

    @property
    def end(self) -> Offset:
        """Behind the last message that may be shown."""
        return self.hosted.readable_end

    def ready(self, group: str, limit: int = _COUNTED_MAX) -> int:
        """How many messages could be leased at once, counted up to `limit`."""
        end, now_ms = self.end, self.now_ms()

        def look(leases: LeaseManager) -> int:
            found = self._remember(leases).ready(group, end, now_ms, limit)
            if leases.working_copy.has_operations:
                # It took over delayed messages: the alarm has to ring for them too.
                self.schedule_dispatch(group)
            return found

        return self.hosted.with_leases(look)

    def lease(self, ask: LeaseRequest) -> tuple[GrantedLease | None, IntervalSet | None]:
        """Lease messages to a consumer, if any are ready, and tell which of its group's were given
        to it again by hand."""
        self._check_open()
        end, now_ms, steady_ms = self.end, self.now_ms(), self.steady_ms()
        group = ask.group

        def act(leases: LeaseManager) -> tuple[GrantedLease | None, IntervalSet | None]:
            self._remember(leases)
            leased = leases.lease(ask, end, now_ms, steady_ms)
            if leases.working_copy.has_operations:
                # There may be delayed messages that it took over: the alarm rings for them too.
                self.schedule_dispatch(group)
            return leased, leases.dead_letters.revived(group) if leased else None

        self.use(group)
        return self.hosted.with_leases(act)

    @property
    def is_lately_confirmed(self) -> bool:
        """Whether `confirm` would return at once."""
        return self._is_alone or self._confirmed.age_s() <= self.hosted.election_s / 4

    def is_open(self, group: str) -> bool:
        """Whether a group shares work here, asked by a consumer that uses it; it may, if no
        consumer can be served here for the moment."""
        found = self._leases is not None and _is_open(self._leases, group)
        if not found:
            try:
                found = self.hosted.with_leases(
                    lambda leases: _is_open(self._remember(leases), group)
                )
            except (NotLeader, Overloaded):
                return True
        if found:
            self.use(group)
        return found

    async def open(self, group: str, *, at_end: bool) -> None:
        """Let a group share work, from what is kept, or from what comes, on."""
        # The end is that of the partition only where it is led indeed; and a consumer that waits
        # for what comes next relies on it, whatever becomes of this leader.
        await self.confirm()
        start = self.end if at_end else self.start
        await self.commit_lease_ops(
            lambda leases: leases.working_copy.open_group(group, start), of=group
        )
        # It goes on from where it committed, which may be gone by now.
        kept = self.start
        self._trim_to(kept)

    def group_progress(self) -> list[GroupProgress]:
        """Of all groups, as far as is committed: the lease manager is not used, so that metrics do
        not wake a partition that sleeps."""
        found = []
        groups = self.hosted.replica.groups
        for group in groups.by_name.values() if groups else ():
            lag = max(self.end - (group.committed or 0), 0)
            if group.is_shared:
                totals = group.totals
                settled = totals.done + totals.dead + totals.lost + group.dying_messages
                lag = max(self.end - group.start - settled, 0)
            if not group.name.startswith("_"):
                found.append(GroupProgress(group.name, lag, group.leased_messages))
        return found

    def trim(self) -> None:
        """Retention may have dropped what groups have not done."""
        start = self.start
        if start > self._trimmed:
            self._check_open()
            self._trim_to(start)
            self.schedule_dispatch()
            self._trimmed = start

    def _trim_to(self, start: int) -> None:
        if not self.hosted.with_leases(lambda leases: leases.working_copy.trim(start)):
            self._loop.call_soon(self._trim_on, start)

    def _trim_on(self, start: int) -> None:
        """Of very many groups some have not heard yet."""
        if self.is_closed:
            return
        try:
            self._trim_to(start)
        except Overloaded:
            self._loop.call_later(_LOOK_AGAIN_S, self._trim_on, start)
        except QuiverError as error:
            # The next leader finds the same.
            logger.debug("%s: not all groups have passed %d: %s", self.hosted.name, start, error)

    def use(self, group: str) -> None:
        """A consumer polled, settled or committed."""
        if self._idle is not None:
            self._idle.use(group)

    def forget_idle(self, time: CountedTime, retention_ms: int) -> None:
        """Forget the shared groups that no consumer used for so long."""
        idle = self._idle = self._idle or IdleGroups(time)
        groups = self.hosted.replica.groups
        if not groups or not idle.is_time_to_look(retention_ms):
            return
        shared = [group.name for group in groups.by_name.values() if group.is_shared]
        now_ms = self.now_ms()
        for name in idle.idle(shared, retention_ms)[:_FORGOTTEN_AT_ONCE]:
            if name.startswith("_") or self.waiting.has(name):
                idle.use(name)
                continue
            try:
                is_forgotten = self.hosted.with_leases(partial(_expire_group, name, now_ms))
            except (NotLeader, Overloaded, InvalidRequest):
                # The next look finds it again, if it is still there and led here.
                continue
            if is_forgotten:
                logger.info("%s: group %s was idle, and is forgotten", self.hosted.name, name)
                self.schedule_dispatch(name)
            else:
                idle.use(name)

    def apply_settings(self, settings: TopicSettings) -> None:
        """Have the partition act on these settings of its topic, on all its replicas."""
        self.settings = settings
        limit = settings.rate_per_second, settings.rate_burst
        if self.limiter is not None and not self.limiter.is_for(*limit):
            # Consumers that wait ask again, and go by the other limit.
            self.limiter.close()
            self.limiter = None
        if self._is_applying or self.is_closed or settings == self.hosted.replica.settings:
            return
        self._is_applying = True
        now_ms = self.now_ms()
        self.hosted.submit(
            self._settings_applied,
            lambda replica, token: replica.change_settings(token, settings, now_ms),
        )

    def _settings_applied(self, result: Result) -> None:
        self._is_applying = False
        if isinstance(result, QuiverError):
            logger.debug("%s: settings are not in force yet: %s", self.hosted.name, result)
        # They may have changed meanwhile, or have to be proposed again.
        self._loop.call_later(_APPLY_AGAIN_S, lambda: self.apply_settings(self.settings))

    # Being the leader indeed.

    @property
    def is_confirmed(self) -> bool:
        """Whether no other broker can lead yet, by what a quorum said. Asked without waiting, where
        a response is about to leave: a pause may have come after `confirm`."""
        return self._is_alone or self._confirmed.age_s() <= self.hosted.election_s

    @property
    def _is_alone(self) -> bool:
        return self.hosted.replica.configuration.voters == (self.hosted.member,)

    async def confirm(self, *, is_leaving: bool = False) -> None:
        """Return once a quorum has confirmed that no other broker leads, a moment ago at most.

        A leader that was paused may have been replaced without knowing it: it must not lease.
        `is_leaving`: what was confirmed before it was leased will do, unless time was lost since.
        """
        # A new question may take longer, or a slow quorum would never do; but an answer that is
        # older than an election takes may be what a paused broker finds.
        fresh_s = self.hosted.election_s / (1 if is_leaving else 4)
        while not self._is_alone and self._confirmed.age_s() > fresh_s:
            result = await asyncio.shield(self._confirming or self._ask_quorum())
            if isinstance(result, QuiverError):
                raise result
            fresh_s = self.hosted.election_s

    def _ask_quorum(self) -> asyncio.Future[Result]:
        asked = Moment.now()
        confirming: asyncio.Future[Result] = self._loop.create_future()
        self._confirming = confirming

        def done(result: Result) -> None:
            self._confirming = None
            if not isinstance(result, QuiverError):
                self._confirmed = asked
            if not confirming.done():
                confirming.set_result(result)

        self.hosted.submit(done, Replica.read)
        return confirming

    # Waiting.

    def park(self, group: str, waiter: WaitingPoll, *, in_front: bool) -> None:
        if not len(self.waiting):
            self.hosted.on_messages(self, self._messages_came)
        self.waiting.park(group, waiter, in_front=in_front)
        self._check_alarm()

    def _check_alarm(self) -> None:
        """A poll waits for what comes due: also of messages that came while no poll did."""
        if self._leases is None:
            self.schedule_dispatch()
            return
        alarm_ms = self._leases.alarm_ms(self.now_ms(), self.steady_ms())
        due_ms = self._due_ms
        if alarm_ms is not None and (due_ms is None or due_ms[1] > self.steady_ms() + alarm_ms):
            self._set_alarm(alarm_ms)

    def leave(self, group: str, waiter: WaitingPoll) -> None:
        self.waiting.leave(group, waiter)
        if not len(self.waiting):
            self.hosted.off_messages(self)

    def _messages_came(self) -> None:
        """Called once for each `on_messages`: ask for the next."""
        if not self.is_closed:
            self._all_due = True
            self._dispatch_due()
            if len(self.waiting):
                self.hosted.on_messages(self, self._messages_came)

    def dispatch(self, group: str) -> None:
        """Wake as many waiting polls of a group as will find messages."""
        if self.is_closed or not self.waiting.has(group):
            return
        try:
            ready = self.ready(group)
        except InvalidRequest:
            # The group was deleted, and is made again by the next poll, not by one that waits.
            return
        except (NotLeader, Overloaded):
            # Nothing can be proposed now. The leadership may be about to be lost; or it is being
            # handed over, and stays here if the heir does not take it.
            self.dispatch_later(group)
            return
        self.waiting.wake(group, ready)

    def dispatch_later(self, group: str) -> None:
        """Dispatch again in a moment, should the poll that was woken not take the messages."""
        if self.waiting.has(group) and group not in self._dispatching_later:
            self._dispatching_later.add(group)
            self._loop.call_later(_LOOK_AGAIN_S, self._dispatch_again, group)

    def _dispatch_again(self, group: str) -> None:
        self._dispatching_later.discard(group)
        self.dispatch(group)

    def remember_name(self, consumer: int, name: str) -> None:
        """Remember the name of a consumer."""
        name = name[:_NAME_CHARACTERS_MAX]
        if self.names.get(consumer) != name:
            self.names.pop(consumer, None)
            self.names[consumer] = name
            if len(self.names) > _NAMES_MAX:
                del self.names[next(iter(self.names))]

    # Timers.

    def schedule_dispatch(self, group: str | None = None) -> None:
        """Lease operations were made, of one group or maybe of all: dispatch soon, once for
        many."""
        if group is None:
            self._all_due = True
        else:
            self._groups_due[group] = None
        if self._dispatch_handle is None and not self.is_closed:
            self._dispatch_handle = self._loop.call_soon(self._dispatch_due)

    def _dispatch_due(self) -> None:
        self._dispatch_handle = None
        if self.is_closed:
            return
        # Before anything is looked at: what comes due while it is looked at is for the next alarm.
        now_ms, steady_ms = self.now_ms(), self.steady_ms()
        # Not groups without operations: there may be thousands. Nor very many before others on the
        # event loop have had their turn.
        if self._all_due:
            self._groups_due.update(dict.fromkeys(self.waiting.groups))
        self._all_due = False
        for group in list(islice(self._groups_due, _GROUPS_AT_ONCE)):
            del self._groups_due[group]
            self.dispatch(group)
        if self._groups_due and self._dispatch_handle is None:
            self._dispatch_handle = self._loop.call_soon(self._dispatch_due)
        leases = self._leases
        if leases is None:
            with suppress(NotLeader, Overloaded):
                leases = self.hosted.with_leases(self._remember)
        if leases is not None:
            self._set_alarm(leases.alarm_ms(now_ms, steady_ms))
            if leases.working_copy.groups.with_dying:
                self._on_dying(self)
        else:
            self._set_alarm(_BUSY_MS)

    def _set_alarm(self, alarm_ms: int | None) -> None:
        """Ring after so long, or not at all. An alarm that would ring sooner is left as it is, and
        finds out then: leases come and go much faster than they end."""
        if alarm_ms is None:
            self._due_ms = None
            return
        steady_ms = self.steady_ms()
        self._due_ms = self.now_ms() + alarm_ms, steady_ms + alarm_ms
        if self._alarm is None or self._rings_ms > steady_ms + alarm_ms:
            self._wait_for_alarm(steady_ms + alarm_ms)

    def _wait_for_alarm(self, due_ms: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        steady_ms = self.steady_ms()
        wait_s = min(max((due_ms - steady_ms) / 1000, _ALARM_S_MIN), _ALARM_S_MAX)
        self._rings_ms = steady_ms + int(wait_s * 1000)
        self._alarm = self._loop.call_later(wait_s, self._expire_leases)

    def _expire_leases(self) -> None:
        """End leases that are over, and dispatch messages that have come due."""
        self._alarm = None
        if self.is_closed or self._due_ms is None:
            return
        now_ms, steady_ms = self.now_ms(), self.steady_ms()
        if now_ms < self._due_ms[0] and steady_ms < self._due_ms[1]:
            # Without the lease manager: a partition that has nothing to do may sleep.
            self._wait_for_alarm(self._due_ms[1])
            return
        try:
            self.hosted.with_leases(lambda leases: leases.expire(now_ms, steady_ms))
        except (NotLeader, Overloaded):
            # Also a leadership that is being handed over may stay.
            self._set_alarm(_BUSY_MS)
            return
        self._all_due = True
        self._dispatch_due()

    def give_back(self, group: str, lease: int, intervals: list[Interval]) -> None:
        """Return what was leased and did not leave."""
        if self.is_closed:
            return
        try:
            self.with_leases(lambda leases: leases.release(group, lease, intervals), of=group)
        except (NotLeader, Overloaded):
            # Until it closes, this dispatcher tries again.
            self._loop.call_later(_LOOK_AGAIN_S, self.give_back, group, lease, intervals)
        except QuiverError as error:
            # The lease went with the leadership, or ends by itself.
            logger.debug("%s: lease %d is not given back: %s", self.hosted.name, lease, error)

    def close(self) -> None:
        """The leadership is lost."""
        self.is_closed = True
        for handle in (self._alarm, self._dispatch_handle):
            if handle is not None:
                handle.cancel()
        if self.limiter is not None:
            self.limiter.close()
        self.hosted.off_messages(self)
        self.waiting.wake_all()


def _expire_group(name: str, now_ms: int, leases: LeaseManager) -> bool:
    return leases.expire_group(name, now_ms)


def _is_open(leases: LeaseManager, group: str) -> bool:
    """Whether a group shares work already."""
    found = leases.working_copy.groups.by_name.get(group)
    return found is not None and found.is_shared
