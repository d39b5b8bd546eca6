"""The values that a client returns about groups, delayed messages and dead letters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

from quivermq.batches import content_type_of
from quivermq.client.models import Message, short
from quivermq.wire import LETTER_HEADERS, proto

ARCHIVE_PREFIX: Final = "_archive."
"""Begins the name of a group whose offsets say how far a table holds a topic."""

"""Headers in which brokers describe a dead letter begin so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPartitionInfo:
    """A group in one partition. Every message of it from `start_offset` on is counted once: as
    waiting (`lag`), in flight, delayed, done, dead or lost."""

    partition: int
    lag: int
    """Messages that wait to be delivered; of sticky and single consumers, behind the committed
    offset."""
    in_flight: int = 0
    delayed: int = 0
    done: int = 0
    dead: int = 0
    lost: int = 0
    redelivered: int = 0
    floor: int = 0
    """Everything below is done."""
    committed: int | None = None
    """The offset that sticky and single consumers committed; None: nothing."""
    start_offset: int = 0
    end_offset: int = 0

    @classmethod
    def of(cls, found: proto.GroupDescription) -> Self:
        """As the leader of the partition described it."""
        committed = found.committed if found.HasField("committed") else None
        behind = max(0, found.end - (found.start if committed is None else committed))
        return cls(
            partition=found.partition,
            lag=found.waiting if found.is_shared else behind,
            in_flight=found.in_flight,
            delayed=found.delayed,
            done=found.done,
            dead=found.dead,
            lost=found.lost,
            redelivered=found.redelivered,
            floor=found.floor,
            committed=committed,
            start_offset=found.start,
            end_offset=found.end,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A consumer of a group."""

    id: str
    name: str
    """Its program, for people."""
    in_flight: int = 0
    """Messages that are leased to it."""
    partitions: tuple[int, ...] = ()
    """Of a sticky group: what is assigned to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group of a topic, summed over its partitions."""

    name: str
    topic: str
    mode: str
    """"shared", "sticky", "single": it only has committed offsets; or "archive": these tell how far
    a table holds the topic, and retention may wait for it."""
    members: list[MemberInfo] = field(default_factory=list)
    partitions: list[GroupPartitionInfo] = field(default_factory=list)
    generation: int = 0
    """Of a sticky group: grows with every change of its members or their partitions."""

    @property
    def lag(self) -> int:
        """Messages that wait to be delivered."""
        return sum(each.lag for each in self.partitions)

    @property
    def in_flight(self) -> int:
        """Messages that are leased to consumers."""
        return sum(each.in_flight for each in self.partitions)

    @property
    def done(self) -> int:
        """Messages that were acknowledged."""
        return sum(each.done for each in self.partitions)

    @property
    def delayed(self) -> int:
        """Messages that are not due: delayed by their producer, or between two attempts."""
        return sum(each.delayed for each in self.partitions)

    @property
    def dead(self) -> int:
        """Messages that went to the dead letters."""
        return sum(each.dead for each in self.partitions)

    @property
    def lost(self) -> int:
        """Messages that retention deleted before they were done."""
        return sum(each.lost for each in self.partitions)

    @property
    def redelivered(self) -> int:
        """Deliveries that were not the first of their message."""
        return sum(each.redelivered for each in self.partitions)

    def __repr__(self) -> str:
        return (
            f"<GroupInfo {self.name!r} of {self.topic!r} {self.mode}: lag {self.lag:,}, in flight "
            f"{self.in_flight:,}, done {self.done:,}, {len(self.members)} members>"
        )


def group_infos(
    topic: str, found: Iterable[proto.GroupDescription], sticky: Iterable[proto.StickyGroup]
) -> list[GroupInfo]:
    """Groups by name, merged from the answers of all leaders."""
    shared: dict[str, list[proto.GroupDescription]] = {}
    for each in found:
        shared.setdefault(each.group, []).append(each)
    ordered = {each.group: each for each in sticky}
    # Those that other tools keep for themselves hold nothing up.
    names = sorted(
        name
        for name in {*shared, *ordered}
        if name.startswith(ARCHIVE_PREFIX) or not name.startswith("_")
    )
    return [_merged(topic, name, shared.get(name, []), ordered.get(name)) for name in names]


def _merged(
    topic: str,
    name: str,
    described: list[proto.GroupDescription],
    sticky: proto.StickyGroup | None,
) -> GroupInfo:
    consumers: dict[int, MemberInfo] = {}
    for each in (consumer for found in described for consumer in found.consumers):
        before = consumers.get(each.consumer)
        in_flight = each.in_flight + (before.in_flight if before else 0)
        known_as = each.name or (before.name if before else "")
        consumers[each.consumer] = MemberInfo(
            id=str(each.consumer), name=known_as, in_flight=in_flight
        )
    for member in sticky.members if sticky is not None else ():
        consumers[member.member] = MemberInfo(
            id=str(member.member), name=member.name, partitions=tuple(member.partitions)
        )
    return GroupInfo(
        name=name,
        topic=topic,
        mode=_mode(name, described, sticky),
        members=sorted(consumers.values(), key=lambda member: (member.name, member.id)),
        partitions=sorted(
            map(GroupPartitionInfo.of, described), key=lambda partition: partition.partition
        ),
        generation=sticky.generation if sticky is not None else 0,
    )


def _mode(
    name: str, described: list[proto.GroupDescription], sticky: proto.StickyGroup | None
) -> str:
    if name.startswith(ARCHIVE_PREFIX):
        return "archive"
    if sticky is not None:
        return "sticky"
    if any(each.is_shared for each in described):
        return "shared"
    # It may have no members for the moment.
    return "sticky" if any(each.is_sticky for each in described) else "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedInfo:
    """Messages in a row that their producer delayed, and that are not due yet."""

    partition: int
    offset: int
    """Of the first of them."""
    count: int
    due: datetime
    priority: int

    @classmethod
    def of(cls, partition: int, found: proto.Delayed) -> Self:
        """As the leader of the partition listed them."""
        return cls(
            partition=partition,
            offset=found.start,
            count=found.count,
            due=datetime.fromtimestamp(found.due_ms / 1000, UTC),
            priority=found.priority,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlightInfo:
    """Messages in a row that are leased to one consumer of a group, delivered equally often."""

    partition: int
    offset: int
    """Of the first of them."""
    count: int
    member: str
    """The id of the consumer that has them."""
    program: str
    """Its name, for people."""
    deliveries: int
    """With this one."""
    held: float
    """Seconds since they were leased, extensions included; at least so many, if the leader of the
    partition changed meanwhile."""
    left: float
    """Seconds until the lease ends, unless it is extended."""

    @classmethod
    def all_of(cls, found: proto.GroupDescription) -> list[Self]:
        """As the leader of the partition listed them."""
        names = {consumer.consumer: consumer.name for consumer in found.consumers}
        return [
            cls(
                partition=found.partition,
                offset=each.start,
                count=each.count,
                member=str(each.consumer),
                program=names.get(each.consumer, ""),
                deliveries=each.deliveries,
                held=each.held_ms / 1000,
                left=each.left_ms / 1000,
            )
            for each in found.leased
        ]


class Redriven(int):
    """The number of dead letters that were redriven."""

    stayed: int
    """Those that could not be, and are still listed: the original is deleted by retention, or its
    group or topic is gone. `to="all"` stores them again."""

    def __new__(cls, messages: int, stayed: int = 0) -> Self:
        made = super().__new__(cls, messages)
        made.stayed = stayed
        return made

    def __repr__(self) -> str:
        return f"<Redriven {int(self)}, {self.stayed} stayed>" if self.stayed else str(int(self))


class DeadLetter(NamedTuple):
    """A message that failed too often or was rejected, with the reason.

    >>> for letter in client.dead_letters("orders"):
    ...     print(letter.original_offset, letter.reason, letter.value)
    """

    partition: int
    """Where it is in the dead-letter topic."""
    offset: int
    topic: str
    """The topic that it came from."""
    group: str
    """The group that could not do it."""
    reason: str
    deliveries: int | None
    """None, as the two below: it was put there without that header."""
    original_partition: int | None
    original_offset: int | None
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    """Its own."""
    timestamp: int
    died: str
    """When, as the broker wrote it."""

    @property
    def content_type(self) -> str | None:
        """As its producer named it, in the header `content-type`."""
        return content_type_of(self.headers)

    def __repr__(self) -> str:
        place = (
            "?" if each is None else each
            for each in (self.original_partition, self.original_offset)
        )
        origin = "{}/{}@{}".format(self.topic, *place)
        return f"<DeadLetter of {origin} group {self.group!r}: {self.reason} {short(self.value)}>"

    @classmethod
    def of(cls, message: Message) -> Self:
        """A message of a dead-letter topic; one that was put there by hand may lack headers."""
        written = {
            name.removeprefix(LETTER_HEADERS): value.decode(errors="replace")
            for name, value in message.headers.items()
            if name.startswith(LETTER_HEADERS)
        }
        own = {
            name: value
            for name, value in message.headers.items()
            if not name.startswith(LETTER_HEADERS)
        }
        return cls(
            partition=message.partition,
            offset=message.offset,
            topic=written.get("topic", ""),
            group=written.get("group", ""),
            reason=written.get("reason", ""),
            deliveries=_number(written.get("deliveries", "")),
            original_partition=_number(written.get("partition", "")),
            original_offset=_number(written.get("offset", "")),
            key=message.key,
            value=message.value,
            headers=own,
            timestamp=message.timestamp,
            died=written.get("time", ""),
        )


def _number(text: str) -> int | None:
    # A client may have written anything; Python refuses to read thousands of digits.
    return int(text) if text.isdecimal() and len(text) < 20 else None
