"""Settles leased messages: all settlements of a request at once, answered when committed.

The straight way is for what consumers ask most: one acknowledgement, by a client that follows
leaders. It needs no task. Whatever is in its way is left to the other way, which says so.
"""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from quivermq.cluster import Level
from quivermq.errors import BrokenInvariant, InvalidRequest, QuiverError
from quivermq.node.counters import Counters
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.registry import DispatcherRegistry, check_group
from quivermq.node.handlers.produce import Finished
from quivermq.node.service import AnswerRoom, GoOn, Handler, Straight
from quivermq.queue import VISIBILITY_MS_MAX, Interval, LeaseManager
from quivermq.replica import Result
from quivermq.wire import proto

_VERDICTS_MAX: Final = 10_000
_VERDICTS_AT_ONCE: Final = 1_000
_INTERVALS_MAX: Final = 100_000
_REASON_CHARACTERS_MAX: Final = 1_000
_DELAY_MS_MAX: Final = 7 * 24 * 3600 * 1000
_OUTCOMES: Final = frozenset(proto.Outcome.values())

_PORTION: Final = 2_000
"""Verdicts and intervals that are settled in one turn of the event loop."""

Numbered = tuple[int, proto.Settlement]
Part = tuple[int, proto.Settlement, list[Interval] | None]
"""Of a settlement: some of its intervals, or None for a whole lease."""


