"""Who leads which group, as far as this broker has heard."""

from collections.abc import Iterable
from typing import NamedTuple


class Office(NamedTuple):
    """A leadership: the higher term is the later one."""

    term: int
    node: int


class Leaders:
    """Offices by group. Brokers tell each other when they take one; nobody tells of a loss."""

    def __init__(self) -> None:
        self._offices: dict[bytes, Office] = {}
        self.version = 0

    def heard(self, group: bytes, office: Office) -> None:
        known = self._offices.get(group)
        if known is None or office.term > known.term:
            self._offices[group] = office
            self.version += 1

    def lost(self, group: bytes, node: int) -> None:
        """A broker gave an office up without knowing who has it now."""
        known = self._offices.get(group)
        if known is not None and known.node == node:
            self._offices[group] = Office(known.term, 0)
            self.version += 1

    def node(self, group: bytes) -> int:
        """The node that leads, as far as is known; 0 if it is not."""
        office = self._offices.get(group)
        return office.node if office else 0

    def keep_only(self, groups: Iterable[bytes]) -> None:
        """Forget groups that exist no more."""
        kept = set(groups)
        for group in [group for group in self._offices if group not in kept]:
            del self._offices[group]
