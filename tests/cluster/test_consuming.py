"""Consumers of shared groups while brokers die, stand still and come back."""

import pytest

from quivermq.errors import NotEnoughReplicas, NotLeader, Timeout
from quivermq.testing import Cluster
from quivermq.testing.cluster import DirectConnection
from quivermq.testing.trials import group_trial
from quivermq.testing.trials.consumer_trial import GROUP, TOPIC
from quivermq.wire import proto

FAST = {"tick_ms": 50}
OTHERS = "others"
"""A group for which there is always something to lease."""


def test_a_leader_killed_between_lease_and_ack_loses_and_repeats_nothing(
    cluster: Cluster, topic: str
) -> None:  # F1
    with group_trial(cluster, topic=topic) as consumers:
        for _ in range(3):
            leader = cluster.nodes[cluster.leader(topic)]
            leader.kill()
            consumers.wait_progress(100)
            leader.start()
            consumers.wait_progress()


def test_a_cluster_killed_as_a_whole_keeps_what_was_acknowledged(
    cluster: Cluster, topic: str
) -> None:  # F2
    with group_trial(cluster, topic=topic) as consumers:
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill()
            cluster.start()
            consumers.wait_progress(100)


def test_an_ack_goes_to_the_successor_of_the_leader_that_leased(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client, cluster.connect() as other:
        client.create_topic(topic)
        client.produce_many(topic, [b"%d" % number for number in range(20)])
        held = client.poll(topic, group=GROUP, max_messages=10, visibility=60.0)
        # Grants are not waited for; what is agreed on after one is agreed on behind it.
        client.extend(held, 60.0)
        leader = cluster.nodes[cluster.leader(topic)]
        leader.kill()
        rest = other.poll(topic, group=GROUP, max_messages=20, wait=10.0)
        assert [m.offset for m in rest] == list(range(10, 20))
        client.ack(held[:5])
        leader.start()
        cluster.nodes[cluster.leader(topic)].kill()
        client.ack(held[5:])
        other.ack(rest)
        assert client.group(topic, GROUP).done == 20
        assert not other.poll(topic, group=GROUP, wait=0.0)


def test_a_leader_that_stood_still_leases_and_acknowledges_nothing() -> None:  # F5
    with (
        Cluster(settings=FAST, proxied=True) as cluster,
        group_trial(cluster, partitions=1) as consumers,
        cluster.connect() as client,
    ):
        for number in range(2):
            client.produce(TOPIC, b"held %d" % number)
            zombie = cluster.leader(TOPIC)
            with cluster.direct(zombie, 20.0) as poller, cluster.direct(zombie, 20.0) as settler:
                lease, offset = take_one(settler)
                # It does not hear of its successor: what it knows is all it has to go by.
                cluster.wiring.isolate(zombie)
                with cluster.paused(zombie):
                    consumers.wait_progress(50)
                    poll = proto.Request(poll=poll_of(OTHERS), direct=True)
                    poller.send(poll)
                    settle = proto.Request(settle=ack_of(lease, offset), direct=True)
                    settler.send(settle)
                with pytest.raises((NotLeader, NotEnoughReplicas, Timeout)):
                    poller.take(poll.id)
                with pytest.raises((NotLeader, NotEnoughReplicas, Timeout)):
                    settler.take(settle.id)
            cluster.wiring.heal()
            consumers.wait_progress()


def poll_of(group: str) -> proto.Poll:
    return proto.Poll(
        topic=TOPIC,
        partitions=[0],
        group=group,
        consumer=1,
        messages_max=1,
        wait_ms=5_000,
        visibility_ms=500,
    )


def ack_of(lease: int, offset: int) -> proto.Settle:
    interval = proto.Interval(start=offset, end=offset + 1)
    settlement = proto.Settlement(partition=0, lease=lease, outcome=proto.ACK, intervals=[interval])
    return proto.Settle(topic=TOPIC, group=OTHERS, settlements=[settlement], consumer=1)


def take_one(broker: DirectConnection) -> tuple[int, int]:
    """Lease one message for a moment; its lease and offset."""
    (leased,) = broker.ask(proto.Request(poll=poll_of(OTHERS), direct=True)).response.polled.leased
    return leased.lease, leased.pieces[0].start
