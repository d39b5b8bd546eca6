"""Brokers that die or stand still: killed one by one, all at once, paused."""

from contextlib import suppress

import pytest

from quivermq.batches import Origin, encode_batch
from quivermq.errors import NotLeader, Timeout
from quivermq.testing import Cluster
from quivermq.testing.trials import trial
from quivermq.testing.trials.client_trial import TOPIC
from quivermq.wire import proto

FAST = {"tick_ms": 50}


def test_a_leader_killed_again_and_again_loses_nothing() -> None:  # F1
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        for _ in range(3):
            leader = cluster.nodes[cluster.leader(TOPIC)]
            leader.kill()
            load.wait_progress()
            leader.start()
            load.wait_progress()


def test_a_cluster_killed_as_a_whole_loses_nothing() -> None:  # F2
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        for _ in range(2):
            for node in cluster.nodes.values():
                node.kill()
            cluster.start()
            load.wait_progress()


def test_a_leader_that_stood_still_acknowledges_nothing_and_shows_nothing_stale() -> None:  # F5
    with Cluster(settings=FAST) as cluster, trial(cluster) as load:
        place = load.places[0]
        for _ in range(2):
            zombie = cluster.leader(*place)
            with cluster.direct(zombie, 20.0) as writer, cluster.direct(zombie, 20.0) as reader:
                with cluster.paused(zombie):
                    value = f"sent to node {zombie} while it stood still".encode()
                    load.history.attempt(f"to {zombie}", place, [value])
                    produce = proto.Request(produce=proto.Produce(**place._asdict()), direct=True)
                    writer.send(produce, [encode_batch([value], origin=Origin(10**6 + zombie, 0))])
                    find = proto.FindOffset(**place._asdict(), latest=True)
                    look = proto.Request(find_offset=find, direct=True)
                    reader.send(look)
                    # Answers that were on their way already are progress too: wait for a leader.
                    cluster.leader(*place)
                    load.wait_progress()
                    acked = load.history.acked_end(place)
                with pytest.raises((NotLeader, Timeout)):
                    writer.take(produce.id)
                # It may ask who leads by then; what it may not is answer from what it knows.
                with suppress(NotLeader, Timeout):
                    assert reader.take(look.id).response.offset_found.offset >= acked
            load.wait_progress()
