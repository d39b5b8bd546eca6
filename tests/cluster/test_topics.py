"""Topics that change while they are used: deleted and made again, and dropped from the front."""

import threading
from itertools import count

import pytest

import quivermq
from quivermq.log import Log, RealDisk
from quivermq.testing import Cluster
from quivermq.testing.trials import History, TopicPartition, trial, verify

FAST = {"tick_ms": 50}
SMALL = {**FAST, "segment_bytes": 64 << 10, "retention_interval_ms": 50}


class Writer:
    """Writes to a topic and does not mind whether it is there."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.acked: list[bytes] = []
        self._stop = threading.Event()
        self._cluster, self._topic = cluster, topic
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        with self._cluster.connect() as client:
            for number in count():
                if self._stop.wait(0.002):
                    return
                value = b"value %d" % number
                try:
                    client.produce(self._topic, value)
                except quivermq.TopicNotFound:
                    continue
                self.acked.append(value)

    def wait_acks(self, more: int) -> None:
        goal = len(self.acked) + more
        self._cluster.wait_until(lambda: len(self.acked) >= goal, "nothing is stored any more")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_topic_deleted_and_created_again_in_use_shows_nothing_of_the_old_one() -> None:  # F37
    with Cluster(settings=FAST) as cluster, trial(cluster), cluster.connect() as client:
        client.create_topic("again")
        writer = Writer(cluster, "again")
        try:
            for _ in range(2):
                writer.wait_acks(20)
                # Somebody sleeps through it, and must not bring the old one back.
                absent = cluster.nodes[cluster.leader("again") % 3 + 1]
                absent.kill()
                before = set(writer.acked)
                client.delete_topic("again")
                client.create_topic("again", replication=3)
                writer.wait_acks(20)
                absent.start()
                cluster.wait_ready()
                writer.wait_acks(20)
                messages = list(client.read("again"))
                assert [m.offset for m in messages] == list(range(len(messages)))
                assert not before & {m.value for m in messages}
        finally:
            writer.stop()
        history, place = History(), TopicPartition("again", 0)
        values = [m.value for m in client.read("again")]
        history.attempt("writer", place, values)
        history.ack(place, 0, values)
        verify(cluster, history)
        disks = [RealDisk(node.data_dir) for node in cluster.nodes.values()]
        assert len({Log.open(disk, "log/again/0").log_id for disk in disks}) == 1
        assert all(disk.names("log/again") == ["0"] for disk in disks)
        cluster.start()


def test_a_deleted_topic_leaves_nothing_on_any_disk() -> None:
    with Cluster(settings=FAST) as cluster, cluster.connect() as client:
        client.create_topic("gone", partitions=3)
        client.produce_many("gone", [b"x" * 1000] * 100)
        absent = cluster.nodes[3]
        absent.kill()
        client.delete_topic("gone")
        with pytest.raises(quivermq.TopicNotFound):
            client.produce("gone", b"late")
        absent.start()
        cluster.wait_until(
            lambda: not any((n.data_dir / "log" / "gone").exists() for n in cluster.nodes.values()),
            "the files of a deleted topic stay",
        )


def starts(cluster: Cluster, topic: str) -> list[int]:
    seen = [cluster.describe(node, topic) for node in cluster.nodes]
    return [one.start_offset if one else 0 for one in seen]


RETENTIONS = {
    "count": quivermq.Retention(max_messages=1_000),
    "bytes": quivermq.Retention(max_bytes=200_000),
}


@pytest.mark.parametrize("limit", RETENTIONS)
def test_retention_drops_the_oldest_on_every_replica_and_nothing_else(limit: str) -> None:
    with Cluster(settings=SMALL) as cluster, cluster.connect() as client:
        client.create_topic("kept", retention=RETENTIONS[limit])
        history, place = History(), TopicPartition("kept", 0)
        for number in range(60):
            values = [b"%d %d " % (number, n) + b"." * 100 for n in range(100)]
            history.attempt("writer", place, values)
            (receipt,) = client.produce_many("kept", values)
            history.ack(place, receipt.first_offset, values)
        cluster.wait_until(lambda: min(starts(cluster, "kept")) > 3_000, "nothing is dropped")
        cluster.nodes[cluster.leader("kept")].kill()
        cluster.wait_until(
            lambda: client.topic("kept").partitions[0].start_offset is not None, "nobody leads"
        )
        start = client.topic("kept").partitions[0].start_offset
        with pytest.raises(quivermq.OffsetOutOfRange) as refusal:
            list(client.read("kept", start=0))
        assert refusal.value.earliest >= start
        messages = list(client.read("kept"))
        assert len(messages) >= 1_000
        assert messages[-1].offset == 5_999
        verify(cluster, history, may_be_dropped=True)


def test_retention_by_age_drops_also_where_nothing_is_written() -> None:
    with Cluster(settings=SMALL) as cluster, cluster.connect() as client:
        client.create_topic("kept", retention=quivermq.Retention(max_age=1.0))
        client.produce_many("kept", [b"." * 100] * 2_000)
        cluster.wait_until(lambda: min(starts(cluster, "kept")) == 2_000, "something stays")
        assert list(client.read("kept")) == []
        assert client.produce("kept", b"next").offset == 2_000
