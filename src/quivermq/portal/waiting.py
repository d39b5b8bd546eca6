"""Why a message waits: a sentence for one message and one group, from what brokers tell. Pure.

Brokers list what is leased, but not what is between two attempts. Where several states are
possible, the answer says so.
"""

from collections.abc import Sequence
from datetime import datetime

from quivermq.client import (
    DeadLetter,
    DelayedInfo,
    GroupInfo,
    GroupPartitionInfo,
    InFlightInfo,
    TopicInfo,
)
from quivermq.quantities import count, format_duration


def explain(
    topic: TopicInfo,
    group: GroupInfo,
    partition: int,
    offset: int,
    delayed: Sequence[DelayedInfo],
    letters: Sequence[DeadLetter],
    leased: Sequence[InFlightInfo],
    now: datetime,
) -> str:
    """The state of the message for the group, or what it waits for."""
    here = next((each for each in topic.partitions if each.partition == partition), None)
    if here is None:
        return f"{topic.name} has no partition {partition}."
    place = f"Message {offset:,} of partition {partition}"
    if here.end_offset is not None and offset >= here.end_offset:
        return f"{place} does not exist yet: the partition ends at {here.end_offset:,}."
    if here.start_offset is not None and offset < here.start_offset:
        return f"{place} was deleted by retention: the first that is kept is {here.start_offset:,}."
    if not here.leader:
        return f"{place} waits because its partition has no leader: most of its replicas are down."
    figures = next((each for each in group.partitions if each.partition == partition), None)
    if figures is None:
        return f"{place} waits for a first poll: group {group.name} has not used this partition."
    if group.mode != "shared":
        return _in_order(place, group, figures, offset)
    return _shared(place, topic, group, figures, offset, delayed, letters, leased, now)


def _in_order(place: str, group: GroupInfo, figures: GroupPartitionInfo, offset: int) -> str:
    committed = figures.committed
    if committed is not None and offset < committed:
        return f"{place} is done: group {group.name} has committed offset {committed:,}."
    begin = figures.start_offset if committed is None else committed
    before = count(max(0, offset - begin), "message")
    if group.mode == "sticky":
        owner = next((each for each in group.members if figures.partition in each.partitions), None)
        if owner is None:
            return f"{place} waits because no member of {group.name} owns the partition."
        return f"{place} waits for {owner.name or owner.id}, which has {before} before it."
    return f"{place} is not committed: {before} of the group are before it."


def _shared(
    place: str,
    topic: TopicInfo,
    group: GroupInfo,
    figures: GroupPartitionInfo,
    offset: int,
    delayed: Sequence[DelayedInfo],
    letters: Sequence[DeadLetter],
    leased: Sequence[InFlightInfo],
    now: datetime,
) -> str:
    if offset < figures.start_offset:
        return f"{place} is not the group's: {group.name} began at {figures.start_offset:,}."
    if listed := _listed(place, group, figures, offset, delayed, letters, leased, now):
        return listed
    if offset < figures.floor:
        return f"{place} is done: everything below {figures.floor:,} is."
    if not figures.lag:
        return _settled_or_taken(place, figures)
    ahead = f"{count(figures.lag, 'message')} of the partition wait to be delivered"
    if topic.rate_limit is not None:
        return (
            f"{place} waits for its turn: {ahead}, and the topic delivers at most "
            f"{topic.rate_limit.per_second:g} a second."
        )
    if not group.members:
        return f"{place} waits because no consumer of {group.name} polls: {ahead}."
    others = f" or is one of {_others(figures)}" if _others(figures) else ""
    return (
        f"{place} waits for its turn{others}: {ahead}, and "
        f"{count(len(group.members), 'consumer')} of {group.name} are at work."
    )


def _listed(
    place: str,
    group: GroupInfo,
    figures: GroupPartitionInfo,
    offset: int,
    delayed: Sequence[DelayedInfo],
    letters: Sequence[DeadLetter],
    leased: Sequence[InFlightInfo],
    now: datetime,
) -> str:
    """The word of a list about it: of dead letters, of delayed or of leased messages."""
    for letter in letters:
        is_it = (letter.original_partition, letter.original_offset) == (figures.partition, offset)
        if is_it and letter.group in {"", group.name}:
            return f"{place} is a dead letter: {letter.reason or 'no reason was given'}."
    for each in delayed:
        if each.partition == figures.partition and each.offset <= offset < each.offset + each.count:
            seconds = max(0, round((each.due - now).total_seconds()))
            return f"{place} waits because its producer delayed it: it is due in {seconds:,} s."
    for held in leased:
        if held.partition == figures.partition and 0 <= offset - held.offset < held.count:
            return (
                f"{place} is in flight: {held.program or held.member} has held it for "
                f"{format_duration(int(held.held))}, as its delivery no. {held.deliveries}; if it "
                f"is not settled, it comes back in {format_duration(int(held.left))}."
            )
    return ""


def _settled_or_taken(place: str, figures: GroupPartitionInfo) -> str:
    others = _others(figures)
    if not others:
        return f"{place} is done: nothing of the partition waits."
    return f"{place} is one of {others}, or it is done: nothing else of the partition waits."


def _others(figures: GroupPartitionInfo) -> str:
    """The states beside waiting that messages of the partition are in."""
    found = []
    if figures.in_flight:
        found.append(f"{figures.in_flight:,} in flight, leased to a consumer")
    if figures.delayed:
        found.append(f"{figures.delayed:,} delayed, by their producer or after a failure")
    return " or of ".join(found)
