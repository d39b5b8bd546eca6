"""Who leads which group, as far as this broker has heard."""

from collections.abc import Iterable
from typing import Final, NamedTuple

_UNKNOWN_MAX: Final = 10_000
"""Offices of groups that the catalog does not have yet, or any more."""


class Office(NamedTuple):
    """A leadership: the higher term is the later one."""

    term: int
    node: int


class Leaders:
    """Offices by group. Brokers tell each other when they take one; nobody tells of a loss."""

    def __init__(self) -> None:
        self._offices: dict[bytes, Office] = {}
        self._existing: set[bytes] = set()
        self.version = 0

    def heard(self, group: bytes, office: Office) -> None:
        known = self._offices.get(group)
        if known is None or office.term > known.term:
            self._offices[group] = office
            self.version += 1
        if known is None and len(self._offices) > len(self._existing) + _UNKNOWN_MAX:
            # Word of groups that are gone may come late: it must not pile up.
            self._offices = {g: o for g, o in self._offices.items() if g in self._existing}

    def __len__(self) -> int:
        return len(self._offices)

    def lost(self, group: bytes, node: int) -> None:
        """A broker gave an office up without knowing who has it now."""
        known = self._offices.get(group)
        if known is not None and known.node == node:
            self._offices[group] = Office(known.term, 0)
            self.version += 1

    def began_anew(self, node: int) -> None:
        """A broker was started: it leads nothing until it says so."""
        for group in [g for g, office in self._offices.items() if office.node == node]:
            self.lost(group, node)

    def node(self, group: bytes, later_than: int = -1) -> int:
        """The node that leads, in a term past `later_than`, as far as is known; 0 if it is not."""
        office = self._offices.get(group)
        return office.node if office and office.term > later_than else 0

    def exist(self, groups: Iterable[bytes]) -> None:
        """These are all groups that there are: forget those that are gone.

        Not those that were never seen: brokers that know more of the catalog may tell of them.
        """
        existing = set(groups)
        for group in self._existing - existing:
            self._offices.pop(group, None)
        self._existing = existing
