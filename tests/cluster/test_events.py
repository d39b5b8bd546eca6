"""The event feed of three brokers: what happens is told once, by who saw it."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import quivermq
from quivermq.events import Event
from quivermq.testing import Cluster
from tests.cluster.conftest import FAST


@pytest.fixture(scope="module")
def telling() -> Iterator[Cluster]:
    with Cluster(settings={**FAST, "events": True}) as cluster:
        yield cluster


class Feed:
    """The events of a cluster, from some point on."""

    def __init__(self, client: quivermq.Client) -> None:
        self._client = client
        self._begin = max((event.offset for event in client.events()), default=-1) + 1

    def events(self, kind: str, **fields: Any) -> list[Event]:
        return [
            event
            for event in self._client.events(kinds=kind)
            if event.offset >= self._begin
            and all(getattr(event, name) == value for name, value in fields.items())
        ]


def test_a_leader_that_dies_is_told_once_and_comes_back_once(telling: Cluster) -> None:
    with telling.connect(timeout=30.0) as client:
        client.create_topic("orders")
        topic = client.topic("_events")
        assert len(topic.partitions[0].replicas) == 3
        telling.wait_until(lambda: bool(client.cluster().leader), 30.0)
        # One broker leads everything, so that all of it is lost at once.
        victim = client.cluster().leader
        for name in ("orders", "_events"):
            if telling.leader(name) != victim:
                client.transfer(name, to=victim)
        telling.wait_until(lambda: telling.leader("_events") == victim, 30.0)
        feed = Feed(client)
        node = telling.nodes[victim]
        node.kill()
        telling.wait_until(
            lambda: bool(
                feed.events("broker_lost")
                and feed.events("leader_changed", topic="orders")
                and feed.events("leader_changed", topic="_quiver")
            ),
            30.0,
        )
        client.produce("orders", b"the next leader serves")
        node.start()
        telling.wait_ready()
        telling.wait_until(lambda: bool(feed.events("broker_back")), 30.0)
        # Whatever comes twice has come by then.
        client.create_topic("last")
        telling.wait_until(lambda: bool(feed.events("topic_created", topic="last")), 30.0)

        for kind in ("broker_lost", "broker_started", "broker_back"):
            (event,) = feed.events(kind)
            assert event.broker == victim, event
        (lost,) = feed.events("broker_lost")
        assert lost.told_by != victim
        assert len(feed.events("topic_created")) == 1
        # A leader of each term, told by itself.
        changes = feed.events("leader_changed")
        assert all(event.told_by == event.broker for event in changes)
        told = Counter((event.topic, event.partition, event.detail) for event in changes)
        assert set(told.values()) == {1}, told
        assert {"orders", "_quiver", "_events"} <= {event.topic for event in changes}
        assert len({event.id for event in changes}) == len(changes)


def test_moves_and_sticky_groups_are_told(telling: Cluster) -> None:
    with telling.connect(timeout=30.0) as client:
        feed = Feed(client)
        client.create_topic("shared", partitions=2)
        with client.consumer("shared", group="g", mode="sticky") as consumer:
            telling.wait_until(lambda: bool(consumer.assignment), 30.0)
            telling.wait_until(lambda: bool(feed.events("group_rebalanced")), 30.0)
        first = feed.events("group_rebalanced")[0]
        assert (first.topic, first.group) == ("shared", "g")
        assert "1 member" in first.detail
        telling.wait_until(lambda: "no members" in feed.events("group_rebalanced")[-1].detail, 30.0)


def test_a_broker_logs_as_it_is_told_whichever_broker_is_asked(telling: Cluster) -> None:
    with telling.connect(timeout=30.0) as client:
        found = client.set_log_level("debug", broker=2, logger="peers")
        assert list(found) == [2]
        assert found[2]["quivermq.peers"] == "debug"
        everywhere = client.set_log_level()
        assert list(everywhere) == [1, 2, 3]
        assert ["quivermq.peers" in levels for levels in everywhere.values()] == [
            False,
            True,
            False,
        ]
        client.set_log_level("default", broker=2, logger="peers")
        assert "quivermq.peers" not in client.set_log_level()[2]
