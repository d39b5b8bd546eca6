"""What a consumer holds: how many messages of which partitions, so that it can give them back.

A count, not a list: it is there to know whom to tell at the end. Threads share it.
"""

import threading
from random import Random
from typing import NamedTuple

from quivermq.client import forks

# Seeded by the system: two consumers must not draw the same number.
_random = Random()  # noqa: S311  (nobody gains by guessing it)


class Holding(NamedTuple):
    """Something of one partition, for one group."""

    topic: str
    group: str
    partition: int


class Holdings:
    """The leased messages of one consumer, counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Holding, int] = {}
        self._until: dict[Holding, float] = {}
        self.consumer = _drawn()
        """The number by which brokers know this consumer."""
        forks.watch(self)

    def took(self, holding: Holding, count: int, until: float) -> None:
        """So many were leased, or may have been; they come back by themselves at `until`."""
        with self._lock:
            self._counts[holding] = self._counts.get(holding, 0) + count
            self._until[holding] = max(until, self._until.get(holding, until))

    def extended(self, holding: Holding, until: float) -> None:
        """They come back by themselves later."""
        with self._lock:
            if holding in self._until:
                self._until[holding] = max(until, self._until[holding])

    def settled(self, holding: Holding, count: int) -> None:
        """So many are not held any more."""
        with self._lock:
            left = self._counts.get(holding, 0) - count
            if left > 0:
                self._counts[holding] = left
            else:
                self._counts.pop(holding, None)
                self._until.pop(holding, None)

    def take_all(self, now: float) -> dict[tuple[str, str], list[int]]:
        """What is held still: partitions by topic and group. From then on nothing is."""
        with self._lock:
            held: dict[tuple[str, str], list[int]] = {}
            for holding in sorted(self._counts):
                if self._until[holding] > now:
                    held.setdefault((holding.topic, holding.group), []).append(holding.partition)
            self._counts.clear()
            self._until.clear()
            return held

    def after_fork(self) -> None:
        """Everything is the parent's: a child that gave it back would take it from under it."""
        self._lock = threading.Lock()
        self._counts, self._until = {}, {}
        _random.seed()
        self.consumer = _drawn()


def _drawn() -> int:
    return _random.randrange(1, 1 << 63)
