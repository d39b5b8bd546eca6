"""Consumers that die, stand still, leave politely and take long."""

import threading
import time
from collections import Counter
from dataclasses import replace

import quivermq
from quivermq.testing import Cluster
from quivermq.testing.trials import (
    ConsumerLoad,
    ConsumerPlan,
    ConsumerProcess,
    Fate,
    SettleAction,
    Spot,
    TopicPartition,
    check_group,
    group_trial,
    read_journal,
    wait_until_level,
)
from quivermq.testing.trials.consumer_trial import GROUP

VISIBILITY_S = 1.5


def holding(consumers: ConsumerLoad, process: ConsumerProcess) -> set[Spot]:
    """What a process holds, as soon as it does."""
    consumers.wait_until(lambda: bool(process.delivered), "a process gets nothing")
    return process.delivered


def said(process: ConsumerProcess) -> int:
    """Of how many messages it was told what became of them."""
    return sum(
        len(call.arguments[1])
        for call in read_journal(process.journal)
        if call.method == "end_calls"
    )


def test_what_killed_consumers_held_comes_again_as_a_failure(
    cluster: Cluster, topic: str
) -> None:  # F28
    with group_trial(cluster, topic=topic, visibility=VISIBILITY_S) as consumers:
        victims = [consumers.add_process(waits_for_word=True) for _ in range(2)]
        held = [holding(consumers, victim) for victim in victims]
        for victim in victims:
            victim.kill()
    consumers.history.check_exclusive(VISIBILITY_S)
    for name, spots in zip(("process 0", "process 1"), held, strict=True):
        for spot in spots:
            found = consumers.history.deliveries(*spot)
            number = next(n for n, one in enumerate(found) if one.consumer == name)
            first, second = found[number], found[number + 1]
            assert second.delivery == first.delivery + 1
            assert second.at_ns - first.began_ns >= VISIBILITY_S * 1e9


def test_late_acks_of_a_consumer_that_stood_still_are_refused(
    cluster: Cluster, topic: str
) -> None:  # F28
    habits = {"ack_each": 1}
    with group_trial(
        cluster, topic=topic, visibility=VISIBILITY_S, habits=habits, nack_delay=None
    ) as consumers:
        sleeper = consumers.add_process(waits_for_word=True)
        held = holding(consumers, sleeper)
        sleeper.pause()
        acked = consumers.history.offsets
        consumers.wait_until(lambda: held <= acked(SettleAction.ACK), "others do not take over")
        sleeper.tell()
        sleeper.resume()
        consumers.wait_until(lambda: said(sleeper) >= len(held), "it does not go on")
    assert held <= consumers.history.offsets(SettleAction.ACK, Fate.LOST)
    consumers.history.check_exclusive(VISIBILITY_S)


def test_a_consumer_that_ends_politely_gives_back_at_once_what_it_held(
    cluster: Cluster, topic: str
) -> None:
    with group_trial(cluster, topic=topic, visibility=600.0, habits={"ack": 1}) as consumers:
        leaver = consumers.add_process(waits_for_word=True)
        held = holding(consumers, leaver)
        leaver.stop()
        acked = consumers.history.offsets
        consumers.wait_until(lambda: held <= acked(SettleAction.ACK), "others do not get it")
    consumers.history.check_exclusive(600.0)
    assert all(
        one.delivery == 1
        for spot in consumers.history.delivered
        for one in consumers.history.deliveries(*spot)
    )


def test_a_handler_slower_than_the_visibility_is_no_duplicate_though_the_leader_dies(
    cluster: Cluster, topic: str
) -> None:
    handled: Counter[int] = Counter()
    begun = threading.Semaphore(0)

    def slow(message: quivermq.LeasedMessage) -> None:
        begun.release()
        time.sleep(2 * VISIBILITY_S)
        handled[message.offset] += 1

    with cluster.connect() as client, cluster.connect() as other:
        client.create_topic(topic)
        client.produce_many(topic, [b"job %d" % number for number in range(8)])
        with client.subscribe(
            topic, group=GROUP, handler=slow, visibility=VISIBILITY_S, concurrency=4
        ):
            for _ in range(4):
                assert begun.acquire(timeout=20.0)
            # Leases are granted without waiting for a majority to know of them.
            wait_until_level(cluster, TopicPartition(topic, 0))
            leader = cluster.nodes[cluster.leader(topic)]
            leader.kill()
            cluster.wait_until(lambda: sum(handled.values()) >= 4, "no handler ends")
            assert not other.poll(topic, group=GROUP, wait=VISIBILITY_S)
            leader.start()
            cluster.wait_until(lambda: other.group(topic, GROUP).done == 8, "it is not done")
        assert handled == dict.fromkeys(range(8), 1)
        assert other.group(topic, GROUP).redelivered == 0


def test_acks_against_leases_of_a_few_milliseconds_have_one_winner_each(
    cluster: Cluster, topic: str
) -> None:  # F29
    with cluster.connect() as client:
        retry = quivermq.Retry(first=0.0, base=0.001, longest=0.001)
        client.create_topic(topic, max_deliveries=1_000_000, retry=retry)
        client.produce_many(topic, [b"job %d" % number for number in range(2_000)])
        plan = ConsumerPlan(topic, GROUP, visibility=0.006, max_messages=5, habits={"ack_each": 1})
        with ConsumerLoad(cluster, plan, threads=4) as consumers:
            consumers.wait_until(
                lambda: len(consumers.history.offsets(SettleAction.ACK, Fate.LOST)) > 200,
                "no ack comes too late",
            )
            consumers.plan = replace(plan, visibility=30.0)
            consumers.drain()
        check_group(cluster, client, topic, consumers.history)
