"""Answers heartbeats of the members of sticky groups, and describes the groups."""

from typing import Final

from quivermq.cluster import (
    ASSIGNORS,
    MEMBER_NAME_CHARACTERS_MAX,
    Enrolled,
    StickyGroup,
    StickyName,
)
from quivermq.errors import InvalidRequest, TopicNotFound
from quivermq.names import check_group_name
from quivermq.node.delivery.registry import public_id
from quivermq.node.metadata import Metadata
from quivermq.node.service import Handler
from quivermq.node.sticky_coordinator import Heartbeat, StickyCoordinator
from quivermq.node.time_slices import Slices
from quivermq.wire import check_answer, proto

SESSION_MS_DEFAULT: Final = 10_000
SESSION_MS_MIN: Final = 500
SESSION_MS_MAX: Final = 3_600_000
_MEMBER_MAX: Final = (1 << 63) - 1
_RELEASED_MAX: Final = 100_000


class StickyHandlers:
    """Heartbeats, and assignments."""

    def __init__(self, metadata: Metadata, coordinator: StickyCoordinator) -> None:
        self._metadata = metadata
        self._coordinator = coordinator
        self._slices = Slices()

    def handlers(self) -> dict[str, Handler]:
        return {"sticky_beat": self.beat, "describe_sticky": self.describe}

    async def beat(self, request: proto.Request) -> proto.Response:
        self._metadata.leading_replica()
        beat = parse_heartbeat(request.sticky_beat)
        standing = await self._coordinator.beat(beat)
        return proto.Response(
            sticky_state=proto.StickyState(
                generation=standing.generation,
                assigned=[
                    proto.StickyPartition(partition=partition, epoch=epoch)
                    for partition, epoch in standing.share.assigned
                ],
                revoked=standing.share.revoked,
                members=standing.members,
                beat_ms=beat.interval_ms,
            )
        )

    async def describe(self, request: proto.Request) -> proto.Response:
        body = request.describe_sticky
        await self._metadata.catch_up()
        view = self._metadata.view
        topic = view.topics.get(body.topic)
        if topic is None:
            raise TopicNotFound(f"there is no topic {body.topic!r}")
        found, size = proto.StickyDescribed(), 0
        async with self._slices.turn() as turn:
            for group in view.sticky.values():
                if group.topic_id == topic.id and body.group in {"", group.group}:
                    found.groups.append(describe_group(body.topic, group))
                    size += found.groups[-1].ByteSize()
                    check_answer(size, "name a group")
                await turn.rest()
        return proto.Response(sticky_described=found)


def describe_group(topic: str, group: StickyGroup) -> proto.StickyGroup:
    """Partitions stand with the member that holds them, also while they are being handed over."""
    held: dict[int, list[int]] = {member: [] for member in group.members}
    for partition, owner in enumerate(group.owners):
        held[owner.member].append(partition)
    return proto.StickyGroup(
        topic=topic,
        group=group.group,
        generation=group.generation,
        assignor=group.assignor,
        members=[
            proto.StickyMember(
                member=public_id(member), name=enrolled.name, partitions=held[member]
            )
            for member, enrolled in group.members.items()
        ],
    )


def parse_heartbeat(body: proto.StickyBeat) -> Heartbeat:
    """The heartbeat in a request, checked."""
    check_group_name(body.group)
    assignor = body.assignor or "sticky"
    if assignor not in ASSIGNORS:
        known = ", ".join(sorted(ASSIGNORS))
        raise InvalidRequest(f"there is no assignor {assignor[:50]!r}: use one of {known}")
    if not 0 < body.member <= _MEMBER_MAX:
        raise InvalidRequest("a member is a random number from 1 to 2**63 - 1")
    session_ms = body.session_ms or SESSION_MS_DEFAULT
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
        raise InvalidRequest(
            f"a session lasts {SESSION_MS_MIN / 1000:g} to {SESSION_MS_MAX / 1000:g} seconds, not "
            f"{session_ms / 1000:g}"
        )
    if len(body.released) > _RELEASED_MAX:
        raise InvalidRequest(f"at most {_RELEASED_MAX:,} partitions are released at once")
    letters = body.member_name[:MEMBER_NAME_CHARACTERS_MAX]
    name = "".join(each if " " <= each <= "~" else "?" for each in letters)
    return Heartbeat(
        name=StickyName(body.topic, body.group),
        member=body.member,
        enrolled=Enrolled(name, session_ms),
        assignor=assignor,
        generation=body.generation,
        released=tuple(body.released),
        is_leaving=body.leaving,
    )
