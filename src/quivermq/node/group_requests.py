"""Requests about groups that are not polls: shown, moved, deleted; delayed and dead messages."""

from collections.abc import Sequence
from typing import Final

from quivermq.errors import InvalidRequest, NotLeader
from quivermq.node.clerk import Clerk
from quivermq.node.clerks import Clerks, check_bookkeeper, check_group
from quivermq.node.fetching import Fetching
from quivermq.node.figures import Figures as Counted
from quivermq.node.partitions import Partitions
from quivermq.node.service import Handler
from quivermq.node.topic_requests import done
from quivermq.queue import Desk, Figures, Interval
from quivermq.wire import proto

_LISTED_MAX: Final = 10_000
_INTERVALS_MAX: Final = 100_000


class GroupRequests:
    """Answers for the partitions that are led here; the client asks each leader."""

    def __init__(
        self, partitions: Partitions, clerks: Clerks, fetching: Fetching, counted: Counted
    ) -> None:
        self._partitions = partitions
        self._clerks = clerks
        self._fetching = fetching
        self._counted = counted

    def handlers(self) -> dict[str, Handler]:
        return {
            "describe_groups": self.describe_groups,
            "seek_group": self.seek_group,
            "delete_group": self.delete_group,
            "list_delayed": self.list_delayed,
            "cancel_delayed": self.cancel_delayed,
            "redrive": self.redrive,
            "list_dead": self.list_dead,
            "claim": self.claim,
        }

    async def describe_groups(self, request: proto.Request) -> proto.Response:
        body = request.describe_groups
        found = []
        for clerk in self._asked(body.topic, body.partitions):
            await clerk.confirm()
            clerk.trim()
            end, now_ms, group = clerk.end, clerk.now_ms(), body.group or None

            def look(
                desk: Desk, end: int = end, now_ms: int = now_ms, group: str | None = group
            ) -> list[Figures]:
                return desk.describe(end, now_ms, group)

            found += [_described(clerk, end, figures) for figures in clerk.at_desk(look)]
        return proto.Response(groups_described=proto.GroupsDescribed(groups=found))

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
        now_ms = clerk.now_ms()
        cancelled = await clerk.agreed(lambda desk: desk.cancel(intervals, now_ms))
        return proto.Response(delayed_cancelled=proto.DelayedCancelled(cancelled=cancelled))

    async def redrive(self, request: proto.Request) -> proto.Response:
        body = request.redrive
        intervals = _intervals(body.intervals) or None
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        start, end, now_ms = clerk.start, clerk.end, clerk.now_ms()
        if body.purge:
            messages = await clerk.agreed(lambda desk: desk.purge(start, end, intervals))
        else:
            messages = await clerk.agreed(lambda desk: desk.redrive(start, end, intervals, now_ms))
        return proto.Response(redriven=proto.Redriven(messages=messages))

    async def list_dead(self, request: proto.Request) -> proto.Response:
        body = request.list_dead
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        await clerk.confirm()
        start, end = clerk.start, clerk.end
        found = clerk.at_desk(lambda desk: desk.dead(start, end))
        intervals = [proto.Interval(start=low, end=high) for low, high in found]
        return proto.Response(dead_listed=proto.DeadListed(intervals=intervals))

    async def claim(self, request: proto.Request) -> proto.Response:
        body = request.claim
        check_group(body.group)
        clerk = self._clerks.leading(body.topic, body.topic_id, body.partition)
        committed = await clerk.agreed(lambda desk: desk.claim(body.group, body.epoch))
        clerk.use(body.group)
        offset = clerk.start if committed is None else committed
        claimed = proto.Claimed(offset=offset, has_committed=committed is not None)
        return proto.Response(claimed=claimed)


def _described(clerk: Clerk, end: int, figures: Figures) -> proto.GroupDescription:
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
            proto.Consumer(consumer=number, name=clerk.names.get(number, ""), in_flight=in_flight)
            for number, in_flight in consumers.items()
        ],
        is_shared=figures.is_shared,
        end=end,
    )


def _intervals(parts: Sequence[proto.Interval]) -> list[Interval]:
    if len(parts) > _INTERVALS_MAX:
        raise InvalidRequest(f"name at most {_INTERVALS_MAX} intervals, not {len(parts)}")
    for part in parts:
        if part.start >= part.end:
            raise InvalidRequest(f"from {part.start} to before {part.end} is no interval")
    return [(part.start, part.end) for part in parts]
