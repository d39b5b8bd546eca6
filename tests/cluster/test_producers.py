"""Producers in trouble: acknowledgements that get lost, and two producers with one id."""

import pytest

import quivermq
from quivermq.testing import Cluster
from quivermq.testing.trials import TopicPartition, trial
from quivermq.testing.trials.client_trial import TOPIC

FAST = {"tick_ms": 50}


def test_acknowledgements_that_get_lost_after_the_commit_make_no_duplicates() -> None:  # F26
    with Cluster(settings=FAST, proxied=True) as cluster, trial(cluster) as load:
        place = load.places[0]
        for _ in range(3):
            # Clients must be talking to that leader: who only connects would never be let in.
            before = load.history.acked_end(place)
            cluster.wait_until(
                lambda before=before: load.history.acked_end(place) > before, "nothing is stored"
            )
            leader = cluster.leader(*place)
            led = [other for other in load.places if cluster.leader(*other) == leader]
            door = cluster.wiring.doors[leader]
            door.cut_answers()
            acked = {other: load.history.acked_end(other) for other in led}

            def is_ahead(leader: int = leader, acked: dict[TopicPartition, int] = acked) -> bool:
                # Any of its partitions: a producer waits for one answer at a time.
                seen = [(cluster.describe(leader, *other), end) for other, end in acked.items()]
                return any(one is not None and one.end_offset > end for one, end in seen)

            cluster.wait_until(is_ahead, "nothing was stored without an acknowledgement")
            # The retry goes elsewhere: to whoever leads by then.
            cluster.nodes[leader].kill()
            door.heal()
            load.wait_progress()
            cluster.nodes[leader].start()
            load.wait_progress()


def test_an_older_producer_with_the_same_id_is_fenced_and_stores_nothing_more() -> None:  # F27
    with Cluster(settings=FAST) as cluster, trial(cluster) as load, cluster.connect() as client:
        history, place = load.history, load.places[0]
        with client.producer(producer_id=77, epoch=0) as old:
            history.attempt("old", place, [b"old 0"])
            receipt = old.send(TOPIC, b"old 0", partition=0).result()
            history.ack(place, receipt.offset, [b"old 0"])
            cluster.nodes[cluster.leader(TOPIC)].kill()
            with client.producer(producer_id=77, epoch=1) as young:
                history.attempt("young", place, [b"young 0", b"young 1"])
                receipt = young.send(TOPIC, b"young 0", partition=0).result()
                history.ack(place, receipt.offset, [b"young 0"])
                with pytest.raises(quivermq.Fenced):
                    old.send(TOPIC, b"fenced", partition=0).result()
                cluster.start()
                cluster.nodes[cluster.leader(TOPIC)].kill()
                with pytest.raises(quivermq.Fenced):
                    old.send(TOPIC, b"still fenced", partition=0).result()
                receipt = young.send(TOPIC, b"young 1", partition=0).result()
                history.ack(place, receipt.offset, [b"young 1"])
