"""The truth meter: what adds up, what does not, and what only looks so while messages come in."""

from typing import Any

from quivermq.client import GroupInfo, GroupPartitionInfo, PartitionInfo, TopicInfo
from quivermq.portal.truth import TOPICS_MAX, GroupTally, TruthMeter

BOOTS = frozenset({(1, 100.0)})


def topic(*ends: int, name: str = "orders", id_: str = "1") -> TopicInfo:
    fields: dict[str, Any] = {"retention": None, "rate_limit": None, "max_deliveries": 5}
    partitions = [
        PartitionInfo(partition=n, leader=1, replicas=(1,), start_offset=0, end_offset=end)
        for n, end in enumerate(ends)
    ]
    return TopicInfo(
        name=name, id=id_, partitions=partitions, replication=1, dead_letter="", **fields
    )


def group(end: int, **counts: int) -> GroupInfo:
    partition = GroupPartitionInfo(partition=0, end_offset=end, **{"lag": 0, **counts})
    return GroupInfo(name="g", topic="orders", mode="shared", partitions=[partition])


def test_a_quiet_topic_adds_up_to_the_last_message() -> None:
    meter = TruthMeter()
    meter.observe(topic(10), [], {0: 3.0}, BOOTS)
    tally = meter.observe(topic(10), [], {0: 3.0}, BOOTS)
    assert (tally.acknowledged, tally.stored, tally.state) == (10, 10, "ok")
    tally = meter.observe(topic(15), [], {0: 8.0}, BOOTS)
    assert (tally.acknowledged, tally.stored, tally.state) == (15, 15, "ok")


def test_messages_that_come_while_it_counts_are_no_fault() -> None:
    meter = TruthMeter()
    end, counter = 0, 0.0
    for _ in range(50):
        counter = float(end)  # read first
        end += 7  # then more are stored
        assert meter.observe(topic(end), [], {0: counter}, BOOTS).state == "ok"
    # Then nothing more comes, and all is counted.
    for _ in range(3):
        tally = meter.observe(topic(end), [], {0: float(end)}, BOOTS)
    assert (tally.acknowledged, tally.stored, tally.state) == (end, end, "ok")


def test_acknowledged_messages_that_are_not_stored_are_told_the_second_time() -> None:
    meter = TruthMeter()
    for _ in range(2):
        meter.observe(topic(10), [], {0: 10.0}, BOOTS)
    first = meter.observe(topic(10), [], {0: 12.0}, BOOTS)
    assert first.state == "checking"
    second = meter.observe(topic(10), [], {0: 12.0}, BOOTS)
    assert second.state == "wrong"
    assert second.faults == ("partition 0: 12 messages were acknowledged, 10 are stored",)
    assert meter.observe(topic(12), [], {0: 12.0}, BOOTS).state == "ok"


def test_a_partition_that_shrinks_is_told_although_no_counter_knows() -> None:
    meter = TruthMeter()
    meter.observe(topic(10, 20), [], {}, BOOTS)
    other_boot = frozenset({(2, 300.0)})
    meter.observe(topic(10, 19), [], {}, other_boot)
    tally = meter.observe(topic(10, 19), [], {}, other_boot)
    assert tally.state == "wrong"
    assert "partition 1: 20 messages were stored, and now 19 are" in tally.faults


def test_a_topic_made_anew_begins_anew() -> None:
    meter = TruthMeter()
    meter.observe(topic(10), [], {0: 10.0}, BOOTS)
    assert meter.observe(topic(0, id_="2"), [], {}, BOOTS).state == "ok"


def test_a_broker_that_starts_again_counts_from_0_and_nothing_is_wrong() -> None:
    meter = TruthMeter()
    for _ in range(3):
        meter.observe(topic(10), [], {0: 10.0}, BOOTS)
    after = frozenset({(1, 200.0)})
    for end, counter in ((10, 0.0), (12, 2.0), (12, 2.0)):
        tally = meter.observe(topic(end), [], {0: counter}, after)
        assert (tally.state, tally.acknowledged) == ("ok", end)


def test_every_message_of_a_group_is_accounted_for() -> None:
    meter = TruthMeter()
    fine = group(10, lag=2, in_flight=1, delayed=1, done=4, dead=1, lost=1)
    assert meter.observe(topic(10), [fine], {}, BOOTS).state == "ok"
    missing = group(10, lag=2, done=7)
    meter.observe(topic(10), [missing], {}, BOOTS)
    tally = meter.observe(topic(10), [missing], {}, BOOTS)
    assert tally.state == "wrong"
    assert tally.faults == ("group g: 9 messages are accounted for, of 10",)


def test_a_group_that_commits_offsets_is_done_with_what_is_before_them() -> None:
    partition = GroupPartitionInfo(partition=0, lag=3, committed=7, start_offset=0, end_offset=10)
    sticky = GroupInfo(name="g", topic="orders", mode="sticky", partitions=[partition])
    tally = GroupTally.of(sticky)
    assert (tally.done, tally.waiting, tally.counted, tally.total) == (7, 3, 10, 10)


def test_it_remembers_no_more_topics_than_it_says() -> None:
    meter = TruthMeter()
    names = {f"t{n}" for n in range(TOPICS_MAX + 50)}
    for name in ["busy", *sorted(names), "busy"]:
        meter.observe(topic(1, name=name), [], {}, BOOTS)
    meter.forget({*names, "busy"})
    assert len(meter.tallies) == TOPICS_MAX
    assert "busy" in meter.tallies
    meter.forget({"t7"})
    assert set(meter.tallies) <= {"t7"}
