"""Where a group stands, in numbers: every message is counted once."""

from typing import NamedTuple

from quivermq.queue.group import DELAYED, Group
from quivermq.queue.intervals import IntervalSet
from quivermq.queue.pieces import messages_in
from quivermq.queue.stretches import Stretches


class Figures(NamedTuple):
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


def figures_of(
    group: Group, stretches: Stretches, cancelled: IntervalSet, end: int, now_ms: int
) -> Figures:
    """A group in numbers; `end` is behind the last message that it may have."""
    consumers: dict[int, int] = {}
    for lease in group.leases.values():
        held = messages_in(lease.pieces)
        consumers[lease.consumer] = consumers.get(lease.consumer, 0) + held
    moving = sum(one.end - one.start for one in group.dying.values() if not one.is_stale)
    dead = group.totals.dead + moving
    delayed = group.waiting.messages - group.waiting.ready_messages
    done = group.totals.done
    for one in stretches.delayed_from(group.cursors[DELAYED], end):
        for low, high in group.not_done(max(one.start, group.cursors[DELAYED]), one.end):
            kept = sum(stop - start for start, stop in cancelled.gaps(low, high))
            done += high - low - kept
            delayed += kept if one.due_ms > now_ms else 0
    settled = group.leased_messages + delayed + done + dead + group.totals.lost
    return Figures(
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
