"""Messages of a partition that were fetched and not given out, as the batches that they came in.

Messages are made of a batch some at a time, by the thread that takes them. Made on the event loop,
a megabyte at a time, they leave the processor's caches before the user reads them.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from quivermq.batches import Frame, Limits
from quivermq.client.decode import MADE_AT_ONCE, PackedMessages
from quivermq.client.models import Message

SMALL_LIST: Final = 64
"""Lists of fewer are made of messages that were made together: to cut a batch takes as long as to
make so many."""


class UnreadMessages:
    """What comes next in a partition. One thread at a time may use it: see `DeliveryBuffer`."""

    def __init__(self, topic: str, partition: int, limits: Limits, kind: type[Message]) -> None:
        self.bytes = 0
        """Of the batches of which not all was taken."""
        self._of = topic, partition
        self._limits = limits
        self._kind = kind
        self._made: deque[Message] = deque()
        """The first of them."""
        self._packed: deque[PackedMessages] = deque()
        self._end = 0
        """Behind the last of them."""

    def __bool__(self) -> bool:
        return bool(self._made or self._packed)

    def put(self, frames: Iterable[Frame]) -> None:
        """Add what was fetched, but for what is there, or was taken."""
        for frame in frames:
            self.bytes += len(frame)
            self._packed.append(
                PackedMessages(frame, *self._of, self._end, None, self._limits, self._kind)
            )
            self.skip_to(frame.header.next_offset)

    def take(self, most: int) -> list[Message]:
        """The next of them, at most so many, and of one batch: an error tells of the first one.
        None may be left, where all have expired."""
        if most < SMALL_LIST and not self._made:
            self._made += self._take_packed(MADE_AT_ONCE)
        made = self._made
        if not made:
            return self._take_packed(most)
        if most == 1:
            return [made.popleft()]
        return [made.popleft() for _ in range(min(most, len(made)))]

    def put_back(self, messages: Sequence[Message]) -> None:
        """These were taken last, and not given out."""
        self._made.extendleft(reversed(messages))

    def skip_to(self, offset: int) -> None:
        """Nothing that is put in from here on comes before this offset."""
        self._end = max(self._end, offset)

    def restart(self, offset: int) -> None:
        """Go on from there, with nothing."""
        self._made.clear()
        self._packed.clear()
        self.bytes = 0
        self._end = offset

    def _take_packed(self, most: int) -> list[Message]:
        while self._packed:
            first = self._packed[0]
            found = first.take(most)
            if first.is_empty:
                self._packed.popleft()
                self.bytes -= len(first.frame)
            if found:
                return found
        return []
