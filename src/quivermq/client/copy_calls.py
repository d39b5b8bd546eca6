"""The call that copies messages between topics, for the blocking and the asyncio client."""

from collections.abc import Iterable

from quivermq.client.copying import Copying, position_of
from quivermq.client.core import Core
from quivermq.client.door import run
from quivermq.client.values import BatchReceipt


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
    ) -> list[BatchReceipt]:
        """Copy messages into another topic: batches as they are, nothing is decoded.

        >>> client.copy("orders", [(0, 100, 200)], to="orders-again")  # partition, start, stop

        They go to the partition that they come from, or all to `partition`. Keys, headers, delays
        and timestamps that their producer gave stay; who has no such timestamp gets the time of the
        copy. `priority` replaces theirs. With `producer_id`, `epoch` and `sequence` of your own,
        copying the same ranges again stores nothing twice.
        """
        wanted = Copying.of(
            topic,
            ranges,
            to,
            partition=partition,
            priority=priority,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
        )
        return run(wanted.carry_out(self._core))

    def position(self, topic: str, partition: int, *, producer_id: int, epoch: int = 0) -> int:
        """The number that a partition expects next from a producer in this epoch.

        >>> client.position("orders", 0, producer_id=77, epoch=3)
        1200

        What is below it was taken, but the last of it may not be stored yet: send that again to be
        sure. 0 also for a producer that was forgotten, after a day without a message. Raises
        `Fenced` if the producer has a higher epoch there.
        """
        return run(position_of(self._core, topic, partition, producer_id, epoch))


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
    ) -> list[BatchReceipt]:
        """Copy messages into another topic: batches as they are, nothing is decoded."""
        wanted = Copying.of(
            topic,
            ranges,
            to,
            partition=partition,
            priority=priority,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
        )
        return await wanted.carry_out(self._core)

    async def position(
        self, topic: str, partition: int, *, producer_id: int, epoch: int = 0
    ) -> int:
        """The number that a partition expects next from a producer in this epoch."""
        return await position_of(self._core, topic, partition, producer_id, epoch)
