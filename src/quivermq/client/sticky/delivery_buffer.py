"""Buffers the next messages of a sticky consumer, and tracks how far its user has come.

The user takes messages on one thread, while partitions come and go on another. A message that was
given out is being worked on until the user asks for more: then the user is *past* it. What was not
given out yet can be withdrawn at any time.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from quivermq.batches import Frame
from quivermq.client.models import Message
from quivermq.client.sticky.owned_partition import OwnedPartition
from quivermq.errors import QuiverError

READY_MESSAGES: Final = 500
"""That the partitions give out in turns to a loop over single messages, and all of them together
to a poll that names no number."""


class DeliveryBuffer:
    """Messages of all partitions, which take turns. Any thread may use it."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        """Calls something on the event loop, from any thread."""
        self._lock = threading.Lock()
        """Also of what the partitions have unread."""
        self._turns: deque[OwnedPartition] = deque()
        """Those that may give out messages, in the order of their turns."""
        self._waiting: set[OwnedPartition] = set()
        """The same ones."""
        self._share = 0
        """How many messages the first of them may give out before it is the turn of the next."""
        self._working: dict[OwnedPartition, None] = {}
        """In the order in which they were given out."""
        self.valid_until = 0.0
        """By then a heartbeat must have been answered: past that, other members may have these
        partitions."""

    def take_one(self) -> Message | None:
        """The next message, if there is one; those that were given out before are done."""
        with self._lock:
            self._finish()
            if self.is_stale:
                return None
            while self._turns:
                found = self._take_first(1, READY_MESSAGES)
                if found:
                    return found[0]
            return None

    def take(self, most: int) -> list[Message]:
        """The next messages, if there are any; those that were given out before are done."""
        with self._lock:
            self._finish()
            return self._give_out(most)

    def take_more(self, most: int) -> list[Message]:
        """The next messages; those that were given out before are not done yet."""
        with self._lock:
            return self._give_out(most)

    def put_back(self, messages: list[Message]) -> None:
        """The user was not given these, the last that were taken. Others may be among them."""
        with self._lock:
            self._put_back(messages)

    @property
    def is_stale(self) -> bool:
        """It is unknown whether the partitions are still this member's."""
        return time.monotonic() >= self.valid_until

    @property
    def has_messages(self) -> bool:
        """There may be something to take."""
        with self._lock:
            return not self.is_stale and any(each.is_open and each.unread for each in self._turns)

    def put(self, owned_partition: OwnedPartition, frames: Sequence[Frame]) -> None:
        """These were fetched."""
        with self._lock:
            owned_partition.unread.put(frames)
            self._queue(owned_partition)

    def pause(self, owned_partition: OwnedPartition) -> None:
        """Give out nothing of it until it is resumed."""
        with self._lock:
            owned_partition.is_paused = True

    def open(self, owned_partition: OwnedPartition) -> None:
        """It is paused no more, or held no more."""
        with self._lock:
            self._queue(owned_partition)

    def finish(self) -> None:
        """The user is done with everything that it was given."""
        with self._lock:
            self._finish()

    def withdraw(self, owned_partition: OwnedPartition) -> None:
        """Give out nothing more of it; its `freed` is set when the user is done with the rest."""
        with self._lock:
            owned_partition.is_withdrawn = True
            owned_partition.unread.restart(0)
            if owned_partition not in self._working:
                self._call_soon(owned_partition.freed.set)

    def rewind(self, owned_partition: OwnedPartition, offset: int) -> None:
        """It goes on elsewhere: what the user was given of it before does not count any more."""
        with self._lock:
            self._working.pop(owned_partition, None)
            owned_partition.yielded = owned_partition.past = offset
            owned_partition.unread.restart(offset)
            if owned_partition.is_withdrawn:
                self._call_soon(owned_partition.freed.set)

    def _queue(self, owned_partition: OwnedPartition) -> None:
        is_wanted = owned_partition.is_open and owned_partition.unread
        if is_wanted and owned_partition not in self._waiting:
            self._turns.append(owned_partition)
            self._waiting.add(owned_partition)

    def _put_back(self, messages: list[Message]) -> None:
        for owned_partition in self._working:
            own = [each for each in messages if owned_partition.is_of(each)]
            if own:
                owned_partition.unread.put_back(own)
                owned_partition.yielded = own[0].offset
                self._queue(owned_partition)

    def _give_out(self, most: int) -> list[Message]:
        taken: list[Message] = []
        if self.is_stale:
            return taken
        try:
            while self._turns and len(taken) < most:
                taken += self._take_first(most - len(taken), most)
        except QuiverError:
            if not taken:
                raise
            # A batch cannot be read. It stays the next of its partition: the error comes again.
        except BaseException:
            # An interrupt, which the user may go on after.
            self._put_back(taken)
            raise
        return taken

    def _take_first(self, most: int, together: int) -> list[Message]:
        """Messages of the partition whose turn it is, which ends with its share of those that all
        give out `together`. It has no more turns if it gives out none."""
        first = self._turns[0]
        if not self._share:
            self._share = max(1, together // len(self._turns))
        try:
            found = first.unread.take(min(self._share, most)) if first.is_open else []
        except QuiverError:
            self._end_turn()
            raise
        if first.awaits_room and first.has_room:
            first.awaits_room = False
            self._call_soon(first.find_room)
        if not found:
            self._share = 0
            self._waiting.discard(self._turns.popleft())
            return found
        first.yielded = found[-1].offset + 1
        self._working[first] = None
        self._share -= len(found)
        if not self._share:
            self._end_turn()
        return found

    def _end_turn(self) -> None:
        self._share = 0
        self._turns.rotate(-1)

    def _finish(self) -> None:
        for owned_partition in self._working:
            owned_partition.past = owned_partition.yielded
            if owned_partition.is_withdrawn:
                self._call_soon(owned_partition.freed.set)
        self._working.clear()
