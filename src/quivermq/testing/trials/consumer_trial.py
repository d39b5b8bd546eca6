"""Runs consumers of a shared group while a test disturbs the cluster, then checks every replica.

with Cluster(nodes=3) as cluster, group_trial(cluster) as consumers:
    cluster.nodes[cluster.leader("jobs")].kill()
    consumers.wait_progress()
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from quivermq.client import DeadLetter
from quivermq.errors import TopicNotFound
from quivermq.testing import Violation
from quivermq.testing.cluster import Cluster
from quivermq.testing.trials.consumer import ConsumerPlan
from quivermq.testing.trials.consumer_load import ConsumerLoad
from quivermq.testing.trials.feed import Feed
from quivermq.testing.trials.group_history import GroupHistory, Letter, Original
from quivermq.testing.trials.history import TopicPartition

TOPIC, GROUP = "jobs", "workers"


@contextmanager
def group_trial(
    cluster: Cluster,
    *,
    topic: str = TOPIC,
    partitions: int = 2,
    threads: int = 3,
    may_fail: bool = False,
    seed: int = 1,
    **plan: Any,
) -> Iterator[ConsumerLoad]:
    """Run a producer and consumers around the body of the `with`, see that they make progress
    before and after it, let the consumers finish everything, and check all guarantees. Unless
    `may_fail`, no client may get an error."""
    with cluster.connect() as client:
        client.create_topic(topic, partitions=partitions)
    wanted = ConsumerPlan(topic, GROUP, seed=seed, **plan)
    with ConsumerLoad(cluster, wanted, threads=threads) as consumers:
        consumers.add_thread("pushed", is_pushed=True)
        with Feed(cluster, topic, partitions, [consumers.history], seed=seed) as feed:
            consumers.wait_progress()
            yield consumers
            consumers.wait_progress()
        cluster.start()
        consumers.drain()
    failures = [*feed.failures, *consumers.failures]
    if failures and not may_fail:
        raise failures[0]
    with cluster.connect() as client:
        feed.check(read_contents(client, topic))
        check_group(cluster, client, topic, consumers.history)


def check_group(
    cluster: Cluster,
    client: Any,
    topic: str,
    history: GroupHistory,
    *,
    lost: int = 0,
    kept_from: int = 0,
) -> None:
    """Check a group without unfinished messages: its history against the partitions and the dead
    letters, and the numbers of each replica, which leads for that."""
    dead = client.group(topic, history.group).dead
    cluster.wait_until(
        lambda: len(read_dead_letters(client, topic, history.group)) >= dead,
        f"{dead} messages are dead, and not all of them among the dead letters",
    )
    contents = read_contents(client, topic)
    letters = read_dead_letters(client, topic, history.group)
    history.check_drained(contents, letters, kept_from=kept_from)
    partitions = client.topic(topic).partitions
    for node in sorted({node for each in partitions for node in each.replicas}):
        for each in partitions:
            if node in each.replicas:
                lead_by(cluster, client, topic, each.partition, node)
        info = client.group(topic, history.group)
        history.check_figures(info, contents, letters)
        if info.lag or info.in_flight or info.delayed or info.lost != lost:
            raise Violation(f"I5: led by node {node}, {info} is not done: {info.partitions}")


def lead_by(cluster: Cluster, client: Any, topic: str, partition: int, node: int) -> None:
    """Make a node lead a partition."""

    def does() -> bool:
        seen = cluster.describe(node, topic, partition)
        if seen is not None and seen.leader == node:
            return True
        client.transfer(topic, partition, to=node)
        return False

    cluster.wait_until(does, f"node {node} does not become leader of {topic}/{partition}")


def read_contents(client: Any, topic: str) -> dict[TopicPartition, dict[int, Original]]:
    """Read all partitions of a topic."""
    return {
        TopicPartition(topic, each.partition): {
            message.offset: Original(message.key, message.value, dict(message.headers))
            for message in client.read(topic, each.partition)
        }
        for each in client.topic(topic).partitions
    }


def read_dead_letters(client: Any, topic: str, group: str) -> list[Letter]:
    """Read all dead letters of one group of a topic, repeats included."""
    place = client.topic(topic).dead_letter or f"{topic}.dlq"
    try:
        partitions = client.topic(place).partitions
    except TopicNotFound:
        return []
    found = [
        DeadLetter.of(message)
        for each in partitions
        for message in client.read(place, each.partition)
    ]
    return letters_of(found, topic, group)


def letters_of(found: Iterable[DeadLetter], topic: str, group: str) -> list[Letter]:
    """Those of one group of a topic, as the checkers take them."""
    return [
        Letter(
            letter.topic,
            _number(letter.original_partition),
            _number(letter.original_offset),
            letter.group,
            letter.reason,
            _number(letter.deliveries),
            letter.key,
            letter.value,
            dict(letter.headers),
            letter.died,
        )
        for letter in found
        if letter.group == group and letter.topic == topic
    ]


def _number(number: int | None) -> int:
    return -1 if number is None else number
