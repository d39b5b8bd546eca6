"""Leases that a consumer holds, so that it can give them back at the end."""

import threading
from collections.abc import Iterable
from secrets import randbelow
from typing import NamedTuple

from quivermq.client import fork_safety
from quivermq.intervals import Interval, IntervalSet


class LeaseSource(NamedTuple):
    """A group in one partition of a topic."""

    topic: str
    group: str
    partition: int


class _Held(NamedTuple):
    left: IntervalSet | None
    """None: unknown, perhaps nothing."""
    until: float
    """It comes back by itself then."""


class HeldLeases:
    """The leased messages of one consumer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[LeaseSource, dict[int, _Held]] = {}
        """By the token of the lease; 0: of an answer that was lost."""
        self.consumer = _draw_id()
        """The number by which brokers know this consumer."""
        fork_safety.watch(self)

    def add(
        self,
        source: LeaseSource,
        token: int,
        intervals: Iterable[Interval],
        until: float,
        now: float,
    ) -> None:
        """Add a lease."""
        with self._lock:
            leases = self._held.setdefault(source, {})
            leases[token] = _Held(IntervalSet(intervals), until)
            # Leases that are never settled must not gather for ever: the oldest end first.
            while leases[first := next(iter(leases))].until <= now:
                del leases[first]

    def add_uncertain(self, source: LeaseSource, until: float) -> None:
        """Add a lease that may exist: the answer to a poll was lost."""
        with self._lock:
            self._held.setdefault(source, {})[0] = _Held(None, until)

    def extend(self, source: LeaseSource, token: int, until: float) -> None:
        """A lease ends later."""
        with self._lock:
            leases = self._held.get(source, {})
            if token in leases:
                leases[token] = leases[token]._replace(until=until)

    def remove(self, source: LeaseSource, token: int, intervals: Iterable[Interval]) -> None:
        """Remove messages from a lease; to do so twice makes no difference."""
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

    def is_held(self, source: LeaseSource, token: int) -> bool:
        """Some message of this lease is not settled. Takes no lock."""
        return token in self._held.get(source, ())

    @property
    def is_any(self) -> bool:
        """Something may be held. Takes no lock."""
        return bool(self._held)

    def take_all(self, now: float) -> dict[tuple[str, str], list[int]]:
        """Empty it; returns the partitions with leases that have not ended, by topic and group."""
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
        self.consumer = _draw_id()


def _draw_id() -> int:
    """Two consumers must not draw the same, also in programs that seed their generators."""
    return 1 + randbelow((1 << 63) - 1)
