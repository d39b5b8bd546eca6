"""Consumers of a cluster whose leaders die: everything is delivered, nothing acknowledged again."""

import threading
from collections import Counter
from contextlib import suppress
from typing import Self

import quivermq
from quivermq.errors import LeaseLost
from quivermq.testing import Cluster

FAST = {"tick_ms": 50}
MESSAGES = 400


class Poller:
    """Polls and acknowledges on a thread, until the `with` ends."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acked: Counter[tuple[int, int]] = Counter()
        self._cluster = cluster
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._cluster.connect(timeout=30) as client:
            while not self._stop.is_set():
                messages = client.poll(self._topic, group="polled", max_messages=7, wait=0.2)
                with suppress(LeaseLost):
                    client.ack(messages)
                    self.acked.update((message.partition, message.offset) for message in messages)


def test_consumers_go_on_when_leaders_are_killed() -> None:  # F1, F26
    with Cluster(settings=FAST) as cluster, cluster.connect(timeout=30) as client:
        client.create_topic("t", partitions=4, replication=3)
        handled: set[tuple[int, int]] = set()

        def handle(message: quivermq.LeasedMessage) -> None:
            handled.add((message.partition, message.offset))

        with (
            Poller(cluster, "t") as poller,
            client.subscribe("t", group="pushed", handler=handle, prefetch=10),
        ):
            places = set()
            for number in range(MESSAGES):
                receipt = client.produce("t", b"%d" % number)
                places.add((receipt.partition, receipt.offset))
                if number in {100, 300}:
                    cluster.nodes[cluster.leader("t", number // 100)].kill()
                if number == 200:
                    cluster.start()
            cluster.wait_until(lambda: handled >= places, "not all are handled")
            cluster.wait_until(
                lambda: client.group("t", "polled").done == len(places), "not all are acknowledged"
            )
        assert max(poller.acked.values()) == 1
        pushed = client.group("t", "pushed")
        assert (pushed.done, pushed.in_flight) == (len(places), 0)
