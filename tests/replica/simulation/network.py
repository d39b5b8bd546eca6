"""The simulated network: loses, repeats, delays and reorders messages, cuts and clogs links.

Links are ordered pairs, so that every fault can be one-way. Nodes have positive addresses and
clients negative ones; partitions are between nodes, as a client is often on the wrong side.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import US_PER_MS, VirtualTime

Link = tuple[int, int]

CLOGGED_MAX: Final = 64
"""Messages that a clogged link holds; the oldest are lost first."""


@dataclass(slots=True)
class Weather:
    """How good the network is, for every link."""

    delay_ms_min: float = 0.2
    delay_ms_max: float = 2.0
    loss: float = 0.0
    repetition: float = 0.0
    is_ordered: bool = True
    """Whether a link keeps the order of what it carries, as a connection does."""


class Network:
    """Carries anything from address to address, or fails to."""

    def __init__(self, time: VirtualTime, dice: Random, story: Story) -> None:
        self._time = time
        self._dice = dice
        self._story = story
        self.weather = Weather()
        self.deliver: Callable[[int, int, object], None] = lambda _from, _to, _mail: None
        """Called with sender, receiver and what arrives."""
        self._cut: frozenset[Link] = frozenset()
        self._clogged: dict[Link, list[object]] = {}
        self._free_us: dict[Link, int] = {}
        """When the last message of an ordered link arrives."""

    def send(self, sender: int, to: int, mail: object) -> None:
        """Take one message; it arrives later, perhaps twice, perhaps never."""
        link = (sender, to)
        if link in self._cut:
            return
        if link in self._clogged:
            waiting = self._clogged[link]
            waiting.append(mail)
            del waiting[:-CLOGGED_MAX]
            return
        if self._dice.random() < self.weather.loss:
            return
        self._carry(link, mail)
        if self._dice.random() < self.weather.repetition:
            self._carry(link, mail)

    def _carry(self, link: Link, mail: object) -> None:
        weather = self.weather
        delay_ms = self._dice.uniform(weather.delay_ms_min, weather.delay_ms_max)
        if weather.is_ordered:
            due_us = max(
                self._time.now_us + round(delay_ms * US_PER_MS), self._free_us.get(link, 0)
            )
            self._free_us[link] = due_us
            delay_ms = (due_us - self._time.now_us) / US_PER_MS
        self._time.after_ms(delay_ms, lambda: self._arrive(link, mail))

    def _arrive(self, link: Link, mail: object) -> None:
        # What was under way when a link was cut is lost as well.
        if link not in self._cut:
            self.deliver(*link, mail)

    def cut(self, links: Iterable[Link]) -> None:
        """Let nothing pass over these links, and everything over all others."""
        self._cut = frozenset(links)

    def heal(self) -> None:
        """Good weather, nothing cut, nothing clogged."""
        self.weather = Weather()
        self.cut(())
        for link in sorted(self._clogged):
            self.restore(link)

    def clog(self, link: Link) -> None:
        """Hold back what is sent over a link from now on."""
        self._clogged.setdefault(link, [])

    def restore(self, link: Link) -> None:
        """Let a clogged link flow; what it held arrives in any order."""
        waiting = self._clogged.pop(link, [])
        self._dice.shuffle(waiting)
        for mail in waiting:
            self._carry(link, mail)

    @property
    def clogged(self) -> list[Link]:
        return sorted(self._clogged)


def split(left: Sequence[int], right: Sequence[int]) -> set[Link]:
    """Two sides cannot reach each other."""
    return {link for a in left for b in right for link in ((a, b), (b, a))}


def mute(nodes: Sequence[int], silenced: Sequence[int]) -> set[Link]:
    """Some nodes receive from all others, and reach none."""
    return {(a, b) for a in silenced for b in nodes if b not in silenced}


def deaf(nodes: Sequence[int], deafened: Sequence[int]) -> set[Link]:
    """Some nodes reach all others, and receive from none."""
    return {(b, a) for a in deafened for b in nodes if b not in deafened}


def bridge(nodes: Sequence[int]) -> set[Link]:
    """Two halves that only the node in the middle can reach."""
    middle = len(nodes) // 2
    return split(nodes[:middle], nodes[middle + 1 :])


def ring(nodes: Sequence[int]) -> set[Link]:
    """Each node reaches only its two neighbours."""
    size = len(nodes)
    return {
        (nodes[a], nodes[b])
        for a in range(size)
        for b in range(size)
        if a != b and (a - b) % size not in {1, size - 1}
    }
