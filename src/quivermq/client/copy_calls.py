"""Calls that store batches many at a time, for the blocking and the asyncio client: copies of what
other topics hold, and parts that belong together."""

from collections.abc import Iterable, Sequence
from typing import Any

from quivermq.client.core import Core
from quivermq.client.models import BatchReceipt
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.copy import BatchCache, Copier, Range
from quivermq.client.producer.positions import messages_stored, position_of
from quivermq.client.transport import run


class CopyCalls:
    """Copying, blocking."""

    _core: Core

    def copy(
        self,
        topic: str,
        ranges: Iterable[tuple[int, int, int]],
        to: str,
        *,
        partition: int | None = None,
        priority: int | None = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
        held: BatchCache | None = None,
    ) -> list[BatchReceipt]:
        """Copy messages into another topic: batches as they are, nothing is decoded.

        >>> client.copy("orders", [(0, 100, 200)], to="orders-again")  # partition, start, stop

        They go to the partition that they come from, or all to `partition`. Keys, headers, delays
        and timestamps that their producer gave stay; who has no such timestamp gets the time of the
        copy. `priority` replaces theirs. With `producer_id`, `epoch` and `sequence` of your own,
        copying the same ranges again stores nothing twice. What is in `held` is not read again.
        """
        wanted = Copier.of(
            topic,
            ranges,
            to,
            partition=partition,
            priority=priority,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            held=held,
        )
        return run(wanted.carry_out(self._core))

    def hold(
        self, topic: str, ranges: Iterable[tuple[int, int, int]], *, bytes_max: int = 32 << 20
    ) -> BatchCache:
        """Read messages to `copy` them: for many small ranges that lie close together."""
        held = BatchCache(topic)
        run(held.read(self._core, [Range(*each) for each in ranges], bytes_max))
        return held

    def produce_parts(
        self, topic: str, parts: Sequence[tuple[Any, int]], *, partition: int
    ) -> list[list[BatchReceipt]]:
        """Store several parts in one partition, and return where each of them is.

        >>> client.produce_parts("orders", [(table, 0), (urgent, 7)], partition=2)
        [[BatchReceipt(partition=2, first_offset=0, count=9)], [BatchReceipt(...)]]

        A part is values as for `produce_many`, and its priority. Batches of all parts are under way
        together: for many small parts this is far faster than one call for each.
        """
        wanted = [(BulkColumns(values), Layout(priority)) for values, priority in parts]
        return run(self._core.producing.produce_parts(topic, wanted, partition))

    def position(self, topic: str, partition: int, *, producer_id: int, epoch: int = 0) -> int:
        """The number that a partition expects next from a producer in this epoch.

        >>> client.position("orders", 0, producer_id=77, epoch=3)
        1200

        What is below it was taken, but the last of it may not be stored yet: send that again to be
        sure. Raises `Fenced` if the producer has a higher epoch there, and `OutOfSequence` if the
        partition does not know it but has forgotten some: only its batches tell then (`stored`).
        """
        return run(position_of(self._core, topic, partition, producer_id, epoch))

    def stored(
        self, topic: str, partition: int, *, producer_id: int, epoch: int, since_ms: int
    ) -> int:
        """How many messages of a producer's epoch a partition holds, of those stored since a time.

        Reads everything since then: it is for when `position` may have been forgotten. Raises
        `InvalidRequest` if the partition dropped messages of that time.
        """
        return run(messages_stored(self._core, topic, partition, producer_id, epoch, since_ms))


class AsyncCopyCalls:
    """Copying, awaitable."""

    _core: Core

    async def copy(
        self,
        topic: str,
        ranges: Iterable[tuple[int, int, int]],
        to: str,
        *,
        partition: int | None = None,
        priority: int | None = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
        held: BatchCache | None = None,
    ) -> list[BatchReceipt]:
        """Copy messages into another topic: batches as they are, nothing is decoded."""
        wanted = Copier.of(
            topic,
            ranges,
            to,
            partition=partition,
            priority=priority,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            held=held,
        )
        return await wanted.carry_out(self._core)

    async def hold(
        self, topic: str, ranges: Iterable[tuple[int, int, int]], *, bytes_max: int = 32 << 20
    ) -> BatchCache:
        """Read messages to `copy` them: for many small ranges that lie close together."""
        held = BatchCache(topic)
        await held.read(self._core, [Range(*each) for each in ranges], bytes_max)
        return held

    async def produce_parts(
        self, topic: str, parts: Sequence[tuple[Any, int]], *, partition: int
    ) -> list[list[BatchReceipt]]:
        """Store several parts in one partition, and return where each of them is."""
        wanted = [(BulkColumns(values), Layout(priority)) for values, priority in parts]
        return await self._core.producing.produce_parts(topic, wanted, partition)

    async def position(
        self, topic: str, partition: int, *, producer_id: int, epoch: int = 0
    ) -> int:
        """The number that a partition expects next from a producer in this epoch."""
        return await position_of(self._core, topic, partition, producer_id, epoch)

    async def stored(
        self, topic: str, partition: int, *, producer_id: int, epoch: int, since_ms: int
    ) -> int:
        """How many messages of a producer's epoch a partition holds, of those since a time."""
        return await messages_stored(self._core, topic, partition, producer_id, epoch, since_ms)
