"""A topic's rate limit holds over all its partitions, wherever they are led, and over failovers."""

import threading
import time
from typing import Any

import quivermq
from quivermq.testing import Cluster
from quivermq.testing.trials import lead_by
from quivermq.testing.trials.consumer_trial import GROUP

RATE, BURST = 50.0, 5


class Taker(threading.Thread):
    """Takes whatever comes, at most once, and counts."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self.taken = 0
        self.over = threading.Event()

    def run(self) -> None:
        with self._cluster.connect() as client:
            while not self.over.is_set():
                found: list[Any] = client.poll(self._topic, group=GROUP, wait=0.5, ack="auto")
                self.taken += len(found)


def test_a_limit_is_one_for_all_nodes_and_a_failover_costs_one_burst_at_most(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(
            topic, partitions=3, rate_limit=quivermq.RateLimit(per_second=RATE, burst=BURST)
        )
        for partition in range(3):
            lead_by(cluster, client, topic, partition, partition + 1)
            client.produce_many(topic, [b"." * 20] * 1000, partition=partition)
        takers = [Taker(cluster, topic) for _ in range(3)]
        began = time.monotonic()
        for taker in takers:
            taker.start()

        def taken() -> int:
            return sum(taker.taken for taker in takers)

        cluster.wait_until(lambda: taken() >= 2 * RATE, "hardly anything is delivered")
        assert taken() <= BURST + RATE * (time.monotonic() - began)
        keeper = cluster.nodes[cluster.leader(topic, 0)]
        keeper.kill()
        after = taken()
        cluster.wait_until(lambda: taken() >= after + 2 * RATE, "nothing is delivered any more")
        for taker in takers:
            taker.over.set()
        for taker in takers:
            taker.join()
        # Those that were counted before the watch was read were delivered before it.
        total = taken()
        assert total <= 2 * BURST + RATE * (time.monotonic() - began)
        assert total >= 4 * RATE
