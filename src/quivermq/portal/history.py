"""Keeps the samples of the last hour, in rings of a fixed size."""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

SECONDS: Final = 3600.0
RINGS_MAX: Final = 400
POINTS_MAX: Final = 240
"""A chart gets at most so many: of more, the mean over even spans of time."""


class Ring:
    """Values with their times; a new one takes the place of the oldest."""

    __slots__ = ("_filled", "_next", "_times", "_values")

    def __init__(self, size: int) -> None:
        self._times = array("d", bytes(8 * size))
        self._values = array("d", bytes(8 * size))
        self._next = self._filled = 0

    def add(self, at: float, value: float) -> None:
        self._times[self._next], self._values[self._next] = at, value
        self._next = (self._next + 1) % len(self._times)
        self._filled = min(self._filled + 1, len(self._times))

    def since(self, start: float) -> Iterator[tuple[float, float]]:
        """The samples from a time on, the oldest first."""
        size = len(self._times)
        for number in range(self._filled):
            place = (self._next - self._filled + number) % size
            if self._times[place] >= start:
                yield self._times[place], self._values[place]


class History:
    """Rings by name. A series that is not kept yet begins with its first value other than 0, so
    that ten thousand idle topics cost nothing; of too many, the one that slept longest ends."""

    def __init__(self, interval: float) -> None:
        self._size = max(2, round(SECONDS / interval))
        self._rings: OrderedDict[str, Ring] = OrderedDict()

    def add(self, at: float, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            ring = self._rings.get(name)
            if ring is None:
                if not value:
                    continue
                ring = self._rings[name] = Ring(self._size)
            if value:
                self._rings.move_to_end(name)
            ring.add(at, value)
        while len(self._rings) > RINGS_MAX:
            self._rings.popitem(last=False)

    @property
    def names(self) -> Iterable[str]:
        """Of the series that are kept."""
        return self._rings.keys()

    def points(self, name: str, now: float, seconds: float) -> list[tuple[float, float]]:
        """The last `seconds` of a series, at most `POINTS_MAX`."""
        ring = self._rings.get(name)
        if ring is None:
            return []
        start = now - seconds
        found = list(ring.since(start))
        if len(found) <= POINTS_MAX:
            return found
        span = seconds / POINTS_MAX
        spans: dict[int, list[tuple[float, float]]] = {}
        for at, value in found:
            spans.setdefault(int((at - start) / span), []).append((at, value))
        return [
            (each[-1][0], sum(value for _, value in each) / len(each)) for each in spans.values()
        ]
