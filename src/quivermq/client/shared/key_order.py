"""Keeps messages of one key in order while several handlers work: each key has one at a time.

A message whose key is being worked on waits here, in the order of offsets. If it fails and is to
come again, its key waits for it as long as the topic's backoff says, and a little longer: another
consumer of the group may have got it, and this one would never hear of it. Messages without a key
pass.
"""

import threading
from bisect import insort
from collections import deque
from collections.abc import Container
from itertools import chain
from typing import Final

from quivermq.client.models import TopicInfo
from quivermq.client.shared.leased_message import LeasedFields

GRACE_SECONDS: Final = 5.0
"""A message that failed comes within so long of its time, or not at all."""

Key = tuple[str, bytes]
"""The topic, and the key."""


class KeyOrder:
    """Messages that wait for others of their keys. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Key, list[LeasedFields]] = {}
        """By key that is worked on, or waits for a message that failed: those behind it."""
        self._failed: dict[Key, tuple[LeasedFields, float]] = {}
        """Keys that wait for a message to come again, and when it may."""
        self._ready: deque[LeasedFields] = deque()
        """Their keys are free; each is marked as worked on already."""
        self.topics: dict[str, TopicInfo] = {}
        """As they were when the subscription came to them: how often and when they try again."""

    def take_from(self, messages: deque[LeasedFields]) -> LeasedFields | None:
        """The next message that may be handled; others that are found on the way wait here."""
        # All in one step: two threads that took one each could come here in the other order.
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            while messages:
                message = messages.popleft()
                if self._admit(message):
                    return message
            return None

    def _admit(self, message: LeasedFields) -> bool:
        key = _key(message)
        if key is None:
            return True
        failed = self._failed.get(key)
        if failed is not None and _place(message) <= _place(failed[0]):
            del self._failed[key]
            return True
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = []
            return True
        insort(waiting, message, key=_place)
        return False

    def finish(self, message: LeasedFields) -> None:
        """It is done with: the next of its key is ready."""
        key = _key(message)
        if key is not None:
            with self._lock:
                self._advance(key)

    def fail(self, message: LeasedFields, now: float) -> float | None:
        """It failed. Returns for how many seconds its key waits, after which `give_up` is due; None
        if it is not to come again."""
        key = _key(message)
        seconds = self._seconds_until_again(message)
        if key is None:
            return None
        with self._lock:
            if seconds is None:
                self._advance(key)
                return None
            self._failed[key] = message, now + seconds
            return seconds + GRACE_SECONDS

    def give_up(self, message: LeasedFields) -> None:
        """It did not come again in time: its key goes on."""
        key = _key(message)
        if key is None:
            return
        with self._lock:
            # Unless it came, and failed again.
            if key in self._failed and self._failed[key][0] is message:
                del self._failed[key]
                self._advance(key)

    @property
    def behind_failed(self) -> int:
        """Messages whose keys wait for one that failed."""
        with self._lock:
            return sum(len(self._waiting.get(key, ())) for key in self._failed)

    def count_due(self, topic: str, partitions: Container[int], now: float) -> int:
        """Messages of these partitions that failed, and may come again by now."""
        with self._lock:
            return sum(
                message.topic == topic and message.partition in partitions and due <= now
                for message, due in self._failed.values()
            )

    def waiting(self) -> list[LeasedFields]:
        """All that wait."""
        with self._lock:
            return self._all()

    def take_all(self) -> list[LeasedFields]:
        """Empty it."""
        with self._lock:
            found = self._all()
            self._ready.clear()
            for waiting in self._waiting.values():
                waiting.clear()
            return found

    def _all(self) -> list[LeasedFields]:
        return [*self._ready, *chain.from_iterable(self._waiting.values())]

    def _advance(self, key: Key) -> None:
        waiting = self._waiting.get(key)
        if waiting:
            self._ready.append(waiting.pop(0))
        else:
            self._waiting.pop(key, None)

    def _seconds_until_again(self, message: LeasedFields) -> float | None:
        info = self.topics.get(message.topic)
        if info is None:
            return 0.0
        failures = message.delivery_count
        if failures >= info.max_deliveries:
            return None
        if failures <= 1:
            return info.retry.first
        # More doublings than this pass any longest wait that can be set.
        return min(info.retry.base * 2.0 ** min(failures - 2, 64), info.retry.longest)


def _key(message: LeasedFields) -> Key | None:
    return None if message.key is None else (message.topic, message.key)


def _place(message: LeasedFields) -> tuple[int, int]:
    return message.partition, message.offset
