"""Remembers which node leads each partition, as far as this broker has heard."""

from collections.abc import Iterable
from typing import Final, NamedTuple

_UNKNOWN_MAX: Final = 10_000
"""Leaderships of partitions that the catalog does not have yet, or any more."""


class Leadership(NamedTuple):
    """A leadership: the higher term is the later one."""

    term: int
    node: int


class KnownLeaders:
    """Leaderships by partition. Brokers tell each other when one begins, not when one ends."""

    def __init__(self) -> None:
        self._leaderships: dict[bytes, Leadership] = {}
        self._existing: set[bytes] = set()
        self.version = 0

    def learn(self, partition: bytes, leadership: Leadership) -> None:
        known = self._leaderships.get(partition)
        if known is None or leadership.term > known.term:
            self._leaderships[partition] = leadership
            self.version += 1
        if known is None and len(self._leaderships) > len(self._existing) + _UNKNOWN_MAX:
            # Word of partitions that are gone may come late: it must not pile up.
            self._leaderships = {g: o for g, o in self._leaderships.items() if g in self._existing}

    def __len__(self) -> int:
        return len(self._leaderships)

    def end(self, partition: bytes, node: int) -> None:
        """A broker gave its leadership up, and does not know the next leader."""
        known = self._leaderships.get(partition)
        if known is not None and known.node == node:
            self._leaderships[partition] = Leadership(known.term, 0)
            self.version += 1

    def end_all_of(self, node: int) -> None:
        """A broker was started: it leads nothing until it says so."""
        for partition in [g for g, known in self._leaderships.items() if known.node == node]:
            self.end(partition, node)

    def node(self, partition: bytes, later_than: int = -1) -> int:
        """The node that leads, in a term past `later_than`, as far as is known; 0 if it is not."""
        known = self._leaderships.get(partition)
        return known.node if known and known.term > later_than else 0

    def keep_only(self, partitions: Iterable[bytes]) -> None:
        """These are all partitions that there are: forget those that are gone.

        Not those that were never seen: brokers that know more of the catalog may tell of them.
        """
        existing = set(partitions)
        for partition in self._existing - existing:
            self._leaderships.pop(partition, None)
        self._existing = existing
