"""Messages in a row that a handler is given one after the other, without a stop in between.

A handler of a microsecond spends less on its message than every look at a lock, a clock or another
thread would. So its thread takes a run of messages and settles them as one. The event loop sees how
far it is, acknowledges what is done, and takes the rest back from a handler that takes its time:
nothing waits behind a slow message that another thread could handle (decision 0076).
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease

RUN_MAX: Final = 1_000
"""Messages."""
RUN_SECONDS: Final = 0.001
"""A run has as many as are handled in this time, by what the last one took."""


class HandlerRun:
    """Messages of one lease whose offsets follow each other.

    The thread of the handler takes them off the left of `rest`. All else is the event loop's, which
    takes messages off the right: both may do so at any time.
    """

    __slots__ = ("_left", "acknowledged", "end", "is_over", "lease", "rest")

    def __init__(self, messages: Sequence[LeasedFields]) -> None:
        self.lease: Lease = messages[0].lease
        self.rest = deque(messages)
        self.is_over = False
        """The handler has returned from the last one."""
        self.acknowledged = messages[0].offset
        """Up to here."""
        self.end = messages[-1].offset + 1
        """Behind the last one."""
        self._left = -1
        """Of `rest`, at the last look."""

    @property
    def is_long(self) -> bool:
        """Something waits behind the message that is handled."""
        return bool(self.rest)

    def done_until(self) -> int:
        """The offset of the first message that its handler is not done with."""
        if self.is_over:
            return self.end
        return max(self.acknowledged, self.end - len(self.rest) - 1)

    def is_stuck(self) -> bool:
        """The handler took no message since the last look."""
        before, self._left = self._left, len(self.rest)
        return self._left == before

    def take_back(self, into: deque[LeasedFields]) -> None:
        """Put what the handler has not begun in front of others."""
        while self.rest:
            try:
                message = self.rest.pop()
            except IndexError:  # the handler was faster
                return
            self.end = message.offset
            into.appendleft(message)


class RunSize:
    """How many messages a handler is given at a time: one, if it takes long."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages = 1

    def adapt(self, handled: int, seconds: float) -> None:
        """So many took so long."""
        fitting = int(handled * RUN_SECONDS / max(seconds, 1e-6))
        self.messages = max(1, min(fitting, RUN_MAX))
