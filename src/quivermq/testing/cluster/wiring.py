"""The links of a proxied cluster: from each broker to each other one, and from clients to each."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from quivermq.testing.cluster.node import Node
from quivermq.testing.cluster.proxies import ProxiedLink, Proxies


class Wiring:
    """All links. A broker sends through the link that it dials, so each pair has one link a
    direction, and cutting one of the two is a one-way partition."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._proxies = Proxies()
        self.founders = tuple(nodes)
        """Those whose links can be cut: brokers that join later are reached directly."""
        self.links: dict[tuple[int, int], ProxiedLink] = {
            (sender, receiver): self._proxies.link(nodes[receiver].peer_address)
            for sender, receiver in permutations(nodes, 2)
        }
        """By sender and receiver."""
        self.doors: dict[int, ProxiedLink] = {
            node.id: self._proxies.link(node.address) for node in nodes.values()
        }
        """By node: the link of clients, and of brokers that pass requests on."""

    def settings_of(self, node: int) -> dict[str, Any]:
        """The settings that make a broker use the links."""
        return {
            "advertise": self.doors[node].address,
            "peers": {
                receiver: link.address
                for (sender, receiver), link in self.links.items()
                if sender == node
            },
        }

    def between(self, one: int, other: int) -> tuple[ProxiedLink, ProxiedLink]:
        """Both links of a pair."""
        return self.links[one, other], self.links[other, one]

    def partition(self, *sides: Collection[int]) -> None:
        """Nodes hear only those on a side of theirs. One that is on several sides is a bridge."""
        self.connect_only(pair for side in sides for pair in permutations(side, 2))

    def connect_only(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Cut every link but these, given as sender and receiver."""
        kept = set(pairs)
        for pair, link in self.links.items():
            if pair in kept:
                link.heal()
            else:
                link.cut()

    def cut(self, sender: int, receiver: int) -> None:
        """Cut a link, one way."""
        self.links[sender, receiver].cut()

    def lose_answers(self, node: int) -> None:
        """Clients reach a node, and its answers do not reach them."""
        self.doors[node].cut_answers()

    def isolate(self, node: int) -> None:
        """Cut a node off from all others, both ways."""
        for link in self._links_of(node):
            link.cut()

    def _links_of(self, node: int) -> Iterator[ProxiedLink]:
        return (link for pair, link in self.links.items() if node in pair)

    def heal(self) -> None:
        """Heal all links and doors."""
        for link in (*self.links.values(), *self.doors.values()):
            link.heal()

    def close(self) -> None:
        self._proxies.close()
