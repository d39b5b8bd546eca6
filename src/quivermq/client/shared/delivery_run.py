"""Messages in a row that a handler or a loop is given one after the other, without a stop.

What takes a microsecond to be done with spends less on its message than every look at a lock, a
clock or another thread would. So a thread takes a run of messages. The event loop sees how far it
is, acknowledges what a handler is done with, and takes the rest back from a thread that takes its
time: nothing waits behind a slow message that another thread could have (decision 0076).
"""

from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Final

from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease

RUN_MAX: Final = 500
"""Messages: fewer than the 700 new objects that the collector of garbage waits for."""
RUN_SECONDS: Final = 0.001
"""A run has as many as take this long, by what the last one took."""


class DeliveryRun:
    """Messages of one lease whose offsets follow each other.

    A thread takes them off the left of `rest`. All else is the event loop's, which takes messages
    off the right: both may do so at any time.
    """

    __slots__ = ("_left", "acknowledged", "end", "is_over", "lease", "rest", "until")

    def __init__(self, messages: Sequence[LeasedFields]) -> None:
        self.lease: Lease = messages[0].lease
        self.rest = deque(messages)
        self.is_over = False
        """The thread is done with the last one."""
        self.acknowledged = messages[0].offset
        """Up to here."""
        self.end = messages[-1].offset + 1
        """Behind the last one."""
        self.until = inf
        """When its messages are not taken for worked on any more."""
        self._left = -1
        """Of `rest`, at the last look."""

    @property
    def is_long(self) -> bool:
        """Something waits behind the message in hand."""
        return bool(self.rest)

    def done_until(self) -> int:
        """The offset of the first message that its thread is not done with."""
        if self.is_over:
            return self.end
        return max(self.acknowledged, self.end - len(self.rest) - 1)

    def is_stuck(self) -> bool:
        """The thread took no message since the last look."""
        before, self._left = self._left, len(self.rest)
        return self._left == before

    def take_back(self, into: deque[LeasedFields]) -> None:
        """Put what the thread has not begun in front of others."""
        while self.rest:
            try:
                message = self.rest.pop()
            except IndexError:  # the thread was faster
                return
            self.end = message.offset
            into.appendleft(message)


class RunSize:
    """How many messages a thread is given at a time: one, if each takes long."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 1

    def adapt(self, done: int, seconds: float) -> None:
        """So many took so long."""
        fitting = int(done * RUN_SECONDS / max(seconds, 1e-6))
        self.messages = max(1, min(fitting, RUN_MAX))
