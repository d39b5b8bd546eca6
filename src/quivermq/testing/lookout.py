"""What a node knows of its peers without asking any replica: who is silent, who is another life.

A node that runs sleeping replicas watches their peers for them. Any word counts as a sign of life;
where there is nothing to say, a ping says just that.
"""

from collections.abc import Sequence


class Lookout:
    """The peers of one process, by the ticks of its own clock."""

    def __init__(self, silent_ticks: int) -> None:
        self._silent_ticks = silent_ticks
        self._ticks = 0
        self._heard: dict[int, int] = {}
        self._boots: dict[int, int] = {}
        self._told: set[int] = set()

    def tell(self, peer: int) -> None:
        """Something was sent to a peer."""
        self._told.add(peer)

    def hear(self, peer: int) -> None:
        """Something came from a peer."""
        self._heard[peer] = self._ticks

    def meet(self, peer: int, boot: int) -> bool:
        """A peer says which of its lives this is; True if it is another one than before."""
        known = self._boots.get(peer, boot)
        self._boots[peer] = boot
        return known != boot

    def tick(self, peers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Of these peers, who is to be pinged and who is silent."""
        self._ticks += 1
        since = self._ticks - self._silent_ticks
        unspoken = [peer for peer in peers if peer not in self._told]
        self._told.clear()
        return unspoken, [peer for peer in peers if self._heard.get(peer, 0) < since]
