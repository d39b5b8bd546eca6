"""Sends settlements to the leaders of their partitions, one request for each broker."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from quivermq.client.ask_leaders import FailedAsk, ask_leaders
from quivermq.client.retry import Attempts
from quivermq.client.router import LeaderPartitions, Router
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import (
    RELEASE,
    Settlement,
    add_settlements,
    late_settlements,
    lease_lost,
)
from quivermq.client.shared.lone_settler import LoneSettler
from quivermq.errors import QuiverError
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer

PORTION_BYTES: Final = 512 << 10
"""Brokers take requests of up to 1 MiB, of 10,000 settlements and of 100,000 intervals."""
INTERVALS_MAX: Final = 10_000
# What these take at most, and so that no limit is reached before that of the bytes.
_SETTLEMENT_BYTES: Final = 64
_INTERVAL_BYTES: Final = 24
_CHARACTER_BYTES: Final = 4


class Settler:
    """The part of a client that acknowledges, rejects, releases and extends leased messages."""

    def __init__(self, router: Router, held_leases: HeldLeases) -> None:
        self._router = router
        self._held_leases = held_leases
        # One that traces has more to send along.
        self._lone = LoneSettler(router, held_leases) if router.tracer is None else None

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Send settlements; raises `LeaseLost` once all others are durable."""
        lost = await self.try_settle(settlements)
        if lost:
            raise lease_lost(lost)

    async def try_settle(
        self, settlements: Sequence[Settlement], origins: Sequence[str] | None = None
    ) -> list[Settlement]:
        """Send settlements, and return those that came too late. `origins` are trace contexts, if
        this is done in the background for others."""
        del origins  # for one that traces
        began = self._router.transport.now()
        straight: list[Settlement] | FailedAsk | None = None
        if self._lone is not None and self._router.is_blocking:
            straight = self._lone.settle(settlements)
        elif self._lone is not None:
            straight = await self._lone.settle_on_loop(settlements)
        if isinstance(straight, list):
            return straight
        groups: dict[tuple[str, bytes, str], list[Settlement]] = {}
        for settlement in settlements:
            lease = settlement.lease
            groups.setdefault((lease.topic, lease.topic_id, lease.group), []).append(settlement)
        lost: list[Settlement] = []
        failure: QuiverError | None = None
        for (topic, topic_id, group), sent in groups.items():
            for some in _portions(sent):
                try:
                    lost += await self._settle_group(topic, topic_id, group, some, began, straight)
                except QuiverError as error:
                    # What cannot be settled must not keep the others from it.
                    failure = failure or error
                began = self._router.transport.now()
        if failure is not None:
            raise failure
        return lost

    async def _settle_group(
        self,
        topic: str,
        topic_id: bytes,
        group: str,
        settlements: list[Settlement],
        began: float,
        failed: FailedAsk | None,
    ) -> list[Settlement]:
        by_partition: dict[int, list[Settlement]] = {}
        for settlement in settlements:
            by_partition.setdefault(settlement.lease.partition, []).append(settlement)

        def request_to(led: LeaderPartitions) -> proto.Request:
            request = proto.Request(direct=led.target.direct)
            settle = request.settle
            settle.topic, settle.topic_id, settle.group = topic, topic_id, group
            settle.consumer = self._held_leases.consumer
            for partition in led.partitions:
                add_settlements(settle, by_partition[partition])
            return request

        router, what = self._router, f"settling messages of {topic} for group {group!r}"
        attempts = Attempts(router.transport, router.timeout, what, deadline=began + router.timeout)
        lost: list[Settlement] = []
        for led, reply in await ask_leaders(
            self._router, topic, list(by_partition), request_to, attempts, topic_id, failed
        ):
            sent = [settlement for each in led.partitions for settlement in by_partition[each]]
            self._record(sent)
            late = late_settlements(sent, reply.response.settled)
            if attempts.was_uncertain:
                # Whether an attempt whose answer was lost released them, or they were lost before:
                # others get them. A nack has a delay and a rejection makes dead letters, and of
                # neither is it known that it took effect; brokers know acknowledgements again.
                late = [settlement for settlement in late if settlement.terms != RELEASE]
            lost += late
        return lost

    def _record(self, sent: Sequence[Settlement]) -> None:
        for settlement in sent:
            lease = settlement.lease
            source = LeaseSource(lease.topic, lease.group, lease.partition)
            if settlement.terms.ends_lease:
                self._held_leases.remove(source, lease.token, settlement.intervals)
            else:
                until = self._router.transport.now() + settlement.terms.visibility_ms / 1000
                self._held_leases.extend(source, lease.token, until)


class TracedSettler(Settler):
    """The same for a client that traces."""

    def __init__(self, router: Router, held_leases: HeldLeases, tracer: "ClientTracer") -> None:
        super().__init__(router, held_leases)
        self._tracer = tracer

    async def try_settle(
        self, settlements: Sequence[Settlement], origins: Sequence[str] | None = None
    ) -> list[Settlement]:
        """Send settlements, in a span."""
        with self._tracer.settle(settlements, origins):
            return await super().try_settle(settlements)


def _portions(settlements: Iterable[Settlement]) -> Iterator[list[Settlement]]:
    """As many at a time as fit into a request."""
    portion: list[Settlement] = []
    size = 0
    for settlement in settlements:
        spans = settlement.intervals
        for first in range(0, len(spans) or 1, INTERVALS_MAX):
            part = settlement
            if len(spans) > INTERVALS_MAX:
                part = settlement._replace(intervals=spans[first : first + INTERVALS_MAX])
            cost = _SETTLEMENT_BYTES + len(settlement.terms.reason) * _CHARACTER_BYTES
            cost += len(part.intervals) * _INTERVAL_BYTES
            if portion and size + cost > PORTION_BYTES:
                yield portion
                portion, size = [], 0
            portion.append(part)
            size += cost
    if portion:
        yield portion
