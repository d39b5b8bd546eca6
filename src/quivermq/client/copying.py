"""Copying batches from one topic to another: as they are, nothing is decoded on the way."""

from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from quivermq.batches import Frame, Index, Limits, Offset, Origin, cut, encode_batch
from quivermq.client.core import Core
from quivermq.client.options import chosen_identity
from quivermq.client.reading import Span
from quivermq.client.values import BatchReceipt
from quivermq.errors import InvalidRequest, OutOfSequence, QuiverError
from quivermq.wire import proto

_FAR_AHEAD: Final = 1 << 60
"""A number that no producer comes to."""


class Range(NamedTuple):
    """Messages of one partition: those with offsets in [start, stop)."""

    partition: int
    start: int
    stop: int


class Copying(NamedTuple):
    """What is asked for, and how it is done over either door."""

    topic: str
    ranges: tuple[Range, ...]
    to: str
    partition: int | None
    priority: int | None
    producer_id: int | None
    epoch: int
    sequence: int

    @classmethod
    def of(
        cls,
        topic: str,
        ranges: Iterable[tuple[int, int, int]],
        to: str,
        *,
        partition: int | None,
        priority: int | None,
        producer_id: int | None,
        epoch: int,
        sequence: int,
    ) -> "Copying":
        """Checked: every range must have an end that is behind its start."""
        wanted = tuple(Range(*each) for each in ranges)
        for each in wanted:
            if not 0 <= each.start < each.stop:
                raise InvalidRequest(f"a range needs 0 <= start < stop: {each}")
        return cls(topic, wanted, to, partition, priority, producer_id, epoch, sequence)

    async def carry_out(self, core: Core) -> list[BatchReceipt]:
        identity = chosen_identity(self.producer_id, self.epoch)
        return await core.producing.copy(self._frames(core), self.to, identity, self.sequence)

    async def _frames(self, core: Core) -> AsyncIterator[tuple[int, Frame]]:
        """Batch by batch, each with the partition it goes to."""
        for each in self.ranges:
            cursor = core.cursor(
                self.topic,
                each.partition,
                start=each.start,
                stop=each.stop,
                follow=False,
                follower_ok=False,
            )
            goal = each.partition if self.partition is None else self.partition
            at = each.start
            try:
                while (span := await cursor.next_span()) is not None:
                    for frame in span.frames:
                        part = self._part(frame, span, each, core.router.limits)
                        if part is not None:
                            at = int(frame.header.next_offset)
                            yield goal, part
            finally:
                cursor.close()
            if at < each.stop:
                raise InvalidRequest(
                    f"{self.topic}/{each.partition} ends at {at}: nothing to copy up to {each.stop}"
                )

    def _part(self, frame: Frame, span: Span, wanted: Range, limits: Limits) -> Frame | None:
        """What of a batch is asked for, as a batch that was stored nowhere yet."""
        header = frame.header
        start = max(int(header.base_offset), wanted.start, span.start)
        stop = min(int(header.next_offset), wanted.stop)
        if start >= stop:
            return None
        part = cut(frame, start, stop, limits)
        clean = part.header.stamped(0, Index(0), Offset(0), 0)
        if self.priority is not None:
            clean = clean._replace(priority=self.priority)
        return Frame(clean, part.body)


async def position_of(core: Core, topic: str, partition: int, producer_id: int, epoch: int) -> int:
    """How many messages a partition took from a producer: asked by a batch that it must refuse."""
    router = core.router
    attempts = router.attempts(f"asking {topic}/{partition} for a producer")
    identity = chosen_identity(producer_id, epoch)
    if identity is None:
        raise InvalidRequest("a producer has an id")
    probe = encode_batch([b""], origin=Origin(*identity, _FAR_AHEAD), limits=router.limits)
    request = proto.Request()
    request.produce.topic, request.produce.partition = topic, partition
    while True:
        target = await router.target(topic, partition, attempts)
        request.direct, request.produce.topic_id = target.direct, target.topic_id
        try:
            await router.exchange(target.address, request, (probe,), attempts)
        except OutOfSequence as refusal:
            return refusal.expected
        except QuiverError as error:
            await router.recover(topic, partition, target, error, attempts)
        else:
            raise InvalidRequest(f"{topic}/{partition} took number {_FAR_AHEAD} of a producer")
