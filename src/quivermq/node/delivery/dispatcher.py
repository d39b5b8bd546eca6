"""Who sits at the lease manager of a partition that is led here: its alarm, and those who wait.

The lease manager decides; the dispatcher brings it what happens by itself (time passes, messages
come in), wakes polls that may find something, and has the dead letters carried away. One dispatcher
per leadership: it goes with the leadership, and whoever waits is sent to look for the next.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from quivermq.batches import Offset
from quivermq.errors import InvalidRequest, NotLeader, Overloaded, QuiverError
from quivermq.node.clock import LONG_AGO, Moment
from quivermq.node.delivery.idle_groups import CountedTime, IdleGroups
from quivermq.node.delivery.rate_limiter import RateLimiter
from quivermq.node.delivery.wait_table import Waiter, WaitTable
from quivermq.node.hosted_replica import HostedReplica
from quivermq.queue import Interval, LeaseManager, TopicSettings
from quivermq.replica import Replica, Result

logger = logging.getLogger("quivermq.dispatcher")

_T = TypeVar("_T")

_ALARM_S_MAX: Final = 1.0
"""The wall clock, which delays go by, may jump: so long is the most that is noticed late."""
_ALARM_S_MIN: Final = 0.001
_LOOK_AGAIN_S: Final = 0.05
"""Whoever was told that messages are ready has so long to take them."""
_ADOPT_AGAIN_S: Final = 0.5
_BUSY_MS: Final = 50
_COUNTED_MAX: Final = 10_000
_GROUPS_AT_ONCE: Final = 500
"""Groups whose consumers are woken in one turn of the event loop."""
_NAMES_MAX: Final = 10_000
_FORGOTTEN_AT_ONCE: Final = 100
_NAME_CHARACTERS_MAX: Final = 200
_MESSAGE_BYTES: Final = 1024.0
"""What a message is thought to take before any was seen."""


class GroupProgress(NamedTuple):
    """How far a group is, for people to watch."""

    group: str
    lag: int
    """Messages that it is not done with."""
    in_flight: int


class DeliveryDispatcher:
    """The lease manager of one partition, for as long as it is led here."""

    def __init__(
        self, hosted: HostedReplica, on_dying: Callable[["DeliveryDispatcher"], None]
    ) -> None:
        self.hosted = hosted
        self.waiting = WaitTable()
        self.is_closed = False
        self.names: dict[int, str] = {}
        """What people see of consumers, by their number, as far as they came by."""
        self.message_bytes = _MESSAGE_BYTES
        """What a message of this partition takes, more or less."""
        self.keeper: RateLimiter | None = None
        """Of the topic's rate limit, if this is its partition 0."""
        self._on_dying = on_dying
        self._loop = asyncio.get_running_loop()
        self._alarm: asyncio.TimerHandle | None = None
        self._look: asyncio.Handle | None = None
        # Of what something was said since the last look.
        self._stirs_all = False
        self._stirred: dict[str, None] = {}
        # Groups of which somebody is woken in a moment: one timer for each.
        self._to_wake: set[str] = set()
        # As long as the leadership lasts there is one lease manager.
        self._leases: LeaseManager | None = None
        # When the alarm is due, by the wall clock and by the steady one: whichever comes first.
        self._due_ms = (0, 0)
        self._trimmed = 0
        self.settings = TopicSettings()
        """Those of the topic, as the catalog has them."""
        self._is_adopting = False
        # When the leadership was last asked about that a quorum then confirmed.
        self._confirmed = LONG_AGO
        self._confirming: asyncio.Future[Result] | None = None
        self._idle: IdleGroups | None = None
        """Made when groups of the topic are first to be forgotten."""

    # The lease manager.

    def with_leases(self, act: Callable[[LeaseManager], _T], of: str | None = None) -> _T:
        """Say something at the lease manager, and do not wait until it is committed. `of`: the
        group that it is about, if it is one."""
        self._check_open()
        found = self.hosted.with_leases(act)
        self.look_after(of)
        if of is not None:
            self.use(of)
        return found

    def _check_open(self) -> None:
        """The leadership may have been won again, and have another dispatcher: nobody would look
        after what is said here."""
        if self.is_closed:
            raise NotLeader(f"{self.hosted.name} is not led by this leader any more; try again")

    def _meet(self, leases: LeaseManager) -> LeaseManager:
        """Remember the lease manager, to look at it without waking anybody."""
        if self._leases is not leases:
            self._leases = leases
            leases.on_restart = self.look_after
        return leases

    def stands(self, group: str, lease: int) -> bool:
        """Whether a lease that was given here still is one: nothing else is delivered."""

        def look(leases: LeaseManager) -> bool:
            found = leases.groups.by_name.get(group)
            return found is not None and lease in found.leases

        try:
            return not self.is_closed and self.hosted.with_leases(look)
        except (NotLeader, Overloaded):
            return False

    async def agreed(self, act: Callable[[LeaseManager], _T], of: str | None = None) -> _T:
        """Say something at the lease manager; returns when it, and all said before, is
        committed."""
        self._check_open()
        self.look_after(of)
        if of is not None:
            self.use(of)
        return await self.hosted.commit_lease_ops(act)

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
            found = self._meet(leases).ready(group, end, now_ms, limit)
            if leases.has_operations:
                # It took over delayed messages: the alarm has to ring for them too.
                self.look_after(group)
            return found

        return self.hosted.with_leases(look)

    def is_open(self, group: str) -> bool:
        """Whether a group shares work here, asked by somebody who uses it; it may, if nobody is
        served here for the moment."""
        try:
            found = self.hosted.with_leases(lambda leases: _is_open(self._meet(leases), group))
        except (NotLeader, Overloaded):
            return True
        if found:
            self.use(group)
        return found

    async def open(self, group: str, *, at_end: bool) -> None:
        """Let a group share work, from what is kept, or from what comes, on."""
        # The end is that of the partition only where it is led indeed; and whoever waits for
        # what comes next relies on it, whatever becomes of this leader.
        await self.confirm()
        start = self.end if at_end else self.start
        await self.agreed(lambda leases: leases.open_group(group, start), of=group)
        # It goes on from where it committed, which may be gone by now.
        kept = self.start
        self._trim_to(kept)

    def standings(self) -> list[GroupProgress]:
        """Of all groups, as far as is committed: nothing is asked at the lease manager, so that a
        partition that sleeps is not woken by being watched."""
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
            self.look_after()
            self._trimmed = start

    def _trim_to(self, start: int) -> None:
        if not self.hosted.with_leases(lambda leases: leases.trim(start)):
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
        """Forget the shared groups that nobody used for so long."""
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
                self.look_after(name)
            else:
                idle.use(name)

    def adopt(self, settings: TopicSettings) -> None:
        """Have the partition act on these settings of its topic, on all its replicas."""
        self.settings = settings
        limit = settings.rate_per_second, settings.rate_burst
        if self.keeper is not None and not self.keeper.is_for(*limit):
            # Whoever waits asks again, and is told by another limit.
            self.keeper.close()
            self.keeper = None
        if self._is_adopting or self.is_closed or settings == self.hosted.replica.settings:
            return
        self._is_adopting = True
        now_ms = self.now_ms()
        self.hosted.submit(
            self._adopted, lambda replica, token: replica.change_settings(token, settings, now_ms)
        )

    def _adopted(self, result: Result) -> None:
        self._is_adopting = False
        if isinstance(result, QuiverError):
            logger.debug("%s: settings are not in force yet: %s", self.hosted.name, result)
        # They may have changed meanwhile, or have to be proposed again.
        self._loop.call_later(_ADOPT_AGAIN_S, lambda: self.adopt(self.settings))

    # Being the leader indeed.

    @property
    def is_confirmed(self) -> bool:
        """Whether nobody else can lead yet, by what a quorum said. Asked without waiting, where
        something is about to leave: a pause may have come after `confirm`."""
        return self._is_alone or self._confirmed.age_s() <= self.hosted.election_s

    @property
    def _is_alone(self) -> bool:
        return self.hosted.replica.configuration.voters == (self.hosted.member,)

    async def confirm(self, *, is_leaving: bool = False) -> None:
        """Return once a quorum has confirmed that nobody else leads, a moment ago at most.

        A leader that was paused may have been replaced without knowing it: it must not lease.
        `is_leaving`: what was confirmed before it was leased will do, unless time was lost since.
        """
        # Whoever has to ask may wait longer for the answer, or a slow quorum would never do; but an
        # answer that is older than an election takes may be what a paused broker finds.
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

    def park(self, group: str, waiter: Waiter, *, in_front: bool) -> None:
        if not len(self.waiting):
            self.hosted.on_messages(self, self._messages_came)
        self.waiting.park(group, waiter, in_front=in_front)
        self._see_alarm()

    def _see_alarm(self) -> None:
        """Somebody waits for what comes due: also of messages that came while nobody did."""
        if self._leases is None:
            self.look_after()
            return
        alarm_ms = self._leases.alarm_ms(self.now_ms(), self.steady_ms())
        is_set = self._alarm is not None
        if alarm_ms is not None and not (is_set and self._due_ms[1] <= self.steady_ms() + alarm_ms):
            self._set_alarm(alarm_ms)

    def leave(self, group: str, waiter: Waiter) -> None:
        self.waiting.leave(group, waiter)
        if not len(self.waiting):
            self.hosted.off_messages(self)

    def _messages_came(self) -> None:
        """Called once for each time that it is asked for: ask for the next."""
        if not self.is_closed:
            self._stirs_all = True
            self._look_now()
            if len(self.waiting):
                self.hosted.on_messages(self, self._messages_came)

    def wake(self, group: str) -> None:
        """There may be messages for this group: wake as many as find some."""
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
            self.wake_later(group)
            return
        self.waiting.wake(group, ready)

    def wake_later(self, group: str) -> None:
        """Somebody was told that messages are ready: should it not come, the next one is told."""
        if self.waiting.has(group) and group not in self._to_wake:
            self._to_wake.add(group)
            self._loop.call_later(_LOOK_AGAIN_S, self._wake_again, group)

    def _wake_again(self, group: str) -> None:
        self._to_wake.discard(group)
        self.wake(group)

    def know(self, consumer: int, name: str) -> None:
        """Remember what people see of a consumer."""
        name = name[:_NAME_CHARACTERS_MAX]
        if self.names.get(consumer) != name:
            self.names.pop(consumer, None)
            self.names[consumer] = name
            if len(self.names) > _NAMES_MAX:
                del self.names[next(iter(self.names))]

    # What happens by itself.

    def look_after(self, group: str | None = None) -> None:
        """Something was said at the lease manager, of one group or maybe of all: see soon, once for
        many, what follows from it."""
        if group is None:
            self._stirs_all = True
        else:
            self._stirred[group] = None
        if self._look is None and not self.is_closed:
            self._look = self._loop.call_soon(self._look_now)

    def _look_now(self) -> None:
        self._look = None
        if self.is_closed:
            return
        # Not at those of whom nothing was said: there may be thousands of groups. Nor at very many
        # before others have had their turn.
        if self._stirs_all:
            self._stirred.update(dict.fromkeys(self.waiting.groups))
        self._stirs_all = False
        for group in list(islice(self._stirred, _GROUPS_AT_ONCE)):
            del self._stirred[group]
            self.wake(group)
        if self._stirred and self._look is None:
            self._look = self._loop.call_soon(self._look_now)
        leases = self._leases
        if leases is None:
            with suppress(NotLeader, Overloaded):
                leases = self.hosted.with_leases(self._meet)
        if leases is not None:
            self._set_alarm(leases.alarm_ms(self.now_ms(), self.steady_ms()))
            if leases.groups.with_dying:
                self._on_dying(self)
        else:
            self._set_alarm(_BUSY_MS)

    def _set_alarm(self, alarm_ms: int | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if alarm_ms is not None:
            self._due_ms = self.now_ms() + alarm_ms, self.steady_ms() + alarm_ms
            self._wait_for_alarm()

    def _wait_for_alarm(self) -> None:
        left_ms = self._due_ms[1] - self.steady_ms()
        wait_s = min(max(left_ms / 1000, _ALARM_S_MIN), _ALARM_S_MAX)
        self._alarm = self._loop.call_later(wait_s, self._ring)

    def _ring(self) -> None:
        """Leases may have ended, delays may be over."""
        self._alarm = None
        if self.is_closed:
            return
        now_ms, steady_ms = self.now_ms(), self.steady_ms()
        if now_ms < self._due_ms[0] and steady_ms < self._due_ms[1]:
            # Not at the lease manager: a partition that has nothing to do may sleep.
            self._wait_for_alarm()
            return
        try:
            self.hosted.with_leases(lambda leases: leases.expire(now_ms, steady_ms))
        except (NotLeader, Overloaded):
            # Also a leadership that is being handed over may stay.
            self._set_alarm(_BUSY_MS)
            return
        self._stirs_all = True
        self._look_now()

    def give_back(self, group: str, lease: int, intervals: list[Interval]) -> None:
        """Return what was leased and did not leave."""
        if self.is_closed:
            return
        try:
            self.with_leases(lambda leases: leases.release(group, lease, intervals), of=group)
        except (NotLeader, Overloaded):
            # Until it closes, this dispatcher looks after what it leased.
            self._loop.call_later(_LOOK_AGAIN_S, self.give_back, group, lease, intervals)
        except QuiverError as error:
            # The lease went with the leadership, or ends by itself.
            logger.debug("%s: lease %d is not given back: %s", self.hosted.name, lease, error)

    def close(self) -> None:
        """The leadership is lost."""
        self.is_closed = True
        for handle in (self._alarm, self._look):
            if handle is not None:
                handle.cancel()
        if self.keeper is not None:
            self.keeper.close()
        self.hosted.off_messages(self)
        self.waiting.wake_all()


def _expire_group(name: str, now_ms: int, leases: LeaseManager) -> bool:
    return leases.expire_group(name, now_ms)


def _is_open(leases: LeaseManager, group: str) -> bool:
    """Whether a group shares work already."""
    found = leases.groups.by_name.get(group)
    return found is not None and found.is_shared
