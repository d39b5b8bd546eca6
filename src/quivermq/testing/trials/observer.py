"""Asks every broker for its replicas all the time: term, commit index and end must never go back.

I6 within a process: term, commit index and readable end of a replica only grow. Across restarts a
replica does not forget a term that it led, because it has stored it. (It may forget one that it
only heard of, until it has voted or appended in it.) Over all brokers, a term has at most one
leader. A replica that was moved away and back begins anew.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from quivermq.errors import QuiverError
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster, DirectConnection
from quivermq.testing.trials.history import TopicPartition
from quivermq.wire import proto

_PAUSE_S: Final = 0.05


class Sighting(NamedTuple):
    """A replica's state at one look."""

    node: int
    life: tuple[int, int]
    """Another one after every reconnect, and when the replica begins anew on what its disk
    holds."""
    place: TopicPartition
    term: int
    commit_index: int
    start_offset: int
    end_offset: int
    leads: bool
    incarnation: int = 0
    """Another number after it was moved away and back."""


class ReplicaProgress:
    """Checks sightings, in the order in which they were made of each node."""

    def __init__(self) -> None:
        self._reached: dict[tuple[int, tuple[int, int], TopicPartition], Sighting] = {}
        self._led: dict[tuple[int, TopicPartition], int] = {}
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self.count = 0

    def see(self, seen: Sighting) -> None:
        self.count += 1
        known = self._reached.get((seen.node, seen.life, seen.place), seen)
        if known.incarnation != seen.incarnation:
            self.move_away(seen.node, seen.place)
        before = self._reached.get((seen.node, seen.life, seen.place), seen)
        for name in ("term", "commit_index", "start_offset", "end_offset"):
            was, is_ = getattr(before, name), getattr(seen, name)
            if is_ < was:
                raise Violation(
                    f"I6: {name} of {seen.place} on node {seen.node} went back from {was} to {is_}"
                )
        self._reached[seen.node, seen.life, seen.place] = seen
        led = self._led.get((seen.node, seen.place), 0)
        if seen.term < led:
            raise Violation(
                f"I6: node {seen.node} forgot term {led} of {seen.place}: it is in {seen.term}"
            )
        if seen.leads:
            self._led[seen.node, seen.place] = seen.term
            leader = self._leaders.setdefault((seen.place, seen.term), seen.node)
            if leader != seen.node:
                raise Violation(
                    f"I6: nodes {leader} and {seen.node} both lead {seen.place} in {seen.term}"
                )

    def move_away(self, node: int, place: TopicPartition) -> None:
        """The node has no replica of this partition any more."""
        self._led.pop((node, place), None)
        for known in [known for known in self._reached if (known[0], known[2]) == (node, place)]:
            del self._reached[known]


class ReplicaObserver:
    """A thread that asks all brokers again and again. Its `with` raises the violation it found."""

    def __init__(
        self,
        cluster: Cluster,
        places: Iterable[TopicPartition],
        unwatched: Collection[int] = (),
        progress: ReplicaProgress | None = None,
    ) -> None:
        self._cluster = cluster
        self._unwatched = unwatched
        self._places = list(places)
        self._connections: dict[int, DirectConnection] = {}
        self._lives = 0
        self._life_of: dict[int, int] = {}
        self._stop = threading.Event()
        self._violation: Violation | None = None
        self.progress = progress or ReplicaProgress()
        self._thread = threading.Thread(target=self._watch, name="observer", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(_PAUSE_S):
                for node in list(self._cluster.nodes.values()):
                    if node.is_running and not node.is_paused and node.id not in self._unwatched:
                        self._look_at(node.id)
        except Violation as error:
            self._violation = error
        finally:
            for connection in self._connections.values():
                connection.close()

    def _look_at(self, node: int) -> None:
        names = [proto.PartitionName(**place._asdict()) for place in self._places]
        request = proto.Request(describe_partitions=proto.DescribePartitions(partitions=names))
        try:
            connection = self._connection_to(node)
            found = connection.ask(request).response.partitions_described
            here = {TopicPartition(seen.topic, seen.partition) for seen in found.partitions}
            for place in self._places:
                if place not in here and not _is_held(connection, node, place):
                    self.progress.move_away(node, place)
        except (QuiverError, KeyError):
            # It is killed, paused or stalled, or has left the cluster since it was listed: another
            # look is another life, as far as we know.
            lost = self._connections.pop(node, None)
            if lost is not None:
                lost.close()
            return
        for seen in sightings(node, self._life_of[node], found):
            self.progress.see(seen)

    def _connection_to(self, node: int) -> DirectConnection:
        if node not in self._connections:
            self._connections[node] = self._cluster.direct(node, timeout=1.0)
            self._lives += 1
            self._life_of[node] = self._lives
        return self._connections[node]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        if self._violation is not None and error is None:
            raise self._violation


def sightings(node: int, life: int, found: proto.PartitionsDescribed) -> Iterator[Sighting]:
    """The replicas that run on a node. Of one that cannot run it says nothing but why."""
    for seen in found.partitions:
        if seen.HasField("term"):
            yield Sighting(
                node,
                (life, seen.life),
                TopicPartition(seen.topic, seen.partition),
                seen.term,
                seen.commit_index,
                seen.start_offset,
                seen.end_offset,
                leads=seen.leader == node,
                incarnation=seen.incarnation,
            )


def _is_held(connection: DirectConnection, node: int, place: TopicPartition) -> bool:
    """Whether a node is to have a replica, by what it knows of the cluster."""
    query = proto.MapQuery(topics=[place.topic])
    found = connection.ask(proto.Request(map=query)).response.map
    if not found.topics:
        return True
    partition = found.topics[0].partitions[place.partition]
    return node in {*partition.replicas, *partition.target}
