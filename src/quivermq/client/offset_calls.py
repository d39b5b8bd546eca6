"""The blocking client's methods for offsets: see `quivermq.Client`, which has them all."""

from collections.abc import Iterable, Mapping

from quivermq.client.core import Core
from quivermq.client.offsets import TopicOffsets
from quivermq.client.reader import Reader
from quivermq.client.transport import run


class OffsetCalls:
    """What topics hold, and ranges of it."""

    _core: Core

    def topic_names(self) -> list[str]:
        """The names of all topics: far less work than `topics`."""
        return run(self._core.offsets.names())

    def offsets(self, topic: str, partitions: Iterable[int] | None = None) -> TopicOffsets:
        """The first offset and the end of each partition, as a majority of its replicas confirms.

        >>> client.offsets("orders").partitions[0].end

        Every partition that is asked wakes up, if it was idle: name those that you need. With none,
        `offsets("orders", [])`, only the topic's id and the count of its partitions are told.
        """
        return run(self._core.offsets.held(topic, partitions))

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first message that was stored at or after a time, in milliseconds since 1970; the
        end of the partition if there is none."""
        return run(self._core.offsets.at(topic, partition, timestamp_ms))

    def await_offsets(
        self, positions: Mapping[str, Mapping[int, int]], wait: float = 1.0
    ) -> dict[str, TopicOffsets]:
        """Wait up to `wait` seconds until a partition holds more than its position.

        >>> client.await_offsets({"orders": {0: 42, 1: 17}}, wait=5.0)

        Only partitions that do are told. Until then brokers do nothing for it.
        """
        return run(self._core.offsets.beyond(positions, wait))

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        topic_id: str = "",
        follower_ok: bool = False,
    ) -> Reader:
        """The messages from `start` to before `stop`, which are known to exist: every one of them,
        or an error.

        A follower that does not have them yet is passed over. Raises `OffsetOutOfRange` if some
        are not kept any more, `TopicNotFound` if the topic with this id is gone.
        """
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
        return Reader(self._core.router, topic, cursor)
