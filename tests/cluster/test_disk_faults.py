"""Disks that fail, power that is lost and clocks that jump, for brokers that are real processes."""

import time
from collections.abc import Iterator
from random import Random

import pytest

from quivermq.client import Client
from quivermq.errors import QuiverError, StorageFull, Timeout
from quivermq.testing import Cluster
from quivermq.testing.cluster import ClusterError, ClusterFaults, why_no_fuse
from quivermq.testing.trials import trial
from quivermq.testing.trials.client_trial import TOPIC

FAST = {"tick_ms": 50}
DISKS = "shim" if why_no_fuse() else "fuse"
HOUR_S = 3_600


def values(client: Client, topic: str) -> list[bytes]:
    return [message.value for message in client.read(topic)]


@pytest.mark.parametrize("disks", ["fuse", "shim"])
def test_a_power_loss_of_a_leader_and_of_all_brokers_loses_nothing_acknowledged(
    disks: str,
) -> None:  # F2, F3
    if disks == "fuse" and (reason := why_no_fuse()):
        pytest.skip(reason)
    with Cluster(settings=FAST, disks=disks) as cluster, trial(cluster, may_fail=True) as load:
        leader = cluster.nodes[cluster.leader(TOPIC)]
        assert leader.lose_power() > 0
        load.wait_progress()
        leader.start()
        load.wait_progress()
        for node in cluster.nodes.values():
            node.lose_power(seed=node.id)
        cluster.start()
        load.wait_progress()
        for node in cluster.nodes.values():
            node.lose_power()
        cluster.start()


def test_a_power_loss_takes_what_was_not_synced() -> None:
    """The control: without it the test above could not fail."""
    with Cluster(nodes=1, settings=FAST, disks=DISKS) as cluster, cluster.connect() as client:
        client.create_topic("orders")
        client.produce("orders", b"synced")
        node = cluster.nodes[1]
        node.stop()
        node.settings["fsync"] = "never"
        node.start()
        client.produce("orders", b"acknowledged")
        node.kill()
        node.start()
        assert values(client, "orders") == [b"synced", b"acknowledged"]
        node.lose_power()
        node.start()
        assert values(client, "orders") == [b"synced"]


@pytest.fixture(scope="module")
def _lone_broker() -> Iterator[Cluster]:
    with Cluster(nodes=1, settings=FAST, disks=DISKS) as cluster:
        yield cluster


@pytest.fixture
def lone(_lone_broker: Cluster) -> Cluster:
    """A broker without others, which runs on a disk that works."""
    _lone_broker.nodes[1].fail_disk(None)
    _lone_broker.start()
    return _lone_broker


def prepare(cluster: Cluster, topic: str) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        client.produce(topic, b"before")


def works_again(cluster: Cluster, topic: str, value: bytes) -> None:
    """Wait until a message is stored; a broker that ended is started by an operator."""
    node = cluster.nodes[1]
    node.fail_disk(None)
    with cluster.connect(timeout=5.0) as client:

        def is_stored() -> bool:
            if not node.is_running:
                node.start()
            client.produce(topic, value)
            return True

        cluster.wait_until(is_stored, "the broker does not store messages again")


def fill(client: Client, topic: str) -> None:
    """More than the space that is reserved for a segment."""
    for _ in range(200):
        client.produce(topic, bytes(1 << 20))


def test_a_full_disk_refuses_and_works_again_with_space(lone: Cluster) -> None:  # F16
    prepare(lone, "full")
    with lone.connect(timeout=2.0) as client:
        lone.nodes[1].fail_disk("full")
        # A broker may wait for space as long as the client does.
        with pytest.raises((StorageFull, Timeout)):
            fill(client, "full")
        assert lone.nodes[1].disk.struck > 0
    with lone.connect() as client:
        before = values(client, "full")
        assert before[0] == b"before"
    works_again(lone, "full", b"after")
    with lone.connect() as client:
        after = values(client, "full")
    assert after[: len(before)] == before
    assert after[-1] == b"after"


@pytest.mark.parametrize("kind", ["read_only", "write_errors", "sync_errors"])
def test_a_disk_that_stores_nothing_acknowledges_nothing_and_loses_nothing(
    lone: Cluster, kind: str
) -> None:  # F17, F18
    node, topic = lone.nodes[1], f"with-{kind}"
    prepare(lone, topic)
    with lone.connect(timeout=2.0) as client:
        node.fail_disk(kind)
        with pytest.raises(QuiverError):
            client.produce(topic, b"refused")
    if kind == "read_only":
        with lone.connect() as client:
            assert values(client, topic)[0] == b"before"
    node.fail_disk(None)
    # Whatever it thinks that it has: nothing that was acknowledged may rest on a failed sync.
    works_again(lone, topic, b"after")
    node.lose_power()
    node.start()
    with lone.connect() as client:
        found = values(client, topic)
    assert (found[0], found[-1]) == (b"before", b"after")
    assert set(found) <= {b"before", b"refused", b"after"}


def test_a_broker_refuses_to_start_on_a_disk_that_takes_no_writes(lone: Cluster) -> None:  # F18
    node = lone.nodes[1]
    node.stop()
    node.fail_disk("read_only")
    with pytest.raises(ClusterError, match="Read-only file system"):
        node.start()
    node.fail_disk(None)
    node.start()


def test_each_fault_of_disk_power_and_clock_passes_and_nothing_is_lost() -> None:  # F15-F20
    with Cluster(settings=FAST, proxied=True, disks=DISKS) as cluster:
        assert cluster.wiring is not None
        faults = ClusterFaults(cluster, cluster.wiring, Random(3))
        chosen = [fault for fault in faults.disk_faults() if fault != faults.lose_power]
        assert len(chosen) == 6
        with trial(cluster, may_fail=True, loses_disk=faults.lost_disk) as load:
            for fault in chosen:
                undo = fault()
                if fault != faults.lose_power_of_all:
                    load.wait_progress()
                undo()
                load.wait_progress()


def test_without_such_disks_only_clocks_can_be_disturbed() -> None:
    cluster = Cluster(proxied=True)
    try:
        assert cluster.wiring is not None
        faults = ClusterFaults(cluster, cluster.wiring, Random(1))
        assert faults.disk_faults() == [faults.jump_clock]
        with pytest.raises(ClusterError, match="cannot fail"):
            cluster.nodes[1].fail_disk("full")
    finally:
        cluster.close()


def test_a_clock_that_jumps_loses_nothing_and_delivers_no_delayed_message_early(
    cluster: Cluster, topic: str
) -> None:  # F20
    with cluster.connect() as client:
        client.create_topic(topic)
        for ahead_s in (HOUR_S, -HOUR_S):
            due = time.time() + 1.5
            client.produce(topic, b"%d" % ahead_s, delay=1.5)
            node = cluster.nodes[cluster.leader(topic)]
            node.shift_clock(ahead_s)
            try:
                (message,) = client.poll(topic, "group", wait=20.0)
                assert message.value == b"%d" % ahead_s
                assert time.time() >= due
                message.ack()
                assert "the clock of this machine is" in node.log_text()
                # It is wrong in the next life too.
                lines = node.log_text().count("set the clock")
                node.kill()
                node.start()
                cluster.wait_ready()
                cluster.wait_until(
                    lambda lines=lines, node=node: node.log_text().count("set the clock") > lines,
                    "the broker does not see that its clock is wrong",
                )
            finally:
                node.shift_clock(0)
        assert values(client, topic) == [b"%d" % HOUR_S, b"%d" % -HOUR_S]
