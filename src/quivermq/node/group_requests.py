"""Requests about groups that are not polls: shown, moved, deleted; delayed and dead messages."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from quivermq.cluster import sticky_key
from quivermq.errors import InvalidRequest, NotLeader
from quivermq.node.clerk import Clerk
from quivermq.node.clerks import Clerks, check_bookkeeper, check_group, check_not_shared
from quivermq.node.fetching import Fetching
from quivermq.node.figures import Figures as Counted
from quivermq.node.partitions import Partitions
from quivermq.node.public_ids import public_id
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.node.topic_requests import done
from quivermq.queue import Desk, Figures, Interval
from quivermq.wire import proto
from quivermq.wire.limits import check_answer

_LISTED_MAX: Final = 10_000
_INTERVALS_MAX: Final = 100_000
_INTERVALS_AT_ONCE: Final = 2_000
"""Intervals that are settled in one turn of the event loop."""
_LIST_BYTES: Final = 1 << 20
"""What is expected of a list before it is made."""
_INTERVAL_BYTES: Final = 20
_GROUP_BYTES: Final = 100
"""About what one entry takes."""
_FEWER_GROUPS: Final = "name a group, or fewer partitions at once"


class GroupRequests:
    """Answers for the partitions that are led here; the client asks each leader."""

    def __init__(
        self, partitions: Partitions, clerks: Clerks, fetching: Fetching, counted: Counted
    ) -> None:
        self._partitions = partitions
        self._clerks = clerks
        self._fetching = fetching
        self._counted = counted
        self._slices = partitions.slices

    def handlers(self) -> dict[str, Handler]:
        return {
            "seek_group": self.seek_group,
            "delete_group": self.delete_group,
            "list_delayed": self.list_delayed,
            "cancel_delayed": self.cancel_delayed,
            "redrive": self.redrive,
            "claim": self.claim,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {
            "describe_groups": Bulky(self.describe_groups, lambda _: _LIST_BYTES),
            "list_dead": Bulky(self.list_dead, lambda _: _LIST_BYTES),
        }

    async def describe_groups(self, request: proto.Request, room: Room) -> Answer:
        body = request.describe_groups
        clerks = self._asked(body.topic, body.partitions)
        expected = _GROUP_BYTES * sum(
            1 if body.group else clerk.at_desk(_count_groups) for clerk in clerks
        )
        check_answer(expected, _FEWER_GROUPS)
        # Once, for all: whoever has some room and waits for more may wait for another who does.
        await room(expected)
        found = proto.GroupsDescribed()
        size = 0
        for clerk in clerks:
            await clerk.confirm()
            clerk.trim()
            names = [body.group] if body.group else clerk.at_desk(_names)
            async with self._slices.turn() as turn:
                for name in names:
                    for one in _described(clerk, name):
                        size += one.ByteSize()
                        check_answer(size, _FEWER_GROUPS)
                        found.groups.append(one)
                    await turn.rest()
        return proto.Response(groups_described=found), ()

    def _asked(self, topic: str, numbers: Sequence[int]) -> list[Clerk]:
        """The clerks of these partitions, or of all that are led here."""
        if numbers:
            return [self._clerks.leading(topic, b"", number) for number in dict.fromkeys(numbers)]
        found = []
        for number in range(len(self._partitions.topic(topic).partitions)):
            try:
                found.append(self._clerks.leading(topic, b"", number))
            except NotLeader:
                # Another broker answers for it.
                continue
        return found

    async def seek_group(self, request: proto.Request) -> proto.Response:
        body = request.seek_group
        check_group(body.group)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        where = body.WhichOneof("where")
        if where == "latest":
            offset = int(clerk.end)
        elif where == "timestamp_ms":
            offset = await self._fetching.offset_at(clerk.group, body.timestamp_ms)
        elif where == "offset":
            offset = body.offset
            if not clerk.start <= offset <= clerk.end:
                raise InvalidRequest(
                    f"offset {offset} of {clerk.group.name} is not kept: seek from {clerk.start} "
                    f"to {clerk.end}"
                )
        else:
            offset = int(clerk.start)
        await clerk.agreed(lambda desk: desk.seek(body.group, offset))
        clerk.use(body.group)
        return proto.Response(group_sought=proto.GroupSought(offset=offset))

    async def delete_group(self, request: proto.Request) -> proto.Response:
        body = request.delete_group
        check_bookkeeper(body.group)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.agreed(lambda desk: desk.drop(body.group))
        self._counted.shares.pop((body.topic, body.partition, body.group), None)
        return done()

    async def list_delayed(self, request: proto.Request) -> proto.Response:
        body = request.list_delayed
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        now_ms, limit = clerk.now_ms(), min(body.limit or _LISTED_MAX, _LISTED_MAX)
        found, total = clerk.at_desk(
            lambda desk: (desk.delayed(now_ms, body.from_ms, limit), desk.delayed_total(now_ms))
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
        intervals = _intervals(body.intervals)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        cancelled = 0
        for part in batched(intervals):
            cancelled += await clerk.agreed(partial(_cancel, part, clerk.now_ms()))
        return proto.Response(delayed_cancelled=proto.DelayedCancelled(cancelled=cancelled))

    async def redrive(self, request: proto.Request) -> proto.Response:
        body = request.redrive
        intervals = _intervals(body.intervals)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        send = _purge if body.purge else _redrive
        # What comes in meanwhile is for the next request.
        kept = clerk.start, clerk.end
        messages = 0
        for part in batched(intervals) if intervals else [None]:
            while moved := await clerk.agreed(partial(send, clerk, kept, part)):
                # There may be more.
                messages += moved
        return proto.Response(redriven=proto.Redriven(messages=messages))

    async def list_dead(self, request: proto.Request, room: Room) -> Answer:
        body = request.list_dead
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        start, end = clerk.start, clerk.end
        found = clerk.at_desk(lambda desk: desk.dead(start, end))
        size = _INTERVAL_BYTES * len(found)
        check_answer(size, "redrive or purge some by their offsets first")
        await room(size)
        listed = proto.DeadListed()
        async with self._slices.turn() as turn:
            for low, high in found:
                listed.intervals.add(start=low, end=high)
                await turn.rest()
        return proto.Response(dead_listed=listed), ()

    async def claim(self, request: proto.Request) -> proto.Response:
        body = request.claim
        check_group(body.group)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        if body.epoch > self._assigned_epoch(body):
            # It may have been assigned a moment ago, and not be known here yet.
            await self._partitions.catch_up()
            if body.epoch > self._assigned_epoch(body):
                raise InvalidRequest(
                    f"epoch {body.epoch} of group {body.group} was never assigned: join the group, "
                    "and claim partitions with the epochs that it assigns"
                )

        def claim(desk: Desk) -> int | None:
            check_not_shared(desk, body.group)
            return desk.claim(body.group, body.epoch)

        committed = await clerk.agreed(claim)
        clerk.use(body.group)
        offset = clerk.start if committed is None else committed
        claimed = proto.Claimed(offset=offset, has_committed=committed is not None)
        return proto.Response(claimed=claimed)

    def _assigned_epoch(self, body: proto.Claim) -> int:
        """Of the last member that got this partition, as far as is known here; 0: nobody did."""
        topic = self._partitions.topic(body.topic, body.topic_id)
        group = self._partitions.view.sticky.get(sticky_key(topic.id, body.group))
        owners = () if group is None else group.owners
        return owners[body.partition].epoch if body.partition < len(owners) else 0


def batched(intervals: list[Interval]) -> Iterator[list[Interval]]:
    """As many at once as a desk takes without holding the loop."""
    for first in range(0, len(intervals), _INTERVALS_AT_ONCE):
        yield intervals[first : first + _INTERVALS_AT_ONCE]


def _cancel(intervals: list[Interval], now_ms: int, desk: Desk) -> int:
    return desk.cancel(intervals, now_ms)


def _purge(_: Clerk, kept: tuple[int, int], intervals: list[Interval] | None, desk: Desk) -> int:
    return desk.purge(*kept, intervals)


def _redrive(
    clerk: Clerk, kept: tuple[int, int], intervals: list[Interval] | None, desk: Desk
) -> int:
    return desk.redrive(*kept, intervals, clerk.now_ms())


def _count_groups(desk: Desk) -> int:
    return len(desk.groups.by_name)


def _names(desk: Desk) -> list[str]:
    return list(desk.groups.by_name)


def _described(clerk: Clerk, name: str) -> list[proto.GroupDescription]:
    """A group where it stands; none if it was deleted meanwhile."""
    end, now_ms = clerk.end, clerk.now_ms()

    def look(desk: Desk) -> list[tuple[Figures, bool]]:
        figures = desk.describe(end, now_ms, name)
        return [(one, desk.groups.by_name[one.group].claimed > 0) for one in figures]

    return [
        _group_description(clerk, end, figures, is_sticky=is_sticky)
        for figures, is_sticky in clerk.at_desk(look)
    ]


def _group_description(
    clerk: Clerk, end: int, figures: Figures, *, is_sticky: bool
) -> proto.GroupDescription:
    numbers = dict.fromkeys(clerk.waiting.consumers(figures.group), 0)
    consumers = {**numbers, **figures.consumers}
    return proto.GroupDescription(
        group=figures.group,
        partition=clerk.group.name.partition,
        waiting=figures.waiting,
        in_flight=figures.in_flight,
        delayed=figures.delayed,
        done=figures.done,
        dead=figures.dead,
        lost=figures.lost,
        redelivered=figures.redelivered,
        floor=figures.floor,
        committed=figures.committed,
        start=figures.start,
        consumers=[
            proto.Consumer(
                consumer=public_id(number), name=clerk.names.get(number, ""), in_flight=in_flight
            )
            for number, in_flight in consumers.items()
        ],
        is_shared=figures.is_shared,
        is_sticky=is_sticky,
        end=end,
    )


def _intervals(parts: Sequence[proto.Interval]) -> list[Interval]:
    if len(parts) > _INTERVALS_MAX:
        raise InvalidRequest(f"name at most {_INTERVALS_MAX} intervals, not {len(parts)}")
    found = [(part.start, part.end) for part in parts]
    for start, end in found:
        if start >= end:
            raise InvalidRequest(f"from {start} to before {end} is no interval")
    return found