class SettleHandler:
    """Takes settlements in for the partitions that are led here."""

    def __init__(self, dispatchers: DispatcherRegistry, counters: Counters) -> None:
        self._dispatchers = dispatchers
        self._counters = counters

    def handlers(self) -> dict[str, Handler]:
        return {"settle": self.settle, "release_consumer": self.release_consumer}

    def straight(self) -> dict[str, Straight]:
        return {"settle": self.settle_straight}

    def settle_straight(
        self,
        request: proto.Request,
        finished: Finished,
        room: AnswerRoom,  # noqa: ARG002
        go_on: GoOn,  # noqa: ARG002
    ) -> bool:
        """Acknowledge messages of one lease; False if nothing was done, and the other way is to be
        gone."""
        body = request.settle
        if len(body.settlements) != 1:
            return False
        settlement = body.settlements[0]
        if settlement.outcome != proto.ACK or len(settlement.intervals) > _PORTION:
            return False
        group, consumer = body.group, body.consumer
        intervals = [(part.start, part.end) for part in settlement.intervals] or None
        acked = 0
        lost: list[Interval] | None = None

        def settle(leases: LeaseManager) -> None:
            nonlocal acked, lost
            if intervals is None and _scattered(leases, group, consumer, settlement):
                raise InvalidRequest("more is left of the lease than is settled in one turn")
            before = _done(leases, group)
            if intervals is None and not _is_known(leases, group, consumer, settlement.lease):
                lost = []
            else:
                found = leases.acknowledge(group, settlement.lease, intervals, consumer)
                lost = found or None
            acked = _done(leases, group) - before

        def done(result: Result) -> None:
            if isinstance(result, QuiverError):
                finished(result)
                return
            name = dispatcher.hosted.name
            self._counters.shares[name.topic, name.partition, group].acked += acked
            found = [] if lost is None else [_lost(0, lost)]
            finished(proto.Response(settled=proto.Settled(lost=found)))

        try:
            check_group(group)
            _check(body.settlements)
            dispatcher = self._dispatchers.leading(body.topic, body.topic_id, settlement.partition)
            dispatcher.submit_lease_ops(settle, done, of=group)
        except (QuiverError, BrokenInvariant):
            return False
        return True

    async def settle(self, request: proto.Request) -> proto.Response:
        body = request.settle
        check_group(body.group)
        _check(body.settlements)
        if len(body.settlements) > _VERDICTS_AT_ONCE:
            # To check them took a while, and so will the rest.
            await asyncio.sleep(0)
        by_partition: dict[int, list[Numbered]] = {}
        for number, settlement in enumerate(body.settlements):
            by_partition.setdefault(settlement.partition, []).append((number, settlement))
        # All of them first: half a request that is refused would be a riddle.
        dispatchers = {
            partition: self._dispatchers.leading(body.topic, body.topic_id, partition)
            for partition in by_partition
        }
        settling = [
            self._settle_at(dispatchers[partition], body, settlements)
            for partition, settlements in by_partition.items()
        ]
        # Mostly there is one, which needs no task of its own.
        lost = [await settling[0]] if len(settling) == 1 else await asyncio.gather(*settling)
        found = sorted(chain.from_iterable(lost), key=lambda one: one.settlement)
        return proto.Response(settled=proto.Settled(lost=found))

    async def _settle_at(
        self, dispatcher: DeliveryDispatcher, body: proto.Settle, settlements: Sequence[Numbered]
    ) -> list[proto.Lost]:
        group, consumer = body.group, body.consumer
        settler = _Settler(
            group,
            consumer,
            dispatcher.now_ms(),
            dispatcher.steady_ms(),
            keeps_reasons=self._dispatchers.level >= Level.LETTERS,
        )
        lost: dict[int, list[Interval]] = {}
        waiting = deque(_portions(settlements))

        def settle(leases: LeaseManager, portion: Sequence[Part]) -> int:
            before = _done(leases, group)
            for number, settlement, intervals in portion:
                if intervals is None and (parts := _scattered(leases, group, consumer, settlement)):
                    # All that is left of a lease may be more than can be settled in one turn.
                    waiting.extend([(number, settlement, part)] for part in parts)
                    continue
                found = _apply(leases, settler, settlement, intervals)
                if found is not None:
                    lost.setdefault(number, []).extend(found)
            return _done(leases, group) - before

        acked = 0
        while waiting:
            turn = partial(settle, portion=waiting.popleft())
            if waiting:
                acked += dispatcher.with_leases(turn, of=group)
                # Others wait for their turn.
                await asyncio.sleep(0)
            else:
                acked += await dispatcher.commit_lease_ops(turn, of=group)
        name = dispatcher.hosted.name
        self._counters.shares[name.topic, name.partition, group].acked += acked
        return [_lost(number, intervals) for number, intervals in lost.items()]

    async def release_consumer(self, request: proto.Request) -> proto.Response:
        """A consumer ends: what it holds goes back at once."""
        body = request.release_consumer
        check_group(body.group)
        dispatchers = [
            self._dispatchers.leading(body.topic, body.topic_id, number)
            for number in dict.fromkeys(body.partitions)
        ]

        async def release(dispatcher: DeliveryDispatcher) -> None:
            while await dispatcher.commit_lease_ops(
                lambda leases: leases.release_consumer(body.group, body.consumer), of=body.group
            ):
                # There may be more.
                continue

        await asyncio.gather(*map(release, dispatchers))
        return proto.Response(done=proto.Done())


def _lost(number: int, intervals: list[Interval]) -> proto.Lost:
    parts = [proto.Interval(start=start, end=end) for start, end in intervals]
    return proto.Lost(settlement=number, intervals=parts)


def _portions(settlements: Sequence[Numbered]) -> Iterator[list[Part]]:
    """All of them, in portions that do not hold the event loop; mostly there is one."""
    portion: list[Part] = []
    left = _PORTION
    for number, settlement in settlements:
        intervals = [(part.start, part.end) for part in settlement.intervals]
        for at in range(0, max(len(intervals), 1), _PORTION):
            part = intervals[at : at + _PORTION]
            if left < max(len(part), 1):
                yield portion
                portion, left = [], _PORTION
            portion.append((number, settlement, part or None))
            left -= max(len(part), 1)
    yield portion


class _Settler(NamedTuple):
    """The consumer that settles, and when."""

    group: str
    consumer: int
    now_ms: int
    steady_ms: int
    keeps_reasons: bool
    """All brokers of the cluster know that messages may have failed for a reason."""


