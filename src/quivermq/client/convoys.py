"""Many batches sent one after the other, several of them under way at a time."""

from collections import deque

from quivermq.batches import Frame
from quivermq.client.cluster_map import Route
from quivermq.client.lanes import Lane
from quivermq.client.outlets import Shipment, Stored
from quivermq.client.routing import Router
from quivermq.client.shipping import IN_FLIGHT_BATCHES_MAX, Stream
from quivermq.client.values import BatchReceipt
from quivermq.errors import BrokenInvariant, QuiverError


class Convoy:
    """What one call sends to the partitions of one topic."""

    def __init__(self, router: Router, lane: Lane, route: Route) -> None:
        self._router = router
        self._lane = lane
        self._route = route
        self._sent: list[tuple[int, Shipment]] = []
        self._under_way: deque[tuple[Stream, Shipment]] = deque()

    async def send(self, partition: int, frame: Frame) -> bool:
        """Send one more; False: one failed for good, so send no more."""
        stream = self._lane.stream(self._route, partition)
        shipment = Shipment(frame, self._router.door.now() + self._router.timeout)
        await stream.post(shipment)
        self._sent.append((partition, shipment))
        self._under_way.append((stream, shipment))
        if len(self._under_way) >= IN_FLIGHT_BATCHES_MAX:
            stream, shipment = self._under_way.popleft()
            await _settled(stream, shipment)
        return not isinstance(shipment.outcome, QuiverError)

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            await _settled(*self._under_way.popleft())

    def receipts(self) -> list[BatchReceipt]:
        """Where everything is; or the first failure, with what was stored all the same."""
        outcomes = [shipment.outcome for _, shipment in self._sent]
        failed = next((each for each in outcomes if isinstance(each, QuiverError)), None)
        if failed is not None:
            stored = sum(each.count for _, each in self._sent if isinstance(each.outcome, Stored))
            failed.add_note(f"{stored:,} messages of this call were stored before or beside it")
            raise failed
        return [
            BatchReceipt(partition, stored_of(shipment).first_offset, shipment.count)
            for partition, shipment in self._sent
        ]


def stored_of(shipment: Shipment) -> Stored:
    """Where a shipment is; raises what became of it instead."""
    outcome = shipment.outcome
    if isinstance(outcome, QuiverError):
        raise outcome
    if outcome is None:
        raise BrokenInvariant("a shipment ended without an outcome")
    return outcome


async def _settled(stream: Stream, shipment: Shipment) -> None:
    while shipment.outcome is None:
        await stream.settle_first()
