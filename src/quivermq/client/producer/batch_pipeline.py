"""Sends many batches one after the other, several of them in flight at a time."""

from collections import deque

from quivermq.batches import Frame
from quivermq.client.cluster_map import Route
from quivermq.client.models import BatchReceipt
from quivermq.client.producer.partition_stream import IN_FLIGHT_BATCHES_MAX, PartitionStream
from quivermq.client.producer.sequencer import InFlightBatch, StoredAt
from quivermq.client.producer.session_pool import ProducerSession
from quivermq.client.router import Router
from quivermq.errors import BrokenInvariant, QuiverError


class BatchPipeline:
    """The batches that one call sends to the partitions of one topic."""

    def __init__(self, router: Router, session: ProducerSession, route: Route) -> None:
        self._router = router
        self._session = session
        self._route = route
        self._sent: list[tuple[int, InFlightBatch]] = []
        self._under_way: deque[tuple[PartitionStream, InFlightBatch]] = deque()

    async def send(self, partition: int, frame: Frame) -> bool:
        """Send one more; False: one failed for good, so send no more."""
        stream = self._session.stream(self._route, partition)
        batch = InFlightBatch(frame, self._router.transport.now() + self._router.timeout)
        await stream.post(batch)
        self._sent.append((partition, batch))
        self._under_way.append((stream, batch))
        if len(self._under_way) >= IN_FLIGHT_BATCHES_MAX:
            stream, batch = self._under_way.popleft()
            await _await_outcome(stream, batch)
        return not isinstance(batch.outcome, QuiverError)

    async def finish(self) -> None:
        """Wait for what is under way."""
        while self._under_way:
            await _await_outcome(*self._under_way.popleft())

    def receipts(self) -> list[BatchReceipt]:
        """Where everything is; or the first failure, with what was stored all the same."""
        outcomes = [batch.outcome for _, batch in self._sent]
        failed = next((each for each in outcomes if isinstance(each, QuiverError)), None)
        if failed is not None:
            stored = sum(each.count for _, each in self._sent if isinstance(each.outcome, StoredAt))
            failed.add_note(f"{stored:,} messages of this call were stored before or beside it")
            raise failed
        return [
            BatchReceipt(partition, stored_of(batch).first_offset, batch.count)
            for partition, batch in self._sent
        ]


def stored_of(batch: InFlightBatch) -> StoredAt:
    """Where a batch in flight is; raises what became of it instead."""
    outcome = batch.outcome
    if isinstance(outcome, QuiverError):
        raise outcome
    if outcome is None:
        raise BrokenInvariant("a batch ended without an outcome")
    return outcome


async def _await_outcome(stream: PartitionStream, batch: InFlightBatch) -> None:
    while batch.outcome is None:
        await stream.settle_first()
