"""Settings of topics on their way to the broker and back."""

import math
from datetime import timedelta
from typing import Any

import pytest

from quivermq.client.group_models import DeadLetter
from quivermq.client.models import (
    Message,
    RateLimit,
    RebalanceInfo,
    Retention,
    TopicInfo,
    settings_from_proto,
    settings_to_proto,
)
from quivermq.errors import InvalidRequest
from quivermq.wire import proto


def travelled(
    retention: Retention | None = None, rate_limit: RateLimit | None = None
) -> dict[str, Any]:
    settings = settings_to_proto({"retention": retention, "rate_limit": rate_limit})
    return settings_from_proto(proto.TopicSettings.FromString(settings.SerializeToString()))


@pytest.mark.parametrize(
    "retention",
    [
        Retention(),
        Retention(max_age=0.5),
        Retention(max_messages=1, max_bytes=2),
        Retention(delete_acked=True),
        Retention(max_age=3600.0, keep_until_archived=True),
    ],
)
def test_retention_comes_back_as_it_went(retention: Retention) -> None:
    assert travelled(retention)["retention"] == retention


def test_an_age_may_be_a_timedelta() -> None:
    assert Retention(max_age=timedelta(days=1)) == Retention(max_age=86_400.0)


def test_a_rate_limit_comes_back_as_it_went() -> None:
    assert travelled(rate_limit=RateLimit(0.5, 3))["rate_limit"] == RateLimit(0.5, 3)
    assert travelled()["rate_limit"] is None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Retention(max_age=0),
        lambda: Retention(max_age=-1),
        lambda: Retention(max_age=math.nan),
        lambda: Retention(max_age=True),
        lambda: Retention(max_messages=1.5),  # type: ignore[arg-type]
        lambda: Retention(max_bytes=0),
        lambda: RateLimit(0),
        lambda: RateLimit("1"),  # type: ignore[arg-type]
        lambda: RateLimit(1, burst=0),
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest, match="at least"):
        wrong()


def test_a_topic_shows_partitions_whose_leader_did_not_answer() -> None:
    described = proto.TopicDescription()
    described.topic.name, described.topic.id = "t", b"\x01\x02"
    described.topic.partitions.add(partition=0, leader=1, replicas=[1, 2])
    described.topic.partitions.add(partition=1, leader=2, replicas=[1, 2])
    described.partitions.add(partition=0, leader=1, replicas=[1, 2], start_offset=2, end_offset=5)
    info = TopicInfo.of(described)
    assert info.id == "0102"
    assert info.dead_letter == "t.dlq"
    assert [each.trouble for each in info.partitions] == ["", "its leader did not answer"]
    assert info.partitions[0].message_count == 3
    silent = info.partitions[1]
    assert (silent.leader, silent.replicas) == (2, (1, 2))
    assert {silent.start_offset, silent.end_offset, silent.size_bytes, silent.in_sync} == {None}
    assert {silent.term, silent.commit_index, silent.message_count} == {None}
    # What is known of some only is not known.
    assert (info.message_count, info.size_bytes) == (None, None)
    assert "2 partitions" in repr(info)
    assert "? messages" in repr(info)


def test_nothing_is_something_else_than_not_known() -> None:
    described = proto.TopicDescription()
    described.topic.partitions.add(partition=0, leader=1, replicas=[1])
    described.partitions.add(leader=1, start_offset=0, end_offset=0, size_bytes=0, in_sync=[1])
    info = TopicInfo.of(described)
    assert (info.message_count, info.size_bytes, info.partitions[0].in_sync) == (0, 0, (1,))


def test_a_dead_letter_that_says_nothing_of_its_origin_came_from_nowhere() -> None:
    letter = DeadLetter.of(Message("t.dlq", 0, 5, None, b"v", {}, 0, 0))
    assert (letter.original_partition, letter.original_offset, letter.deliveries) == (None,) * 3
    assert "/?@?" in repr(letter)


def test_a_dead_letter_with_numbers_of_thousands_of_digits_is_shown_without_them() -> None:
    headers = {"quiver-deliveries": b"9" * 5_000, "quiver-offset": b"12"}
    letter = DeadLetter.of(Message("t.dlq", 0, 5, None, b"v", headers, 0, 0))
    assert (letter.deliveries, letter.original_offset) == (None, 12)


def test_a_rebalance_is_done_when_nothing_is_left() -> None:
    assert RebalanceInfo.of(proto.RebalanceProgress()).done
    assert not RebalanceInfo.of(proto.RebalanceProgress(leaders_left=1)).done
