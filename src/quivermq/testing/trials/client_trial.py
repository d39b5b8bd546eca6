"""Runs a cluster under load while a test disturbs it, then checks every replica.

    with Cluster(nodes=3) as cluster, trial(cluster) as load:
        cluster.nodes[cluster.leader("trial")].kill()
        load.wait_progress()

When the `with` ends, every replica is read, from its broker and from its disk, and compared with
the history of the clients.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from quivermq.batches import Frame, FrameKind, decode_messages
from quivermq.log import Log, RealDisk
from quivermq.testing.cluster import Cluster
from quivermq.testing.trials.client_load import ClientLoad
from quivermq.testing.trials.history import History, ReplicaCopy, StoredBatch, TopicPartition
from quivermq.testing.trials.observer import ReplicaObserver
from quivermq.wire import proto

TOPIC = "trial"


@contextmanager
def trial(
    cluster: Cluster,
    *,
    topic: str = TOPIC,
    partitions: int = 2,
    seed: int = 1,
    may_fail: bool = False,
    loses_disk: Collection[int] = (),
) -> Iterator[ClientLoad]:
    """Run producers and readers around the body of the `with`, see that they make progress before
    and after it, and check all guarantees. Unless `may_fail`, no client may get an error: the
    disturbances are shorter than its timeout. `loses_disk` names nodes that are not observed."""
    with cluster.connect() as client:
        client.create_topic(topic, partitions=partitions)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    with ReplicaObserver(cluster, places, loses_disk) as observer:
        with ClientLoad(cluster, places, seed=seed) as load:
            load.wait_progress()
            yield load
            load.wait_progress()
        if load.failures and not may_fail:
            raise load.failures[0]
        verify(cluster, load.history)
    if not observer.progress.count:
        raise AssertionError("no replica was observed")


_FETCH_BYTES = 4 << 20


def verify(
    cluster: Cluster, history: History, *, may_be_dropped: bool = False, timeout: float = 30.0
) -> None:
    """Check a history against all replicas: start what is down, wait until all of them are level,
    read each broker, stop them all, and read each disk."""
    cluster.start()
    holders = {place: wait_until_level(cluster, place, timeout) for place in history.places}
    copies = [fetch_copy(cluster, node, place) for place in holders for node in holders[place]]
    history.check(copies, may_be_dropped=may_be_dropped)
    cluster.stop()
    stored = [
        read_stored_copy(cluster, node, place) for place in holders for node in holders[place]
    ]
    history.check([*copies, *stored], may_be_dropped=may_be_dropped)


def wait_until_level(cluster: Cluster, place: TopicPartition, timeout: float = 30.0) -> list[int]:
    """Wait until all replicas of a partition have committed the same; returns their nodes."""
    nodes: list[int] = []

    def is_level() -> bool:
        nonlocal nodes
        leader = cluster.leader(*place, timeout=timeout)
        seen = cluster.describe(leader, *place)
        if seen is None or seen.leader != leader:
            return False
        nodes = list(seen.replicas)
        ends = {(seen.commit_index, seen.end_offset, seen.term)}
        for node in nodes:
            other = cluster.describe(node, *place)
            ends.add((other.commit_index, other.end_offset, other.term) if other else (0, 0, 0))
        return len(ends) == 1

    cluster.wait_until(is_level, f"the replicas of {place} are not level", timeout)
    return nodes


def fetch_copy(cluster: Cluster, node: int, place: TopicPartition) -> ReplicaCopy:
    """Fetch all of a partition from one broker's replica."""
    frames: list[Frame] = []
    with cluster.direct(node, timeout=10.0) as broker:
        find = proto.FindOffset(**place._asdict(), earliest=True, follower_ok=True)
        asked = proto.Request(find_offset=find, forwarded=True)
        start = offset = broker.ask(asked).response.offset_found.offset
        while True:
            fetch = proto.Fetch(
                **place._asdict(), offset=offset, bytes_max=_FETCH_BYTES, follower_ok=True
            )
            answer = broker.ask(proto.Request(fetch=fetch, forwarded=True))
            frames += answer.frames
            offset = answer.response.fetched.next_offset
            if not answer.frames:
                return ReplicaCopy(node, "fetched", place, start, list(_batches(frames)))


def read_stored_copy(cluster: Cluster, node: int, place: TopicPartition) -> ReplicaCopy:
    """Read a partition from the disk of a stopped broker, as the broker would open it."""
    disk = RealDisk(cluster.nodes[node].data_dir)
    log = Log.open(disk, f"log/{place.topic}/{place.partition}")
    return ReplicaCopy(node, "stored", place, log.start.next_offset, stored_batches(log))


def stored_batches(log: Log) -> list[StoredBatch]:
    """All batches that a log holds."""
    frames = log.frames(log.first_index)
    return list(_batches(frame for frame in frames if frame.header.kind == FrameKind.DATA))


def _batches(frames: Iterable[Frame]) -> Iterator[StoredBatch]:
    for frame in frames:
        header = frame.header
        yield StoredBatch(
            header.base_offset,
            tuple(message.value for message in decode_messages(frame)),
            header.producer_id,
            header.producer_epoch,
            header.sequence,
            bytes(frame),
        )
