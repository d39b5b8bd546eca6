"""Settling: rulings to whoever leads their partitions, one request for each broker."""

from collections.abc import Sequence

from quivermq.client.holdings import Holding, Holdings
from quivermq.client.leases import Lease, Ruling, lease_lost
from quivermq.client.retry import Attempts
from quivermq.client.routing import Router, Share
from quivermq.errors import BrokenInvariant, NotLeader, QuiverError, TopicNotFound
from quivermq.wire import proto


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
        for ruled in groups.values():
            lost += await self._settle_group(ruled)
        return lost

    async def _settle_group(self, rulings: list[Ruling]) -> list[Ruling]:
        topic, group = rulings[0].lease.topic, rulings[0].lease.group
        attempts = self._router.attempts(f"settling messages of {topic} for group {group!r}")
        lost: list[Ruling] = []
        left: dict[int, list[Ruling]] = {}
        for ruling in rulings:
            left.setdefault(ruling.lease.partition, []).append(ruling)
        while left:
            shares = await self._router.shares(topic, attempts, list(left))
            asks = [(share.target.address, _request(share, left)) for share in shares]
            failure: tuple[Share, QuiverError] | None = None
            outcomes = await self._router.ask_all(asks, attempts)
            for share, outcome in zip(shares, outcomes, strict=True):
                if isinstance(outcome, QuiverError):
                    failure = failure or (share, outcome)
                    continue
                ruled = [ruling for partition in share.partitions for ruling in left.pop(partition)]
                lost += self._noted(ruled, outcome.response.settled)
            if failure is not None:
                await self._recover(rulings[0].lease, *failure, attempts)
        return lost

    def _noted(self, ruled: list[Ruling], settled: proto.Settled) -> list[Ruling]:
        """What came too late."""
        for ruling in ruled:
            lease = ruling.lease
            holding = Holding(lease.topic, lease.group, lease.partition)
            if ruling.terms.ends_lease:
                self._holdings.settled(holding, ruling.message_count)
            else:
                until = self._router.door.now() + ruling.terms.visibility_ms / 1000
                self._holdings.extended(holding, until)
        lost = []
        for each in settled.lost:
            if each.verdict >= len(ruled):
                raise BrokenInvariant(f"verdict {each.verdict} of {len(ruled)} was lost")
            intervals = [(interval.start, interval.end) for interval in each.intervals]
            lost.append(ruled[each.verdict]._replace(intervals=intervals))
        return lost

    async def _recover(
        self, lease: Lease, share: Share, error: QuiverError, attempts: Attempts
    ) -> None:
        topic = lease.topic
        if isinstance(error, TopicNotFound):
            route = await self._router.refresh(topic, attempts)
            if route.id != lease.topic_id:
                raise TopicNotFound(
                    f"topic {topic!r} was deleted and created again: what was leased of it is gone"
                )
        await recover_share(self._router, topic, share, error, attempts)


async def recover_share(
    router: Router, topic: str, share: Share, error: QuiverError, attempts: Attempts
) -> None:
    """Learn from a failed attempt at a share, and return when it is time for the next; or raise."""
    if isinstance(error, NotLeader) and len(share.partitions) > 1:
        # It does not say of which partition it speaks: a hint would be taken for the wrong one.
        error = NotLeader(str(error))
    await router.recover(topic, share.partitions[0], share.target, error, attempts)


def _request(share: Share, left: dict[int, list[Ruling]]) -> proto.Request:
    request = proto.Request(direct=share.target.direct)
    settle = request.settle
    first = left[share.partitions[0]][0].lease
    settle.topic, settle.topic_id, settle.group = first.topic, first.topic_id, first.group
    for partition in share.partitions:
        for lease, terms, intervals in left[partition]:
            verdict = settle.verdicts.add(partition=partition, lease=lease.token)
            terms.fill(verdict)
            for start, end in intervals:
                verdict.intervals.add(start=start, end=end)
    return request
