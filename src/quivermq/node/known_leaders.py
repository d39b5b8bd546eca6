"""Who leads which group, as far as this broker has heard."""

from collections.abc import Iterable
from typing import Final, NamedTuple

_UNKNOWN_MAX: Final = 10_000
"""Offices of groups that the catalog does not have yet, or any more."""


class Leadership(NamedTuple):
    """A leadership: the higher term is the later one."""

    term: int
    node: int


class KnownLeaders:
    """Offices by group. Brokers tell each other when they take one; nobody tells of a loss."""

    def __init__(self) -> None:
        self._leaderships: dict[bytes, Leadership] = {}
        self._existing: set[bytes] = set()
        self.version = 0

    def heard(self, partition: bytes, office: Leadership) -> None:
        known = self._leaderships.get(partition)
        if known is None or office.term > known.term:
            self._leaderships[partition] = office
            self.version += 1
        if known is None and len(self._leaderships) > len(self._existing) + _UNKNOWN_MAX:
            # Word of groups that are gone may come late: it must not pile up.
            self._leaderships = {g: o for g, o in self._leaderships.items() if g in self._existing}

    def __len__(self) -> int:
        return len(self._leaderships)

    def lost(self, partition: bytes, node: int) -> None:
        """A broker gave an leadership up without knowing who has it now."""
        known = self._leaderships.get(partition)
        if known is not None and known.node == node:
            self._leaderships[partition] = Leadership(known.term, 0)
            self.version += 1

    def began_anew(self, node: int) -> None:
        """A broker was started: it leads nothing until it says so."""
        for partition in [g for g, office in self._leaderships.items() if office.node == node]:
            self.lost(partition, node)

    def node(self, partition: bytes, later_than: int = -1) -> int:
        """The node that leads, in a term past `later_than`, as far as is known; 0 if it is not."""
        office = self._leaderships.get(partition)
        return office.node if office and office.term > later_than else 0

    def exist(self, partitions: Iterable[bytes]) -> None:
        """These are all groups that there are: forget those that are gone.

        Not those that were never seen: brokers that know more of the catalog may tell of them.
        """
        existing = set(partitions)
        for partition in self._existing - existing:
            self._leaderships.pop(partition, None)
        self._existing = existing
