"""Committed batches that were stored or read lately, so that polls need not read them again.

What is committed never changes, so nothing here is ever wrong; it is only forgotten, what was used
longest ago first. Used on the event loop alone.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

from quivermq.batches import Frame


class FrameCache:
    """Batches by partition and offset, up to a number of bytes in all."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._frames: OrderedDict[tuple[bytes, int], Frame] = OrderedDict()
        # The first offsets of each partition's batches, in order.
        self._firsts: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._frames)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def add(self, partition: bytes, frame: Frame) -> None:
        """Keep a batch of messages; one that takes more than a quarter of all room is not."""
        size, key = len(frame), (partition, frame.header.base_offset)
        if size > self._bytes_max // 4 or key in self._frames:
            return
        self._frames[key] = frame
        self._bytes += size
        firsts = self._firsts.setdefault(partition, [])
        if firsts and firsts[-1] > key[1]:
            insort(firsts, key[1])
        else:
            firsts.append(key[1])
        while self._bytes > self._bytes_max:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        (partition, first), frame = self._frames.popitem(last=False)
        self._bytes -= len(frame)
        firsts = self._firsts[partition]
        del firsts[bisect_right(firsts, first) - 1]
        if not firsts:
            del self._firsts[partition]

    def holding(self, partition: bytes, offset: int) -> Frame | None:
        """The batch that holds a message, if it is here."""
        firsts = self._firsts.get(partition)
        if not firsts:
            return None
        at = bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        frame = self._frames[partition, firsts[at]]
        if offset >= frame.header.next_offset:
            return None
        self._frames.move_to_end((partition, firsts[at]))
        return frame

    def covering(self, partition: bytes, runs: Sequence[tuple[int, int]]) -> list[Frame] | None:
        """The batches that hold all messages of these runs of offsets; None if one is missing."""
        found: list[Frame] = []
        for start, end in runs:
            at = start
            if found and at < found[-1].header.next_offset:
                at = found[-1].header.next_offset
            while at < end:
                frame = self.holding(partition, at)
                if frame is None:
                    return None
                found.append(frame)
                at = frame.header.next_offset
        return found

    def drop(self, partition: bytes) -> None:
        """The partition is not led here any more."""
        for first in self._firsts.pop(partition, ()):
            self._bytes -= len(self._frames.pop((partition, first)))