def _apply(
    leases: LeaseManager,
    settler: _Settler,
    settlement: proto.Settlement,
    intervals: list[Interval] | None,
) -> list[Interval] | None:
    """One settlement, or a part of it; what was lost, or None if nothing was."""
    group, consumer, now_ms, steady_ms, keeps_reasons = settler
    lease = settlement.lease
    if intervals is None and not _is_known(leases, group, consumer, lease):
        # It is not known what was left of it.
        return []
    if settlement.outcome == proto.EXTEND:
        is_held = leases.extend(group, lease, settlement.visibility_ms, steady_ms, consumer)
        return None if is_held else []
    if settlement.outcome == proto.NACK:
        delay_ms = settlement.delay_ms if settlement.HasField("delay_ms") else None
        reason = settlement.reason[:_REASON_CHARACTERS_MAX]
        lost = leases.fail(
            group, lease, intervals, delay_ms, now_ms, consumer, reason, keeps_reason=keeps_reasons
        )
    elif settlement.outcome == proto.REJECT:
        reason = settlement.reason[:_REASON_CHARACTERS_MAX]
        lost = leases.reject(group, lease, intervals, reason, now_ms, consumer)
    elif settlement.outcome == proto.RELEASE:
        lost = leases.release(group, lease, intervals, consumer)
    else:
        lost = leases.acknowledge(group, lease, intervals, consumer)
    return lost or None


def _scattered(
    leases: LeaseManager, group: str, consumer: int, settlement: proto.Settlement
) -> list[list[Interval]]:
    """The rest of a lease, in portions, if that is more than one."""
    found = leases.working_copy.groups.by_name.get(group)
    held = None if found is None else found.held_by(consumer, settlement.lease)
    if held is None or len(held.pieces) <= _PORTION or settlement.outcome == proto.EXTEND:
        return []
    pieces = [(piece.start, piece.end) for piece in held.pieces]
    return [pieces[at : at + _PORTION] for at in range(0, len(pieces), _PORTION)]


def _is_known(leases: LeaseManager, group: str, consumer: int, lease: int) -> bool:
    """Whether it is known what a consumer means by all of a lease; of an unknown group
    the lease manager says so itself."""
    found = leases.working_copy.groups.by_name.get(group)
    return found is None or found.is_known(consumer, lease)


def _done(leases: LeaseManager, group: str) -> int:
    """How many messages a group is done with."""
    found = leases.working_copy.groups.by_name.get(group)
    return 0 if found is None else found.totals.done


def _check(settlements: Sequence[proto.Settlement]) -> None:
    if not 1 <= len(settlements) <= _VERDICTS_MAX:
        raise InvalidRequest(f"settle with 1 to {_VERDICTS_MAX} verdicts, not {len(settlements)}")
    if sum(len(settlement.intervals) for settlement in settlements) > _INTERVALS_MAX:
        raise InvalidRequest(f"settle at most {_INTERVALS_MAX} intervals at once")
    for settlement in settlements:
        if not settlement.lease:
            raise InvalidRequest("a verdict needs the lease that it is about")
        if settlement.outcome not in _OUTCOMES:
            raise InvalidRequest(f"outcome {settlement.outcome} is unknown: upgrade this broker")
        if settlement.delay_ms > _DELAY_MS_MAX:
            raise InvalidRequest(f"a message cannot be delayed by more than {_DELAY_MS_MAX} ms")
        if settlement.outcome == proto.EXTEND:
            _check_extension(settlement)
        for part in settlement.intervals:
            if part.start >= part.end:
                raise InvalidRequest(f"from {part.start} to before {part.end} is not an interval")


def _check_extension(settlement: proto.Settlement) -> None:
    if settlement.intervals:
        raise InvalidRequest("only whole leases can be extended")
    if not 0 < settlement.visibility_ms <= VISIBILITY_MS_MAX:
        raise InvalidRequest(
            f"a lease cannot be extended by {settlement.visibility_ms} ms: name 1 to "
            f"{VISIBILITY_MS_MAX}"
        )
