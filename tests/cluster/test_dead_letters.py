"""Messages that nobody can do, while consumers, leaders and the dead-letter topic fail."""

import os
import time
from pathlib import Path
from typing import Any

import quivermq
from quivermq.testing import Cluster
from quivermq.testing.trials import (
    ONLY_ACKS,
    ConsumerLoad,
    ConsumerPlan,
    check_group,
    group_trial,
    lead_by,
    read_dead_letters,
)
from quivermq.testing.trials.consumer_trial import GROUP

QUICKLY = quivermq.Retry(first=0.0, base=0.05, longest=0.05)


def test_a_message_that_crashes_every_consumer_dies_once_though_the_leader_does_too(
    cluster: Cluster, topic: str
) -> None:  # F30
    with cluster.connect() as client:
        client.create_topic(topic, max_deliveries=3, retry=QUICKLY)
        client.produce(topic, b"poison", key=b"k", headers={"from": b"a test"})
        client.produce_many(topic, [b"food %d" % number for number in range(30)])
        plan = ConsumerPlan(
            topic, GROUP, max_messages=1, visibility=0.5, habits=ONLY_ACKS, crashes_on="poison"
        )
        with ConsumerLoad(cluster, plan, threads=0) as consumers:
            workers = [consumers.add_process() for _ in range(4)]

            def crashed() -> int:
                return sum(not worker.is_running for worker in workers)

            consumers.wait_until(lambda: crashed() >= 1, "nobody crashes")
            leader = cluster.nodes[cluster.leader(topic)]
            leader.kill()
            consumers.wait_until(lambda: crashed() >= 3, "it does not come again")
            leader.start()
            consumers.wait_until(
                lambda: bool(read_dead_letters(client, topic, GROUP)),
                "it is not among the dead letters",
            )
            assert crashed() == 3
            consumers.drain()
        (letter,) = read_dead_letters(client, topic, GROUP)
        assert (letter.value, letter.key) == (b"poison", b"k")
        assert (letter.deliveries, letter.reason) == (3, "lease expired 3 times")
        check_group(cluster, client, topic, consumers.history)


def test_rejected_messages_are_dead_letters_exactly_once_though_brokers_die(
    cluster: Cluster, topic: str
) -> None:  # F1
    with group_trial(cluster, topic=topic, habits={"reject": 3, "ack": 1}) as consumers:
        graves = f"{topic}.dlq"
        with cluster.connect() as client:
            cluster.wait_until(lambda: bool(client.topic(graves)), "nothing is dead-lettered")
        for where in (topic, graves):
            node = cluster.nodes[cluster.leader(where)]
            node.kill()
            consumers.wait_progress(50)
            node.start()
        consumers.wait_progress()


def test_without_its_dead_letter_topic_a_message_stays_and_moves_once_when_it_is_back(
    cluster: Cluster, topic: str
) -> None:  # F31
    graves = f"{topic}-graves"
    with cluster.connect() as client:
        client.create_topic(graves, replication=1)
        client.create_topic(topic, dead_letter=graves)
        gravedigger = cluster.nodes[cluster.leader(graves)]
        leader = cluster.nodes[gravedigger.id % 3 + 1]
        lead_by(cluster, client, topic, 0, leader.id)
        client.produce_many(topic, [b"job %d" % number for number in range(10)])
        gravedigger.kill()
        messages = client.poll(topic, group=GROUP, wait=10.0)
        client.reject(messages[:5], "no good")
        client.ack(messages[5:])
        assert_quiet(cluster, leader.id, topic)
        info = client.group(topic, GROUP)
        # Condemned, and still there: the group is done with nothing from the first of them on.
        assert (info.done, info.dead, info.partitions[0].floor) == (5, 5, 0)
        assert not client.poll(topic, group=GROUP, wait=0.0)
        gravedigger.start()
        cluster.wait_until(
            lambda: client.group(topic, GROUP).partitions[0].floor == 10, "they do not move"
        )
        letters = read_dead_letters(client, topic, GROUP)
        assert [letter.offset for letter in letters] == [m.offset for m in messages[:5]]
        assert {letter.reason for letter in letters} == {"no good"}


def assert_quiet(cluster: Cluster, node: int, topic: str) -> None:
    """For a second and a half a broker that cannot do its work does next to nothing."""
    before, used = position(cluster, node, topic), cpu_s(cluster.nodes[node].pid)
    time.sleep(1.5)
    assert position(cluster, node, topic) - before < 10
    assert cpu_s(cluster.nodes[node].pid) - used < 0.75


def position(cluster: Cluster, node: int, topic: str) -> int:
    seen: Any = cluster.describe(node, topic)
    return int(seen.commit_index)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_redriven_messages_come_back_once_though_the_leader_dies(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        for number in range(10):
            client.produce_many(topic, [b"job %d %d" % (number, n) for n in range(10)])
        first = client.poll(topic, group=GROUP, max_messages=100, wait=10.0)
        assert len(first) == 100
        client.reject(first, "try later")
        cluster.wait_until(
            lambda: len(read_dead_letters(client, topic, GROUP)) == 100, "they are not dead letters"
        )
        leader = cluster.nodes[cluster.leader(f"{topic}.dlq")]
        assert client.redrive(topic, to="all") == 100
        leader.kill()
        cluster.wait_until(
            lambda: (client.topic(topic).partitions[0].end_offset or 0) >= 200,
            "they do not come back",
        )
        leader.start()
        assert client.redrive(topic) == 0
        again = client.poll(topic, group=GROUP, max_messages=1_000, wait=10.0)
        assert [m.value for m in again] == [m.value for m in first]
        client.ack(again)
        assert not client.dead_letters(topic)
        assert not client.poll(topic, group=GROUP, wait=0.5)


def test_letters_go_back_to_their_group_once_though_leaders_die(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        for number in range(10):
            client.produce_many(topic, [b"job %d %d" % (number, n) for n in range(10)])
        client.ack(client.poll(topic, group="others", max_messages=100, wait=10.0))
        first = client.poll(topic, group=GROUP, max_messages=100, wait=10.0)
        assert len(first) == 100
        client.reject(first, "try later")
        cluster.wait_until(
            lambda: len(read_dead_letters(client, topic, GROUP)) == 100, "they are not dead letters"
        )
        done: set[int] = set()
        for where in (topic, f"{topic}.dlq"):
            leader = cluster.nodes[cluster.leader(where)]
            # Half of them each time, one by one: some are under way when the leader dies.
            letters = client.dead_letters(topic)[: 50 if where == topic else 100]
            for letter in letters:
                if letter is letters[len(letters) // 2]:
                    leader.kill()
                client.redrive(topic, [letter])
            deadline = time.monotonic() + 60
            while len(done) < (50 if where == topic else 100):
                assert time.monotonic() < deadline, f"only {len(done)} came back"
                again = client.poll(topic, group=GROUP, max_messages=100, wait=1.0)
                came = {message.offset for message in again}
                assert not came & done, "what was acknowledged comes again"
                client.ack(again)
                done |= came
            leader.start()
        cluster.wait_until(lambda: not client.dead_letters(topic), "some are still listed")
        assert not client.poll(topic, group=GROUP, wait=0.5)
        assert not client.poll(topic, group="others", wait=0.0)
        assert client.topic(topic).partitions[0].end_offset == 100
