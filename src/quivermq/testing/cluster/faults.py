"""Faults for real clusters.

A fault is a method that strikes a random target and returns a function that ends it. Safety must
hold through any mix of faults, progress once all are over.
"""

import shutil
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Final, Protocol

from quivermq.errors import QuiverError
from quivermq.testing.cluster.cluster import Cluster
from quivermq.testing.cluster.node import ClusterError, Node
from quivermq.testing.cluster.wiring import Wiring

Undo = Callable[[], None]
_NODES_MAX: Final = 6
_MOVED_S: Final = 120.0
_BLINK_S: Final = (0.05, 0.5)


def _nothing() -> None:
    """Some faults leave nothing to undo."""


class Links(Protocol):
    """The links of a cluster: `Wiring` or `HostLinks`."""

    founders: tuple[int, ...]

    def cut(self, sender: int, receiver: int) -> None: ...
    def lose_answers(self, node: int) -> None: ...
    def isolate(self, node: int) -> None: ...
    def partition(self, *sides: Collection[int]) -> None: ...
    def heal(self) -> None: ...


class ClusterFaults:
    """Strikes a cluster at random."""

    def __init__(self, cluster: Cluster, links: Links, dice: Random) -> None:
        self._cluster = cluster
        self._links = links
        self._dice = dice
        self.release: Path | None = None
        """A folder with the package of another release: see `change_release`."""
        self.lost_disk: set[int] = set()
        """Nodes whose disk was emptied."""

    def passing(self) -> list[Callable[[], Undo]]:
        """Faults that last for seconds, and may overlap."""
        return [
            self.kill_one,
            self.kill_several,
            self.kill_all,
            self.pause_one,
            self.restart_one,
            self.isolate_one,
            self.split,
            self.cut_one_way,
            self.bridge,
            self.blink,
            *((self.clog, self.delay) if isinstance(self._links, Wiring) else ()),
            self.lose_answers,
            self.slow_disk,
            self.stall,
            self.transfer,
        ]

    def lasting(self) -> list[Callable[[], Undo]]:
        """Faults that change the cluster, and wait until it has settled."""
        has_joined = len(self._cluster.nodes) > len(self._links.founders)
        may_join = len(self._cluster.nodes) < _NODES_MAX
        return [
            *([self.add_node] if may_join else []),
            *([self.remove_node] if has_joined else []),
            self.lose_disk,
            self.rebalance,
        ]

    # Processes.

    def _one(self) -> Node:
        return self._dice.choice(self._cluster.running or list(self._cluster.nodes.values()))

    def _kill(self, nodes: list[Node]) -> Undo:
        for node in nodes:
            node.kill()

        def undo() -> None:
            for node in nodes:
                self._start_again(node)

        return undo

    def _start_again(self, node: Node) -> None:
        """Start a broker that is down, as an operator does: on a disk that works, and with a clock
        that is right, since without others a broker cannot tell that its clock is wrong."""
        if not node.is_running and node.id in self._cluster.nodes:
            if node.disk_fault is not None:
                node.fail_disk(None)
            node.shift_clock(0.0)
            node.start()

    def kill_one(self) -> Undo:
        return self._kill([self._one()])

    def kill_several(self) -> Undo:
        running = self._cluster.running
        return self._kill(self._dice.sample(running, self._dice.randint(0, len(running))))

    def kill_all(self) -> Undo:
        return self._kill(self._cluster.running)

    def pause_one(self) -> Undo:
        node = self._one()
        node.pause()
        return node.resume

    def restart_one(self) -> Undo:
        node = self._one()
        if node.disk_fault is None:
            node.stop()
        else:
            # It may end with an error.
            node.kill()
        return lambda: self._start_again(node)

    def slow_disk(self) -> Undo:
        node = self._one()
        if not node.is_running:
            return _nothing
        pid = node.pid
        node.slow_disk(self._dice.choice((20, 200, 1_000)))
        return lambda: node.slow_disk(0) if node.is_running and node.pid == pid else None

    def stall(self) -> Undo:
        node = self._one()
        if node.is_running:
            node.stall(self._dice.uniform(0.2, 3.0))
        return _nothing

    # Disks, power and clocks.

    def disk_faults(self) -> list[Callable[[], Undo]]:
        """Faults of disks, power and clocks that last for seconds and may overlap, as far as the
        disks of this cluster allow them."""
        if any(node.disk is None for node in self._cluster.nodes.values()):
            return [self.jump_clock]
        return [
            self.full_disk,
            self.read_only_disk,
            self.failing_disk,
            self.crawling_disk,
            self.lose_power,
            self.lose_power_of_all,
            self.jump_clock,
        ]

    def _fail_disk(self, kind: str, milliseconds: float = 0.0, share: float = 1.0) -> Undo:
        node = self._one()
        node.fail_disk(kind, milliseconds=milliseconds, share=share)

        def undo() -> None:
            node.fail_disk(None)
            self._start_again(node)

        return undo

    def full_disk(self) -> Undo:
        return self._fail_disk("full")

    def read_only_disk(self) -> Undo:
        return self._fail_disk("read_only")

    def failing_disk(self) -> Undo:
        kind = self._dice.choice(("read_errors", "write_errors", "sync_errors"))
        return self._fail_disk(kind, share=self._dice.choice((0.05, 0.5, 1.0)))

    def crawling_disk(self) -> Undo:
        """Each operation is slow, where `slow_disk` slows syncs only."""
        return self._fail_disk("slow", milliseconds=self._dice.choice((2, 10, 50)))

    def lose_power(self) -> Undo:
        return self._lose_power([self._one()])

    def lose_power_of_all(self) -> Undo:
        return self._lose_power(list(self._cluster.nodes.values()))

    def _lose_power(self, nodes: list[Node]) -> Undo:
        for node in nodes:
            # Half of the time nothing survives that was not synced, else a part of it may.
            node.lose_power(self._dice.choice((None, self._dice.getrandbits(32))))
        return self._kill(nodes)

    def jump_clock(self) -> Undo:
        node = self._one()
        node.shift_clock(self._dice.choice((-86_400, -3_600, -7, 7, 3_600, 86_400)))

        def undo() -> None:
            # One that stands still does not answer; one that ends meanwhile starts with the right
            # clock.
            node.resume()
            with suppress(ClusterError, OSError):
                node.shift_clock(0.0)

        return undo

    # Links. All of them heal together: what overlaps cannot be told apart.

    def isolate_one(self) -> Undo:
        self._links.isolate(self._dice.choice(self._links.founders))
        return self._links.heal

    def split(self) -> Undo:
        nodes = list(self._links.founders)
        self._dice.shuffle(nodes)
        cut = self._dice.randint(1, len(nodes) - 1)
        self._links.partition(nodes[:cut], nodes[cut:])
        return self._links.heal

    def cut_one_way(self) -> Undo:
        for pair in self._dice.sample(list(permutations(self._links.founders, 2)), 2):
            self._links.cut(*pair)
        return self._links.heal

    def bridge(self) -> Undo:
        nodes = list(self._links.founders)
        self._dice.shuffle(nodes)
        middle = len(nodes) // 2
        self._links.partition(nodes[: middle + 1], nodes[middle:])
        return self._links.heal

    def blink(self) -> Undo:
        """Cut a node off and let it back, several times a second."""
        node, over = self._dice.choice(self._links.founders), threading.Event()
        pauses = [self._dice.uniform(*_BLINK_S) for _ in range(7)]

        def cut_and_heal() -> None:
            number = 0
            while not over.wait(pauses[number % len(pauses)]):
                number += 1
                if number % 2:
                    self._links.isolate(node)
                else:
                    self._links.heal()

        thread = threading.Thread(target=cut_and_heal, name="blink", daemon=True)
        thread.start()

        def undo() -> None:
            over.set()
            thread.join()
            self._links.heal()

        return undo

    def clog(self) -> Undo:
        links = list(self._wiring.links.values())
        self._dice.shuffle(links)
        for link in links[: self._dice.randint(1, len(links))]:
            link.clog()

        def undo() -> None:
            self._dice.shuffle(links)
            for link in links:
                link.heal()

        return undo

    def delay(self) -> Undo:
        for link in self._wiring.links.values():
            link.delay(self._dice.uniform(0.0, 0.1))
        return self._wiring.heal

    def lose_answers(self) -> Undo:
        self._links.lose_answers(self._dice.choice(self._links.founders))
        return self._links.heal

    @property
    def _wiring(self) -> Wiring:
        """Links that can be clogged and slow."""
        if not isinstance(self._links, Wiring):
            raise TypeError("only proxied links can be clogged or slow: Cluster(proxied=True)")
        return self._links

    # Operations.

    def transfer(self) -> Undo:
        try:
            with self._cluster.connect(timeout=5.0) as client:
                topic = self._dice.choice(client.topics())
                partition = self._dice.choice(topic.partitions)
                to = self._dice.choice(partition.replicas)
                client.transfer(topic.name, partition.partition, to=to)
        except (QuiverError, IndexError):
            return _nothing
        return _nothing

    def change_release(self) -> Undo:
        """Start a broker again with the other release, forward or back."""
        node = self._one()
        node.change_release(self.release if node.code is None else None)
        return _nothing

    def rebalance(self) -> Undo:
        with self._cluster.connect(timeout=30.0) as client:
            client.rebalance()
        return self._wait_moved

    def add_node(self) -> Undo:
        self._cluster.add_node()
        return self.rebalance()

    def remove_node(self) -> Undo:
        node = max(self._cluster.nodes)
        with self._cluster.connect(timeout=30.0) as client:
            client.remove_broker(node)

        def undo() -> None:
            with self._cluster.connect(timeout=30.0) as client:
                self._cluster.wait_until(
                    lambda: node not in {broker.id for broker in client.cluster(latest=True).nodes},
                    f"node {node} does not leave",
                    _MOVED_S,
                )
            self._cluster.drop_node(node)

        return undo

    def lose_disk(self) -> Undo:
        node = self._one()
        self.lost_disk.add(node.id)
        node.kill()
        # The folder itself stays: it may be where a file system is mounted.
        for path in node.data_dir.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

        def undo() -> None:
            node.start()
            with self._cluster.connect(timeout=30.0) as client:
                self._cluster.wait_until(
                    lambda: client.replace_broker(node.id) is None,
                    "the broker is not replaced",
                )
            self._cluster.wait_ready()
            self._wait_moved()

        return undo

    def _wait_moved(self) -> None:
        with self._cluster.connect(timeout=30.0) as client:
            self._cluster.wait_until(
                lambda: client.rebalance_status().moves_left == 0, "partitions still move", _MOVED_S
            )
