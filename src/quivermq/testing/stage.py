"""What a fault gets to work with, and choices that all kinds of faults make."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from quivermq.testing.host import Host
from quivermq.testing.operator import Operator
from quivermq.testing.world import World


@dataclass(slots=True)
class Stage:
    """The world, and a generator of its own for whoever strikes it."""

    world: World
    dice: Random
    operator: Operator
    fragile: tuple[int, ...]
    """Members whose disks may be damaged: always a minority of the voters."""
    is_over: bool = False
    """Healing has begun: what faults planned for later does not happen any more."""

    def somebody(self) -> Host | None:
        """A running node, often the leader."""
        leader = self.world.leader
        if leader is not None and self.dice.random() < 0.5:
            return leader
        running = self.world.running
        return self.dice.choice(running) if running else None

    def several(self) -> list[Host]:
        """One node, a majority of them, or all."""
        hosts = [host for host in self.world.hosts.values() if not host.is_retired]
        self.dice.shuffle(hosts)
        size = self.dice.choice((1, len(hosts) // 2 + 1, len(hosts)))
        return hosts[:size]

    def between(self, low_ms: float, high_ms: float) -> float:
        """A duration."""
        return self.dice.uniform(low_ms, high_ms)

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Let something more happen later, unless healing comes first."""
        self.world.time.after_ms(delay_ms, lambda: None if self.is_over else action())
