"""Buffers the next messages of a sticky consumer, and tracks how far its user has come.

The user takes messages on one thread, while partitions come and go on another. A message that was
given out is being worked on until the user asks for more: then the user is *past* it. What lies
ready here and was not given out yet can be withdrawn at any time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from quivermq.client.models import Message
from quivermq.client.sticky.owned_partition import OwnedPartition, take_first


class DeliveryBuffer:
    """Messages in the order to give them out. Any thread may use it."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        """Calls something on the event loop, from any thread."""
        self._lock = threading.Lock()
        self._ready: deque[tuple[OwnedPartition, deque[Message]]] = deque()
        """Messages in a row of a partition, as they were put in."""
        self._working: dict[OwnedPartition, None] = {}
        """In the order in which they were given out."""
        self.valid_until = 0.0
        """By then a heartbeat must have been answered: past that, other members may have these
        partitions."""

    def take(self, most: int = 1) -> list[Message]:
        """The next messages, if there are any; those that were given out before are done."""
        with self._lock:
            self._finish()
            taken: list[Message] = []
            if self.is_stale:
                return taken
            while self._ready and len(taken) < most:
                owned_partition, messages = self._ready[0]
                if not owned_partition.is_withdrawn:
                    taken += take_first(messages, most - len(taken))
                    owned_partition.yielded = taken[-1].offset + 1
                    self._working[owned_partition] = None
                if not messages or owned_partition.is_withdrawn:
                    self._ready.popleft()
            return taken

    @property
    def is_stale(self) -> bool:
        """It is unknown whether the partitions are still this member's."""
        return time.monotonic() >= self.valid_until

    def put(self, owned_partition: OwnedPartition, messages: list[Message]) -> None:
        """Have these ready."""
        with self._lock:
            if messages:
                self._ready.append((owned_partition, deque(messages)))

    def finish(self) -> None:
        """The user is done with everything that it was given."""
        with self._lock:
            self._finish()

    def withdraw(self, owned_partition: OwnedPartition) -> None:
        """Give out nothing more of it; its `freed` is set when the user is done with the rest."""
        with self._lock:
            owned_partition.is_withdrawn = True
            if owned_partition not in self._working:
                self._call_soon(owned_partition.freed.set)

    def recall(self, owned_partition: OwnedPartition) -> list[Message]:
        """Take back what of it lies ready."""
        with self._lock:
            taken = [messages for owner, messages in self._ready if owner is owned_partition]
            others = (each for each in self._ready if each[0] is not owned_partition)
            self._ready = deque(others)
            return [*chain.from_iterable(taken)]

    def rewind(self, owned_partition: OwnedPartition, offset: int) -> None:
        """It goes on elsewhere: what the user was given of it before does not count any more."""
        with self._lock:
            self._working.pop(owned_partition, None)
            owned_partition.yielded = owned_partition.past = offset
            if owned_partition.is_withdrawn:
                self._call_soon(owned_partition.freed.set)

    def _finish(self) -> None:
        for owned_partition in self._working:
            owned_partition.past = owned_partition.yielded
            if owned_partition.is_withdrawn:
                self._call_soon(owned_partition.freed.set)
        self._working.clear()
