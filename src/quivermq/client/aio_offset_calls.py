"""The asyncio client's methods for offsets: as those of `OffsetCalls`, awaitable."""

from collections.abc import Iterable, Mapping

from quivermq.client.core import Core
from quivermq.client.offsets import TopicOffsets
from quivermq.client.reader import AsyncReader


class AsyncOffsetCalls:
    """What topics hold, and ranges of it."""

    _core: Core

    async def topic_names(self) -> list[str]:
        """The names of all topics."""
        return await self._core.offsets.names()

    async def offsets(self, topic: str, partitions: Iterable[int] | None = None) -> TopicOffsets:
        """The first offset and the end of each partition, or of these."""
        return await self._core.offsets.held(topic, partitions)

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first message that was stored at or after a time."""
        return await self._core.offsets.at(topic, partition, timestamp_ms)

    async def await_offsets(
        self, positions: Mapping[str, Mapping[int, int]], wait: float = 1.0
    ) -> dict[str, TopicOffsets]:
        """Wait until a partition holds more than its position."""
        return await self._core.offsets.beyond(positions, wait)

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        topic_id: str = "",
        follower_ok: bool = False,
    ) -> AsyncReader:
        """The messages from `start` to before `stop`, which are known to exist."""
        cursor = self._core.cursor(
            topic,
            partition,
            start=start,
            stop=stop,
            follow=False,
            follower_ok=follower_ok,
            topic_id=bytes.fromhex(topic_id),
            is_known=True,
        )
        return AsyncReader(self._core.router, topic, cursor)
