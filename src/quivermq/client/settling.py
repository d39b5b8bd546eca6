"""Settling: rulings to whoever leads their partitions, one request for each broker."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quivermq.client.holdings import Holding, Holdings
from quivermq.client.leases import RELEASE, Ruling, lease_lost
from quivermq.client.routing import Router, Share
from quivermq.client.surveying import survey
from quivermq.errors import BrokenInvariant, QuiverError
from quivermq.wire import proto

PORTION_BYTES: Final = 512 << 10
"""Brokers take requests of up to 1 MiB, of 10,000 verdicts and of 100,000 intervals."""
INTERVALS_MAX: Final = 10_000
# What these take at most, and so that no limit is reached before that of the bytes.
_VERDICT_BYTES: Final = 64
_INTERVAL_BYTES: Final = 24
_CHARACTER_BYTES: Final = 4


class Settling:
    """The part of a client that tells brokers what became of messages, over either door."""

    def __init__(self, router: Router, holdings: Holdings) -> None:
        self._router = router
        self._holdings = holdings

    async def settle(self, rulings: Sequence[Ruling]) -> None:
        """Carry rulings out; raises `LeaseLost` after all others were carried out."""
        lost = await self.settled(rulings)
        if lost:
            raise lease_lost(lost)

    async def settled(self, rulings: Sequence[Ruling]) -> list[Ruling]:
        """Carry rulings out, and return what of them came too late."""
        groups: dict[tuple[str, bytes, str], list[Ruling]] = {}
        for ruling in rulings:
            lease = ruling.lease
            groups.setdefault((lease.topic, lease.topic_id, lease.group), []).append(ruling)
        lost: list[Ruling] = []
        failure: QuiverError | None = None
        for (topic, topic_id, group), ruled in groups.items():
            for some in _portions(ruled):
                try:
                    lost += await self._settle_group(topic, topic_id, group, some)
                except QuiverError as error:
                    # What cannot be settled must not keep the others from it.
                    failure = failure or error
        if failure is not None:
            raise failure
        return lost

    async def _settle_group(
        self, topic: str, topic_id: bytes, group: str, rulings: list[Ruling]
    ) -> list[Ruling]:
        by_partition: dict[int, list[Ruling]] = {}
        for ruling in rulings:
            by_partition.setdefault(ruling.lease.partition, []).append(ruling)

        def request_to(share: Share) -> proto.Request:
            request = proto.Request(direct=share.target.direct)
            settle = request.settle
            settle.topic, settle.topic_id, settle.group = topic, topic_id, group
            settle.consumer = self._holdings.consumer
            for partition in share.partitions:
                _add_verdicts(settle, by_partition[partition])
            return request

        attempts = self._router.attempts(f"settling messages of {topic} for group {group!r}")
        lost: list[Ruling] = []
        for share, reply in await survey(
            self._router, topic, list(by_partition), request_to, attempts, topic_id
        ):
            ruled = [ruling for each in share.partitions for ruling in by_partition[each]]
            self._note(ruled)
            late = _late(ruled, reply.response.settled)
            if attempts.was_uncertain:
                # Whether an attempt whose answer was lost released them, or they were lost before:
                # others get them. A nack has a delay and a rejection makes dead letters, and of
                # neither is it known that it took effect; brokers know acknowledgements again.
                late = [ruling for ruling in late if ruling.terms != RELEASE]
            lost += late
        return lost

    def _note(self, ruled: Sequence[Ruling]) -> None:
        for ruling in ruled:
            lease = ruling.lease
            holding = Holding(lease.topic, lease.group, lease.partition)
            if ruling.terms.ends_lease:
                self._holdings.settled(holding, lease.token, ruling.intervals)
            else:
                until = self._router.door.now() + ruling.terms.visibility_ms / 1000
                self._holdings.extended(holding, lease.token, until)


def _portions(rulings: Iterable[Ruling]) -> Iterator[list[Ruling]]:
    """As many at a time as fit into a request."""
    portion: list[Ruling] = []
    size = 0
    for ruling in rulings:
        spans = ruling.intervals
        for first in range(0, len(spans) or 1, INTERVALS_MAX):
            part = ruling._replace(intervals=spans[first : first + INTERVALS_MAX])
            cost = _VERDICT_BYTES + len(ruling.terms.reason) * _CHARACTER_BYTES
            cost += len(part.intervals) * _INTERVAL_BYTES
            if portion and size + cost > PORTION_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(part)
            size += cost
    if portion:
        yield portion


def _add_verdicts(settle: proto.Settle, rulings: Sequence[Ruling]) -> None:
    for lease, terms, intervals in rulings:
        verdict = settle.verdicts.add(partition=lease.partition, lease=lease.token)
        terms.fill(verdict)
        for start, end in intervals:
            verdict.intervals.add(start=start, end=end)


def _late(ruled: Sequence[Ruling], settled: proto.Settled) -> list[Ruling]:
    late = []
    for each in settled.lost:
        if each.verdict >= len(ruled):
            raise BrokenInvariant(f"verdict {each.verdict} of {len(ruled)} was lost")
        intervals = [(interval.start, interval.end) for interval in each.intervals]
        late.append(ruled[each.verdict]._replace(intervals=intervals))
    return late
