"""Answers requests about groups: describe, seek, delete; and about delayed messages."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from quivermq.cluster import sticky_key
from quivermq.errors import InvalidRequest, NotLeader
from quivermq.node.counters import Counters as Counted
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.registry import (
    DispatcherRegistry,
    check_bookkeeper,
    check_group,
    check_not_shared,
    public_id,
)
from quivermq.node.handlers.fetch import FetchHandler
from quivermq.node.handlers.topics import done
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.queue import GroupStats, Interval, LeaseManager
from quivermq.wire import check_answer, proto

_LISTED_MAX: Final = 10_000
_INTERVALS_MAX: Final = 100_000
_INTERVALS_AT_ONCE: Final = 2_000
"""Intervals that are settled in one turn of the event loop."""
_LIST_BYTES: Final = 1 << 20
"""The expected size of a list before it is made."""
_GROUP_BYTES: Final = 100
"""About what one entry takes."""
_LEASE_BYTES: Final = 40
_LEASES_AT_ONCE: Final = 100_000
"""Of all partitions that one request names: each lists its share of the longest held."""
_FEWER_GROUPS: Final = "name a group, or fewer partitions at once"


class GroupHandlers:
    """Answers for the partitions that are led here; the client asks each leader."""

    def __init__(
        self,
        partitions: PartitionLookup,
        dispatchers: DispatcherRegistry,
        fetching: FetchHandler,
        counted: Counted,
    ) -> None:
        self._partitions = partitions
        self._dispatchers = dispatchers
        self._fetching = fetching
        self._counted = counted
        self._slices = partitions.slices

    def handlers(self) -> dict[str, Handler]:
        return {
            "seek_group": self.seek_group,
            "delete_group": self.delete_group,
            "list_delayed": self.list_delayed,
            "cancel_delayed": self.cancel_delayed,
            "claim": self.claim,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {
            "describe_groups": Bulky(self.describe_groups, lambda _: _LIST_BYTES),
        }

    async def describe_groups(self, request: proto.Request, room: Room) -> Answer:
        body = request.describe_groups
        dispatchers = self._asked(body.topic, body.partitions)
        expected = _GROUP_BYTES * sum(
            1 if body.group else dispatcher.with_leases(_count_groups) for dispatcher in dispatchers
        )
        share = _LEASES_AT_ONCE // max(len(dispatchers), 1)
        listed = min(body.leases, _LISTED_MAX, share) if body.group else 0
        expected += _LEASE_BYTES * listed * len(dispatchers)
        check_answer(expected, _FEWER_GROUPS)
        # Once, for all: two requests that each have some room could wait for each other.
        await room(expected)
        found = proto.GroupsDescribed()
        size = 0
        for dispatcher in dispatchers:
            await dispatcher.confirm()
            dispatcher.trim()
            names = [body.group] if body.group else dispatcher.with_leases(_names)
            async with self._slices.turn() as turn:
                for name in names:
                    for one in _described(dispatcher, name):
                        if listed:
                            one.leased.extend(_in_flight(dispatcher, name, listed))
                        size += one.ByteSize()
                        check_answer(size, _FEWER_GROUPS)
                        found.groups.append(one)
                    await turn.rest()
        return proto.Response(groups_described=found), ()

    def _asked(self, topic: str, numbers: Sequence[int]) -> list[DeliveryDispatcher]:
        """The dispatchers of these partitions, or of all that are led here."""
        if numbers:
            return [
                self._dispatchers.leading(topic, b"", number) for number in dict.fromkeys(numbers)
            ]
        found = []
        for number in range(len(self._partitions.topic(topic).partitions)):
            try:
                found.append(self._dispatchers.leading(topic, b"", number))
            except NotLeader:
                # Another broker answers for it.
                continue
        return found

    async def seek_group(self, request: proto.Request) -> proto.Response:
        body = request.seek_group
        check_group(body.group)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.confirm()
        where = body.WhichOneof("where")
        if where == "latest":
            offset = int(dispatcher.end)
        elif where == "timestamp_ms":
            offset = await self._fetching.offset_at(dispatcher.hosted, body.timestamp_ms)
        elif where == "offset":
            offset = body.offset
            if not dispatcher.start <= offset <= dispatcher.end:
                raise InvalidRequest(
                    f"offset {offset} of {dispatcher.hosted.name} is not kept: seek from "
                    f"{dispatcher.start} to {dispatcher.end}"
                )
        else:
            offset = int(dispatcher.start)
        await dispatcher.commit_lease_ops(lambda leases: leases.seek(body.group, offset))
        dispatcher.use(body.group)
        return proto.Response(group_sought=proto.GroupSought(offset=offset))

    async def delete_group(self, request: proto.Request) -> proto.Response:
        body = request.delete_group
        check_bookkeeper(body.group)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.commit_lease_ops(lambda leases: leases.working_copy.drop(body.group))
        self._counted.shares.pop((body.topic, body.partition, body.group), None)
        return done()

    async def list_delayed(self, request: proto.Request) -> proto.Response:
        body = request.list_delayed
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.confirm()
        now_ms, limit = dispatcher.now_ms(), min(body.limit or _LISTED_MAX, _LISTED_MAX)
        found, total = dispatcher.with_leases(
            lambda leases: (
                leases.delayed(now_ms, body.from_ms, limit),
                leases.delayed_total(now_ms),
            )
        )
        batches = [
            proto.Delayed(
                start=one.start, count=one.end - one.start, due_ms=one.due_ms, priority=one.priority
            )
            for one in found
        ]
        return proto.Response(delayed_listed=proto.DelayedListed(batches=batches, total=total))

    async def cancel_delayed(self, request: proto.Request) -> proto.Response:
        body = request.cancel_delayed
        intervals = checked_intervals(body.intervals)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        cancelled = 0
        for part in batched(intervals):
            cancelled += await dispatcher.commit_lease_ops(
                partial(_cancel, part, dispatcher.now_ms())
            )
        return proto.Response(delayed_cancelled=proto.DelayedCancelled(cancelled=cancelled))

    async def claim(self, request: proto.Request) -> proto.Response:
        body = request.claim
        check_group(body.group)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        if body.epoch > self._assigned_epoch(body):
            # It may have been assigned a moment ago, and not be known here yet.
            await self._partitions.catch_up()
            if body.epoch > self._assigned_epoch(body):
                raise InvalidRequest(
                    f"epoch {body.epoch} of group {body.group} was never assigned: join the group, "
                    "and claim partitions with the epochs that it assigns"
                )

        def claim(leases: LeaseManager) -> int | None:
            check_not_shared(leases, body.group)
            return leases.working_copy.claim(body.group, body.epoch)

        committed = await dispatcher.commit_lease_ops(claim)
        dispatcher.use(body.group)
        offset = dispatcher.start if committed is None else committed
        claimed = proto.Claimed(offset=offset, has_committed=committed is not None)
        return proto.Response(claimed=claimed)

    def _assigned_epoch(self, body: proto.Claim) -> int:
        """Of the last member that got this partition, as far as is known here; 0: none did."""
        topic = self._partitions.topic(body.topic, body.topic_id)
        group = self._partitions.view.sticky.get(sticky_key(topic.id, body.group))
        owners = () if group is None else group.owners
        return owners[body.partition].epoch if body.partition < len(owners) else 0


def batched(intervals: list[Interval]) -> Iterator[list[Interval]]:
    """As many at once as a lease manager takes without holding the loop."""
    for first in range(0, len(intervals), _INTERVALS_AT_ONCE):
        yield intervals[first : first + _INTERVALS_AT_ONCE]


def _cancel(intervals: list[Interval], now_ms: int, leases: LeaseManager) -> int:
    return leases.cancel(intervals, now_ms)


def _count_groups(leases: LeaseManager) -> int:
    return len(leases.working_copy.groups.by_name)


def _names(leases: LeaseManager) -> list[str]:
    return list(leases.working_copy.groups.by_name)


def _described(dispatcher: DeliveryDispatcher, name: str) -> list[proto.GroupDescription]:
    """A group where it stands; none if it was deleted meanwhile."""
    end, now_ms = dispatcher.end, dispatcher.now_ms()

    def look(leases: LeaseManager) -> list[tuple[GroupStats, bool]]:
        counters = leases.describe(end, now_ms, name)
        return [
            (one, leases.working_copy.groups.by_name[one.group].claimed > 0) for one in counters
        ]

    return [
        _group_description(dispatcher, end, counters, is_sticky=is_sticky)
        for counters, is_sticky in dispatcher.with_leases(look)
    ]


def _group_description(
    dispatcher: DeliveryDispatcher, end: int, counters: GroupStats, *, is_sticky: bool
) -> proto.GroupDescription:
    numbers = dict.fromkeys(dispatcher.waiting.consumers(counters.group), 0)
    consumers = {**numbers, **counters.consumers}
    return proto.GroupDescription(
        group=counters.group,
        partition=dispatcher.hosted.name.partition,
        waiting=counters.waiting,
        in_flight=counters.in_flight,
        delayed=counters.delayed,
        done=counters.done,
        dead=counters.dead,
        lost=counters.lost,
        redelivered=counters.redelivered,
        floor=counters.floor,
        committed=counters.committed,
        start=counters.start,
        consumers=[
            proto.Consumer(
                consumer=public_id(number),
                name=dispatcher.names.get(number, ""),
                in_flight=in_flight,
            )
            for number, in_flight in consumers.items()
        ],
        is_shared=counters.is_shared,
        is_sticky=is_sticky,
        end=end,
    )


def _in_flight(dispatcher: DeliveryDispatcher, group: str, limit: int) -> list[proto.InFlight]:
    steady_ms = dispatcher.steady_ms()
    return [
        proto.InFlight(
            start=one.piece.start,
            count=one.piece.end - one.piece.start,
            consumer=public_id(one.consumer),
            deliveries=one.piece.failures + 1,
            held_ms=one.held_ms,
            left_ms=one.left_ms,
        )
        for one in dispatcher.with_leases(lambda leases: leases.in_flight(group, steady_ms, limit))
    ]


def checked_intervals(parts: Sequence[proto.Interval]) -> list[Interval]:
    """The intervals that a request names."""
    if len(parts) > _INTERVALS_MAX:
        raise InvalidRequest(f"name at most {_INTERVALS_MAX} intervals, not {len(parts)}")
    found = [(part.start, part.end) for part in parts]
    for start, end in found:
        if start >= end:
            raise InvalidRequest(f"from {start} to before {end} is not an interval")
    return found
