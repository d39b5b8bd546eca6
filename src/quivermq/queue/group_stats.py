"""Counts the messages of a group by what became of them: every message once."""

from typing import NamedTuple

from quivermq.intervals import Interval, IntervalSet
from quivermq.queue.delayed import DelayedBatches, key_of
from quivermq.queue.group import DELAYED, Group
from quivermq.queue.pieces import messages_in
from quivermq.queue.priority_index import PriorityIndex


class GroupStats(NamedTuple):
    """Messages of one partition from `start` on, by what became of them for one group."""

    group: str
    is_shared: bool
    start: int
    floor: int
    waiting: int
    """To be delivered at any time."""
    in_flight: int
    delayed: int
    """Not due: delayed by their producer, or between two attempts."""
    done: int
    dead: int
    """In the dead-letter topic, or on their way there."""
    lost: int
    """Deleted by retention before they were done."""
    redelivered: int
    """Deliveries after a failure; counted beside the others."""
    committed: int | None
    consumers: dict[int, int]
    """Messages in flight by consumer."""


def stats_of(
    group: Group, priority_index: PriorityIndex, cancelled: IntervalSet, end: int, now_ms: int
) -> GroupStats:
    """A group in numbers; `end` is behind the last message that it may have."""
    consumers: dict[int, int] = {}
    for lease in group.leases.values():
        held = messages_in(lease.pieces)
        consumers[lease.consumer] = consumers.get(lease.consumer, 0) + held
    dead = group.totals.dead + group.dying_messages
    later, unwanted = _ahead(group, priority_index.delayed, cancelled, now_ms)
    delayed = group.waiting.messages - group.waiting.ready_messages + later
    done = group.totals.done + unwanted
    settled = group.leased_messages + delayed + done + dead + group.totals.lost
    return GroupStats(
        group=group.name,
        is_shared=group.is_shared,
        start=group.start,
        floor=group.floor,
        waiting=max(end - group.start, 0) - settled if group.is_shared else 0,
        in_flight=group.leased_messages,
        delayed=delayed if group.is_shared else 0,
        done=done,
        dead=dead,
        lost=group.totals.lost,
        redelivered=group.totals.redelivered,
        committed=group.committed,
        consumers=consumers,
    )


def _ahead(
    group: Group, delayed: DelayedBatches, cancelled: IntervalSet, now_ms: int
) -> tuple[int, int]:
    """Of delayed batches that a group has not taken over: how many messages are not due, and how
    many were cancelled.

    Counted as a whole; only what is done or cancelled out of turn is looked up one by one.
    """
    if not len(delayed) or not group.is_shared:
        return 0, 0
    behind = max(group.due, key_of(now_ms))
    later = delayed.messages_after(behind) - delayed.messages_below(group.floor, behind)
    if group.due > key_of(now_ms):
        # The clock went back: some came in since that are not due, and were not taken over.
        for one in delayed.overlapping(group.cursors[DELAYED], end=2**64):
            if one.start >= group.cursors[DELAYED] and now_ms < one.due_ms and one.key <= group.due:
                later += one.end - max(one.start, group.floor)
    for start, end in group.done:
        later -= _untaken(group, delayed, (start, end), now_ms)[0]
    unwanted = 0
    for start, end in cancelled:
        for part in group.not_done(start, end):
            not_due, every = _untaken(group, delayed, part, now_ms)
            later -= not_due
            unwanted += every
    return later, unwanted


def _untaken(group: Group, delayed: DelayedBatches, part: Interval, now_ms: int) -> tuple[int, int]:
    """Messages of an interval in delayed batches that a group has not taken over: those that are
    not due, and all."""
    not_due = every = 0
    for one in delayed.overlapping(*part):
        if not group.has_taken(one):
            count = min(one.end, part[1]) - max(one.start, part[0])
            every += count
            not_due += count if one.due_ms > now_ms else 0
    return not_due, every
