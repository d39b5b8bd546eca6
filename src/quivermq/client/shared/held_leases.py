"""Leases that a consumer holds, so that it can give them back at the end."""

import threading
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from quivermq.client import fork_safety
from quivermq.intervals import Interval, IntervalSet

# Seeded by the system: two consumers must not draw the same number.
_random = Random()  # noqa: S311  (nobody gains by guessing it)


class LeaseSource(NamedTuple):
    """Something of one partition, for one group."""

    topic: str
    group: str
    partition: int


class _Held(NamedTuple):
    left: IntervalSet | None
    """None: nobody knows what, if anything."""
    until: float
    """It comes back by itself then."""


class HeldLeases:
    """The leased messages of one consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[LeaseSource, dict[int, _Held]] = {}
        """By the token of the lease; 0: of an answer that was lost."""
        self.consumer = _drawn()
        """The number by which brokers know this consumer."""
        fork_safety.watch(self)

    def took(
        self,
        source: LeaseSource,
        token: int,
        intervals: Iterable[Interval],
        until: float,
        now: float,
    ) -> None:
        """These were leased."""
        with self._lock:
            leases = self._held.setdefault(source, {})
            leases[token] = _Held(IntervalSet(intervals), until)
            # What nobody settled must not gather for ever: the oldest come back first.
            while leases[first := next(iter(leases))].until <= now:
                del leases[first]

    def may_have_taken(self, source: LeaseSource, until: float) -> None:
        """Some may have been leased: the answer was lost."""
        with self._lock:
            self._held.setdefault(source, {})[0] = _Held(None, until)

    def extended(self, source: LeaseSource, token: int, until: float) -> None:
        """They come back by themselves later."""
        with self._lock:
            leases = self._held.get(source, {})
            if token in leases:
                leases[token] = leases[token]._replace(until=until)

    def settled(self, source: LeaseSource, token: int, intervals: Iterable[Interval]) -> None:
        """These are not held any more; saying so twice makes no difference."""
        with self._lock:
            leases = self._held.get(source, {})
            left = leases[token].left if token in leases else None
            if left is None:
                return
            for start, end in intervals:
                left.remove(start, end)
            if not left.count:
                del leases[token]
            if not leases:
                del self._held[source]

    @property
    def is_any(self) -> bool:
        """Something may be held. Takes no lock."""
        return bool(self._held)

    def take_all(self, now: float) -> dict[tuple[str, str], list[int]]:
        """What is held still: partitions by topic and group. From then on nothing is."""
        with self._lock:
            found: dict[tuple[str, str], list[int]] = {}
            for source in sorted(self._held):
                if any(held.until > now for held in self._held[source].values()):
                    found.setdefault((source.topic, source.group), []).append(source.partition)
            self._held.clear()
            return found

    def after_fork(self) -> None:
        """Everything is the parent's: a child that gave it back would take it from under it."""
        self._lock = threading.Lock()
        self._held = {}
        _random.seed()
        self.consumer = _drawn()


def _drawn() -> int:
    return _random.randrange(1, 1 << 63)
