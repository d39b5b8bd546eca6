"""Work that is deleted under its consumers: by retention, and with its topic."""

import threading

import pytest

import quivermq
from quivermq.testing import Cluster
from quivermq.testing.trials import ONLY_ACKS, ConsumerLoad, ConsumerPlan, SettleAction
from quivermq.testing.trials.consumer_trial import GROUP

SMALL = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 50}


def test_what_retention_deletes_before_a_slow_group_read_it_is_counted_as_lost() -> None:  # F36
    with Cluster(settings=SMALL) as cluster, cluster.connect() as client:
        client.create_topic("kept", retention=quivermq.Retention(max_messages=1_000))
        client.produce_many("kept", [b"first %d" % number for number in range(10)])
        slow = client.poll("kept", group=GROUP, max_messages=10, visibility=600.0)
        client.ack(slow[:4])
        for number in range(40):
            client.produce_many("kept", [b"%d %d " % (number, n) + b"." * 100 for n in range(100)])
        cluster.wait_until(
            lambda: (client.topic("kept").partitions[0].start_offset or 0) > 2_000,
            "nothing is dropped",
        )
        plan = ConsumerPlan("kept", GROUP, max_messages=500, habits=ONLY_ACKS)
        with ConsumerLoad(cluster, plan, threads=1) as consumers:
            consumers.wait_progress(100)
            consumers.drain()
        (part,) = client.group("kept", GROUP).partitions
        assert part.done == 4 + len(consumers.history.offsets(SettleAction.ACK))
        assert part.lost == part.end_offset - part.done > 1_900
        with pytest.raises(quivermq.LeaseLost):
            client.ack(slow[4:])
        cluster.nodes[cluster.leader("kept")].kill()
        (after,) = client.group("kept", GROUP).partitions
        assert (after.lost, after.done, after.lag) == (part.lost, part.done, 0)


class Worker(threading.Thread):
    """Takes and acknowledges, and does not mind whether the topic is there."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self.values: list[bytes] = []
        self.acked: list[bytes] = []
        self.broken: BaseException | None = None
        self.over = threading.Event()

    def run(self) -> None:
        try:
            with self._cluster.connect() as client:
                while not self.over.is_set():
                    self._work(client)
        except BaseException as error:
            self.broken = error

    def _work(self, client: quivermq.Client) -> None:
        try:
            found = client.poll(self._topic, group=GROUP, max_messages=7, wait=0.2)
            self.values += [message.value for message in found]
            if found:
                client.ack(found)
                self.acked += [message.value for message in found]
        except (quivermq.TopicNotFound, quivermq.LeaseLost):
            return


def test_consumers_of_a_topic_that_is_deleted_and_created_again_see_only_what_there_is(
    cluster: Cluster, topic: str
) -> None:  # F37
    workers = [Worker(cluster, topic) for _ in range(3)]
    with cluster.connect() as client:
        client.create_topic(topic, partitions=2)
        for worker in workers:
            worker.start()
        late: list[quivermq.LeasedMessage] = []
        for life in range(3):
            values = [b"life %d, %d" % (life, number) for number in range(200)]
            client.produce_many(topic, values, partition=life % 2)
            client.produce(topic, b"life %d, other" % life, partition=1 - life % 2)
            # What was taken of a topic that is gone ends nothing in its successor.
            for message in late:
                with pytest.raises((quivermq.TopicNotFound, quivermq.LeaseLost)):
                    message.ack()
            late = client.poll(topic, group="late", max_messages=300, wait=5.0)
            assert all(message.value.startswith(b"life %d" % life) for message in late)

            def acked() -> set[bytes]:
                return {value for worker in workers for value in worker.acked}

            cluster.wait_until(
                lambda values=values: (  # type: ignore[misc]
                    any(worker.broken for worker in workers) or acked() >= set(values)
                ),
                "not all of a topic's life is acknowledged",
            )
            assert [worker.broken for worker in workers] == [None] * 3
            cluster.wait_until(
                lambda: client.group(topic, GROUP).done == 201, "it is not done with all"
            )
            info = client.group(topic, GROUP)
            assert (info.lag, info.redelivered, info.dead) == (0, 0, 0)
            assert client.group(topic, "late").done == 0
            client.delete_topic(topic)
            client.create_topic(topic, partitions=2)
        for worker in workers:
            worker.over.set()
        for worker in workers:
            worker.join()
        seen = [value for worker in workers for value in worker.values]
        assert len(seen) == len(set(seen)) == 3 * 201
