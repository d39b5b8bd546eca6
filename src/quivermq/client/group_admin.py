"""Administration of groups and of delayed messages: describes, moves and deletes them."""

from collections.abc import Iterable

from quivermq.client.ask_leaders import ask_leaders
from quivermq.client.checks import check_number, checked_group, checked_name
from quivermq.client.cursor import Place, parse_place
from quivermq.client.group_models import (
    ARCHIVE_PREFIX,
    DelayedInfo,
    GroupInfo,
    InFlightInfo,
    group_infos,
)
from quivermq.client.retry import Attempts
from quivermq.client.router import LeaderPartitions, Router
from quivermq.errors import InvalidRequest
from quivermq.intervals import Interval, join
from quivermq.wire import proto

DelayedMessages = int | DelayedInfo | Iterable[int | DelayedInfo]
"""Offsets in a partition, or messages as they were listed."""


class GroupAdmin:
    """The part of a client that administers groups."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def groups(self, topic: str) -> list[GroupInfo]:
        """All groups of a topic, by name."""
        return await self._describe(checked_name("topic", topic), "")

    async def group(self, topic: str, group: str) -> GroupInfo:
        """One group."""
        found = await self._describe(checked_name("topic", topic), _checked_shown(group))
        if not found:
            raise InvalidRequest(
                f"topic {topic!r} has no group {group!r}: it begins to exist with its first poll"
            )
        return found[0]

    async def in_flight(self, topic: str, group: str, limit: int) -> list[InFlightInfo]:
        """The messages that are leased to consumers of a group, the longest held first."""
        check_number("limit", limit, least=1, whole=True)
        attempts = self._router.attempts(f"listing what group {checked_group(group)!r} has leased")
        described = await self._ask(
            checked_name("topic", topic), group, attempts, min(limit, (1 << 32) - 1)
        )
        if not described:
            await self.group(topic, group)
        found = [each for one in described for each in InFlightInfo.all_of(one)]
        found.sort(key=lambda info: (-info.held, info.partition, info.offset))
        return found[:limit]

    async def _describe(self, topic: str, group: str) -> list[GroupInfo]:
        attempts = self._router.attempts(f"describing groups of {topic}")
        found = await self._ask(topic, group, attempts)
        return group_infos(topic, found, await self._sticky(topic, group, attempts))

    async def _ask(
        self, topic: str, group: str, attempts: Attempts, leases: int = 0
    ) -> list[proto.GroupDescription]:
        def request_to(led: LeaderPartitions) -> proto.Request:
            request = proto.Request(direct=led.target.direct)
            asked = request.describe_groups
            asked.topic, asked.group, asked.leases = topic, group, leases
            asked.partitions.extend(led.partitions)
            return request

        # All leaders are asked, so the map had better be true.
        await self._router.refresh(topic, attempts)
        answers = await ask_leaders(self._router, topic, None, request_to, attempts)
        return [each for _, reply in answers for each in reply.response.groups_described.groups]

    async def _sticky(self, topic: str, group: str, attempts: Attempts) -> list[proto.StickyGroup]:
        request = proto.Request()
        request.describe_sticky.topic, request.describe_sticky.group = topic, group
        try:
            response = await self._router.ask_any(request, attempts)
        except InvalidRequest:
            return []  # brokers that know of no sticky groups
        return list(response.sticky_described.groups)

    async def seek(
        self, topic: str, group: str, to: Place, partition: int | None
    ) -> dict[int, int]:
        """Let a group go on somewhere else; returns where, by partition."""
        place = parse_place("to", to)
        attempts = self._router.attempts(f"seeking group {checked_group(group)!r}")
        partitions = await self._partitions(topic, partition, attempts)
        if isinstance(place, int) and len(partitions) > 1:
            raise InvalidRequest(
                f"topic {topic!r} has {len(partitions)} partitions: an offset means something in "
                "one of them; name it with partition=..."
            )
        found = {}
        for number in partitions:
            request = proto.Request()
            seek = request.seek_group
            seek.topic, seek.partition, seek.group = topic, number, group
            match place:
                case int():
                    seek.offset = place
                case "earliest":
                    seek.earliest = True
                case "latest":
                    seek.latest = True
                case _:
                    seek.timestamp_ms = int(place[1:])
            reply = await self._router.ask_leader(topic, number, request, attempts)
            found[number] = reply.response.group_sought.offset
        return found

    async def delete_group(self, topic: str, group: str) -> None:
        """Forget a group."""
        attempts = self._router.attempts(f"deleting group {_checked_shown(group)!r}")
        for number in await self._partitions(topic, None, attempts):
            request = proto.Request()
            delete = request.delete_group
            delete.topic, delete.partition, delete.group = topic, number, group
            await self._router.ask_leader(topic, number, request, attempts)

    async def delayed(self, topic: str, limit: int) -> list[DelayedInfo]:
        """Messages that are not due yet, the next one first."""
        check_number("limit", limit, least=1, whole=True)
        attempts = self._router.attempts(f"listing delayed messages of {topic}")
        found: list[DelayedInfo] = []
        for number in await self._partitions(topic, None, attempts):
            request = proto.Request()
            ask = request.list_delayed
            ask.topic, ask.partition, ask.limit = topic, number, min(limit, (1 << 32) - 1)
            reply = await self._router.ask_leader(topic, number, request, attempts)
            found += [
                DelayedInfo.of(number, each) for each in reply.response.delayed_listed.batches
            ]
        found.sort(key=lambda info: (info.due, info.partition, info.offset))
        return found[:limit]

    async def cancel_delayed(
        self, topic: str, partition: int | None, offsets: DelayedMessages
    ) -> int:
        """Do not deliver these; returns how many of them were not due yet."""
        chosen = _chosen_delayed(partition, offsets)
        attempts = self._router.attempts(f"cancelling delayed messages of {topic}")
        cancelled = 0
        for each, intervals in chosen.items():
            (number,) = await self._partitions(topic, each, attempts)
            request = proto.Request()
            cancel = request.cancel_delayed
            cancel.topic, cancel.partition = topic, number
            for start, end in intervals:
                cancel.intervals.add(start=start, end=end)
            reply = await self._router.ask_leader(topic, number, request, attempts)
            cancelled += reply.response.delayed_cancelled.cancelled
        return cancelled

    async def _partitions(self, topic: str, partition: int | None, attempts: Attempts) -> list[int]:
        route = await self._router.refresh(checked_name("topic", topic), attempts)
        if partition is not None:
            return [route.check(partition)]
        return list(range(len(route.leaders)))


def _chosen_delayed(partition: int | None, offsets: DelayedMessages) -> dict[int, list[Interval]]:
    if not isinstance(offsets, int | Iterable | DelayedInfo):
        raise InvalidRequest(f"offsets are one offset or several: {offsets!r}")
    wanted = [offsets] if isinstance(offsets, int | DelayedInfo) else list(offsets)
    chosen: dict[int, list[Interval]] = {}
    for each in wanted:
        if isinstance(each, DelayedInfo):
            interval = (each.offset, each.offset + each.count)
            chosen.setdefault(each.partition, []).append(interval)
            continue
        check_number("offset", each, least=0, whole=True)
        if partition is None:
            raise InvalidRequest("name the partition that the offsets are of")
        chosen.setdefault(partition, []).append((each, each + 1))
    return {number: join(intervals) for number, intervals in chosen.items()}


def _checked_shown(group: str) -> str:
    """The name of a group that a user may look at and delete."""
    if isinstance(group, str) and group.startswith(ARCHIVE_PREFIX):
        return checked_name("group", group)
    return checked_group(group)
