"""A trial: a cluster under load while something happens to it, and the judgement afterwards.

    with Cluster(nodes=3) as cluster, trial(cluster) as load:
        cluster.nodes[cluster.leader("trial")].kill()
        load.wait_progress()

Once the `with` ends, every replica has been read and compared with what clients were told.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from quivermq.testing.cluster import Cluster
from quivermq.testing.copies import verify
from quivermq.testing.history import Place
from quivermq.testing.load import Load
from quivermq.testing.observer import Observer

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
) -> Iterator[Load]:
    """Begin the load, let things happen, see that it goes on, and check all promises. Unless
    `may_fail`, no client may be told of a failure, because all that happens passes in time. Nodes
    that lose their disk meanwhile may forget what they said before."""
    with cluster.connect() as client:
        client.create_topic(topic, partitions=partitions)
    places = [Place(topic, number) for number in range(partitions)]
    with Observer(cluster, places, loses_disk) as observer:
        with Load(cluster, places, seed=seed) as load:
            load.wait_progress()
            yield load
            load.wait_progress()
        if load.failures and not may_fail:
            raise load.failures[0]
        verify(cluster, load.history)
    if not observer.progress.count:
        raise AssertionError("nobody was observed")
