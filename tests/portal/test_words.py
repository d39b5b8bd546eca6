"""Bytes as people read them, and why a message waits."""

from datetime import UTC, datetime, timedelta

import pytest

import quivermq
from quivermq.client import (
    DeadLetter,
    DelayedInfo,
    GroupInfo,
    GroupPartitionInfo,
    InFlightInfo,
    MemberInfo,
    PartitionInfo,
    TopicInfo,
)
from quivermq.portal.payloads import SHOWN_BYTES, preview, shown
from quivermq.portal.waiting import explain

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("data", "view", "kind", "text"),
    [
        (b'{"a": [1]}', "auto", "json", '{\n  "a": [\n    1\n  ]\n}'),
        (b'{"a": [1]}', "text", "text", '{"a": [1]}'),
        (b'{"a": ', "auto", "text", '{"a": '),
        ("grüße\n".encode(), "auto", "text", "grüße\n"),
        (b"12", "auto", "text", "12"),
        (b"[" * 100_000, "json", "text", "[" * SHOWN_BYTES),
        (b"AB", "hex", "hex", "00000000  41 42" + " " * 44 + "AB"),
        (b"\x00\xff", "auto", "hex", "00000000  00 ff" + " " * 44 + ".."),
        (b"\xff", "text", "text", "\N{REPLACEMENT CHARACTER}"),
        (None, "auto", "text", ""),
    ],
)
def test_bytes_are_shown_as_what_they_are(data, view, kind, text) -> None:  # type: ignore[no-untyped-def]
    found = shown(data, view)
    assert (found.kind, found.text) == (kind, text)


def test_a_long_value_is_cut_between_letters() -> None:
    found = shown("ü".encode() * SHOWN_BYTES + b"", "auto")
    assert (found.kind, found.is_cut) == ("text", True)
    assert shown(b"x" + "ü".encode() * SHOWN_BYTES, "auto").kind == "text"
    assert preview(b"a\n b" * 1000).endswith(" \N{HORIZONTAL ELLIPSIS}")
    assert "\n" not in preview(b"a\nb")
    assert preview(b"\x00\x01") == "00 01"
    # Brackets without end are no JSON, and no reason to fail.
    assert shown(b"[" * 10_000 + b"]" * 10_000, "json").text.startswith("[")


def topic(**changed: object) -> TopicInfo:
    partition = PartitionInfo(partition=0, leader=1, replicas=(1,), start_offset=5, end_offset=100)
    fields = {
        "name": "orders", "id": "1", "partitions": [partition], "replication": 1,
        "retention": quivermq.Retention(), "rate_limit": None, "max_deliveries": 5,
        "dead_letter": "orders.dlq",
    } | changed  # fmt: skip
    return TopicInfo(**fields)  # type: ignore[arg-type]


def group(mode: str = "shared", members: int = 0, **counts: int | None) -> GroupInfo:
    given = {"lag": 0, "floor": 10, "start_offset": 5, "end_offset": 100, **counts}
    return GroupInfo(
        name="g",
        topic="orders",
        mode=mode,
        members=[
            MemberInfo(id=str(n), name=f"worker-{n}", partitions=(0,)) for n in range(members)
        ],
        partitions=[GroupPartitionInfo(partition=0, **given)],  # type: ignore[arg-type]
    )


LATER = DelayedInfo(partition=0, offset=40, count=2, due=NOW + timedelta(seconds=90), priority=0)
HELD = InFlightInfo(
    partition=0, offset=70, count=5, member="7", program="worker-7", deliveries=2, held=75.4,
    left=12.0,
)  # fmt: skip
DEAD = DeadLetter(0, 0, "orders", "g", "no stock", 5, 0, 50, None, b"", {}, 0, "")


@pytest.mark.parametrize(
    ("found", "offset", "words"),
    [
        (group(), 100, "does not exist yet: the partition ends at 100."),
        (group(), 4, "was deleted by retention: the first that is kept is 5."),
        (group(), 9, "is done: everything below 10 is."),
        (group(lag=9), 41, "waits because its producer delayed it: it is due in 90 s."),
        (group(lag=9), 50, "is a dead letter: no stock."),
        (group(lag=9), 60, "waits because no consumer of g polls: 9 messages of the partition"),
        (group(lag=9, members=2, in_flight=3), 60, "or is one of 3 in flight"),
        (group(in_flight=3, members=1), 60, "is one of 3 in flight, leased to a consumer, or"),
        (group(lag=9, in_flight=3), 74, "is in flight: worker-7 has held it for 1m15s, as its"),
        (group(in_flight=3), 75, "is one of 3 in flight, leased to a consumer, or it is done"),
        (group(), 60, "is done: nothing of the partition waits."),
        (group(start_offset=50, lag=3), 20, "is not the group's: g began at 50."),
        (group("sticky", committed=30, members=1, lag=70), 29, "has committed offset 30."),
        (group("sticky", committed=30, members=1, lag=70), 35, "worker-0, which has 5 messages"),
        (group("sticky", committed=30, lag=70), 35, "no member of g owns the partition."),
        (group("single", committed=30, lag=70), 31, "1 message of the group are before it."),
    ],
)
def test_why_a_message_waits_is_a_sentence(found: GroupInfo, offset: int, words: str) -> None:
    text = explain(topic(), found, 0, offset, [LATER], [DEAD], [HELD], NOW)
    assert words in text
    assert text.startswith(f"Message {offset} of partition 0 ")
    assert text.endswith(".")


def test_what_the_topic_lacks_is_told_first() -> None:
    limited = topic(rate_limit=quivermq.RateLimit(0.5))
    assert "at most 0.5 a second" in explain(
        limited, group(lag=9, members=1), 0, 60, [], [], [], NOW
    )
    leaderless = topic(partitions=[PartitionInfo(partition=0, leader=0, replicas=(1,))])
    assert "has no leader" in explain(leaderless, group(lag=9), 0, 60, [], [], [], NOW)
    assert explain(topic(), group(), 3, 60, [], [], [], NOW) == "orders has no partition 3."
    unused = GroupInfo(name="g", topic="orders", mode="shared")
    assert "waits for a first poll" in explain(topic(), unused, 0, 60, [], [], [], NOW)
