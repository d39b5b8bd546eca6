"""Delayed messages that come due while their leader dies."""

import time

from quivermq.testing import Cluster
from quivermq.testing.trials import ONLY_ACKS, ConsumerLoad, ConsumerPlan, check_group
from quivermq.testing.trials.consumer_trial import GROUP

MESSAGES, BATCH = 10_000, 100
AHEAD_S = 3.0


def test_ten_thousand_due_in_one_second_while_the_leader_dies_are_never_early_and_all_come(
    cluster: Cluster, topic: str
) -> None:  # F35
    with cluster.connect() as client:
        client.create_topic(topic)
        plan = ConsumerPlan(topic, GROUP, max_messages=500, visibility=30.0, habits=ONLY_ACKS)
        with ConsumerLoad(cluster, plan, threads=2) as consumers:
            first_due = time.time() + AHEAD_S
            for start in range(0, MESSAGES, BATCH):
                values = [b"%d" % number for number in range(start, start + BATCH)]
                due = first_due + start / MESSAGES
                # On a slow machine the last ones are late from the beginning.
                delay = max(due - time.time(), 0.001)
                # From a time after this one on, so never before it.
                consumers.history.record_delay(values, int((time.time() + delay) * 1000))
                client.produce_many(topic, values, delay=delay)
            assert client.group(topic, GROUP).delayed > 0
            consumers.wait_until(lambda: consumers.history.acked_count > 500, "nothing comes due")
            leader = cluster.nodes[cluster.leader(topic)]
            leader.kill()
            consumers.wait_until(
                lambda: len(consumers.history.delivered) == MESSAGES, "not all of them come"
            )
            leader.start()
            consumers.drain()
        check_group(cluster, client, topic, consumers.history)


def test_a_delayed_message_is_delivered_to_a_waiting_poll_when_it_is_due(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic)
        before = time.time()
        client.produce(topic, b"later", delay=1.0)
        sent = time.time()
        (message,) = client.poll(topic, group=GROUP, wait=10.0)
        assert before + 1.0 <= time.time() <= sent + 4.0
        message.ack()
