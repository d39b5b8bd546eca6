"""What became of leased messages: all verdicts of a request at once, answered when committed."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from quivermq.errors import InvalidRequest
from quivermq.node.clerk import Clerk
from quivermq.node.clerks import Clerks, check_group
from quivermq.node.figures import Figures
from quivermq.queue import Desk, Interval
from quivermq.queue.desk import VISIBILITY_MS_MAX
from quivermq.wire import proto

_VERDICTS_MAX: Final = 10_000
_VERDICTS_AT_ONCE: Final = 1_000
_INTERVALS_MAX: Final = 100_000
_REASON_CHARACTERS_MAX: Final = 1_000
_DELAY_MS_MAX: Final = 7 * 24 * 3600 * 1000
_OUTCOMES: Final = frozenset(proto.Outcome.values())

_PORTION: Final = 2_000
"""Verdicts and intervals that are settled in one turn of the event loop."""

Numbered = tuple[int, proto.Verdict]
Part = tuple[int, proto.Verdict, list[Interval] | None]
"""Of a verdict: some of its intervals, or None for a whole lease."""


class Settling:
    """Takes verdicts in for the partitions that are led here."""

    def __init__(self, clerks: Clerks, figures: Figures) -> None:
        self._clerks = clerks
        self._figures = figures

    async def settle(self, body: proto.Settle) -> proto.Response:
        check_group(body.group)
        _check(body.verdicts)
        if len(body.verdicts) > _VERDICTS_AT_ONCE:
            # To check them took a while, and so will the rest.
            await asyncio.sleep(0)
        by_partition: dict[int, list[Numbered]] = {}
        for number, verdict in enumerate(body.verdicts):
            by_partition.setdefault(verdict.partition, []).append((number, verdict))
        # All of them first: half a request that is refused would be a riddle.
        clerks = {
            partition: self._clerks.leading(body.topic, body.topic_id, partition)
            for partition in by_partition
        }
        settling = [
            self._settle_at(clerks[partition], body, verdicts)
            for partition, verdicts in by_partition.items()
        ]
        # Mostly there is one, which needs no task of its own.
        lost = [await settling[0]] if len(settling) == 1 else await asyncio.gather(*settling)
        found = sorted(chain.from_iterable(lost), key=lambda one: one.verdict)
        return proto.Response(settled=proto.Settled(lost=found))

    async def _settle_at(
        self, clerk: Clerk, body: proto.Settle, verdicts: Sequence[Numbered]
    ) -> list[proto.Lost]:
        group, consumer = body.group, body.consumer
        now_ms, steady_ms = clerk.now_ms(), clerk.steady_ms()
        lost: dict[int, list[Interval]] = {}

        def settle(desk: Desk, portion: Sequence[Part]) -> int:
            before = _done(desk, group)
            for number, verdict, intervals in portion:
                found = _carry_out(desk, group, consumer, verdict, intervals, now_ms, steady_ms)
                if found is not None:
                    lost.setdefault(number, []).extend(found)
            return _done(desk, group) - before

        acked = 0
        *first, last = _portions(verdicts)
        for portion in first:
            acked += clerk.at_desk(partial(settle, portion=portion), of=group)
            # Others wait for their turn.
            await asyncio.sleep(0)
        acked += await clerk.agreed(partial(settle, portion=last), of=group)
        name = clerk.group.name
        self._figures.shares[name.topic, name.partition, group].acked += acked
        return [
            proto.Lost(
                verdict=number,
                intervals=[proto.Interval(start=start, end=end) for start, end in intervals],
            )
            for number, intervals in lost.items()
        ]

    async def release_consumer(self, body: proto.ReleaseConsumer) -> proto.Response:
        """A consumer ends: what it holds goes back at once."""
        check_group(body.group)
        clerks = [
            self._clerks.leading(body.topic, body.topic_id, number)
            for number in dict.fromkeys(body.partitions)
        ]

        async def release(clerk: Clerk) -> None:
            while await clerk.agreed(
                lambda desk: desk.release_consumer(body.group, body.consumer), of=body.group
            ):
                # There may be more.
                continue

        await asyncio.gather(*map(release, clerks))
        return proto.Response(done=proto.Done())


def _portions(verdicts: Sequence[Numbered]) -> Iterator[list[Part]]:
    """All of them, in portions that hold up nobody; mostly there is one."""
    portion: list[Part] = []
    left = _PORTION
    for number, verdict in verdicts:
        intervals = [(part.start, part.end) for part in verdict.intervals]
        for at in range(0, max(len(intervals), 1), _PORTION):
            part = intervals[at : at + _PORTION]
            if left < max(len(part), 1):
                yield portion
                portion, left = [], _PORTION
            portion.append((number, verdict, part or None))
            left -= max(len(part), 1)
    yield portion


def _carry_out(
    desk: Desk,
    group: str,
    consumer: int,
    verdict: proto.Verdict,
    intervals: list[Interval] | None,
    now_ms: int,
    steady_ms: int,
) -> list[Interval] | None:
    """One verdict, or a part of it; what was lost, or None if nothing was."""
    lease = verdict.lease
    if intervals is None and not _is_known(desk, group, consumer, lease):
        # Nobody knows what was left of it.
        return []
    if verdict.outcome == proto.EXTEND:
        is_held = desk.extend(group, lease, verdict.visibility_ms, steady_ms, consumer)
        return None if is_held else []
    if verdict.outcome == proto.NACK:
        delay_ms = verdict.delay_ms if verdict.HasField("delay_ms") else None
        lost = desk.fail(group, lease, intervals, delay_ms, now_ms, consumer)
    elif verdict.outcome == proto.REJECT:
        reason = verdict.reason[:_REASON_CHARACTERS_MAX]
        lost = desk.reject(group, lease, intervals, reason, now_ms, consumer)
    elif verdict.outcome == proto.RELEASE:
        lost = desk.release(group, lease, intervals, consumer)
    else:
        lost = desk.acknowledge(group, lease, intervals, consumer)
    return lost or None


def _is_known(desk: Desk, group: str, consumer: int, lease: int) -> bool:
    """Whether it is known what a consumer means by all of a lease; of a group that nobody knows
    the desk says so itself."""
    found = desk.groups.by_name.get(group)
    return found is None or found.is_known(consumer, lease)


def _done(desk: Desk, group: str) -> int:
    """How many messages a group is done with."""
    found = desk.groups.by_name.get(group)
    return 0 if found is None else found.totals.done


def _check(verdicts: Sequence[proto.Verdict]) -> None:
    if not 1 <= len(verdicts) <= _VERDICTS_MAX:
        raise InvalidRequest(f"settle with 1 to {_VERDICTS_MAX} verdicts, not {len(verdicts)}")
    if sum(len(verdict.intervals) for verdict in verdicts) > _INTERVALS_MAX:
        raise InvalidRequest(f"settle at most {_INTERVALS_MAX} intervals at once")
    for verdict in verdicts:
        if not verdict.lease:
            raise InvalidRequest("a verdict needs the lease that it is about")
        if verdict.outcome not in _OUTCOMES:
            raise InvalidRequest(f"outcome {verdict.outcome} is unknown: upgrade this broker")
        if verdict.delay_ms > _DELAY_MS_MAX:
            raise InvalidRequest(f"a message cannot be delayed by more than {_DELAY_MS_MAX} ms")
        if verdict.outcome == proto.EXTEND:
            _check_extension(verdict)
        for part in verdict.intervals:
            if part.start >= part.end:
                raise InvalidRequest(f"from {part.start} to before {part.end} is no interval")


def _check_extension(verdict: proto.Verdict) -> None:
    if verdict.intervals:
        raise InvalidRequest("only whole leases can be extended")
    if not 0 < verdict.visibility_ms <= VISIBILITY_MS_MAX:
        raise InvalidRequest(
            f"a lease cannot be extended by {verdict.visibility_ms} ms: name 1 to "
            f"{VISIBILITY_MS_MAX}"
        )
