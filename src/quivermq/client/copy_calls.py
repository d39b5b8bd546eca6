"""The call that copies messages between topics, for the blocking and the asyncio client."""

from collections.abc import Iterable

from quivermq.client.copying import Copying
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
