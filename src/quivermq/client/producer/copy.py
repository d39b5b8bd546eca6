"""Copying batches from one topic to another: as they are, nothing is decoded on the way."""

from collections.abc import AsyncGenerator, Iterable
from typing import NamedTuple

from quivermq import batches
from quivermq.batches import Frame, Index, Limits, Offset
from quivermq.client.connect_options import chosen_identity
from quivermq.client.core import Core
from quivermq.client.cursor import Cursor, Span
from quivermq.client.models import BatchReceipt
from quivermq.errors import InvalidRequest


class Range(NamedTuple):
    """Messages of one partition: those with offsets in [start, stop)."""

    partition: int
    start: int
    stop: int


class BatchCache:
    """Batches of a topic that were read before they are copied: many small ranges that lie close
    together take one read, and not one each."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._frames: dict[tuple[int, int], Frame] = {}

    async def read(self, core: Core, ranges: Iterable[Range], bytes_max: int) -> None:
        """Read these ranges, up to so many bytes; what is not held is read when it is copied."""
        left = bytes_max
        for each in ranges:
            cursor = _cursor(core, self.topic, each)
            try:
                while left > 0 and (span := await cursor.next_span()) is not None:
                    for frame in span.frames:
                        self._frames[each.partition, int(frame.header.base_offset)] = frame
                        left -= len(frame)
            finally:
                cursor.close()

    def take(self, wanted: Range) -> tuple[list[Frame], Range]:
        """The first batches of a range, as far as all of them are held, and the rest of it."""
        found: list[Frame] = []
        at = wanted.start
        while at < wanted.stop:
            frame = self._frames.get((wanted.partition, at))
            if frame is None or frame.header.next_offset > wanted.stop:
                break
            found.append(frame)
            at = int(frame.header.next_offset)
        return found, wanted._replace(start=at)


class Copier(NamedTuple):
    """One call of `copy`: its parameters, checked, and how it is done."""

    topic: str
    ranges: tuple[Range, ...]
    to: str
    partition: int | None
    priority: int | None
    producer_id: int | None
    epoch: int
    sequence: int
    held: BatchCache | None

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
        held: BatchCache | None = None,
    ) -> "Copier":
        """Checked: every range must have an end that is behind its start."""
        wanted = tuple(Range(*each) for each in ranges)
        for each in wanted:
            if not 0 <= each.start < each.stop:
                raise InvalidRequest(f"a range needs 0 <= start < stop: {each}")
        if held is not None and held.topic != topic:
            raise InvalidRequest(f"what is held is of topic {held.topic!r}, not {topic!r}")
        return cls(topic, wanted, to, partition, priority, producer_id, epoch, sequence, held)

    async def copy(self, core: Core) -> list[BatchReceipt]:
        identity = chosen_identity(self.producer_id, self.epoch)
        return await core.producing.copy(self._frames(core), self.to, identity, self.sequence)

    async def _frames(self, core: Core) -> AsyncGenerator[tuple[int, Frame]]:
        """Batch by batch, each with the partition it goes to."""
        limits = core.router.limits
        for wanted in self.ranges:
            goal = wanted.partition if self.partition is None else self.partition
            each = wanted
            if self.held is not None:
                frames, each = self.held.take(wanted)
                for frame in frames:
                    yield goal, self._clean(frame)
            at = each.start
            if at == each.stop:
                continue
            cursor = _cursor(core, self.topic, each)
            try:
                while (span := await cursor.next_span()) is not None:
                    for frame in span.frames:
                        part = self._part(frame, span, each, limits)
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
        """The part of a batch that is asked for, as a batch that was not stored yet."""
        header = frame.header
        start = max(int(header.base_offset), wanted.start, span.start)
        stop = min(int(header.next_offset), wanted.stop)
        if start >= stop:
            return None
        return self._clean(batches.cut(frame, start, stop, limits))

    def _clean(self, frame: Frame) -> Frame:
        clean = frame.header.stamped(0, Index(0), Offset(0), 0)
        if self.priority is not None:
            clean = clean._replace(priority=self.priority)
        return Frame(clean, frame.body)


def _cursor(core: Core, topic: str, wanted: Range) -> Cursor:
    return core.cursor(
        topic,
        wanted.partition,
        start=wanted.start,
        stop=wanted.stop,
        follow=False,
        follower_ok=False,
    )
