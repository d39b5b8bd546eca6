"""The checker of groups: each broken promise is noticed, and kept ones are not taken for broken."""

from pathlib import Path
from typing import cast

import pytest

from quivermq.client.group_models import GroupInfo, GroupPartitionInfo
from quivermq.testing import Violation
from quivermq.testing.trials import Fate, GroupHistory, SettleAction, SettleCall, TopicPartition
from quivermq.testing.trials.group_history import Delivered, Letter, Original
from quivermq.testing.trials.journal import Journal, JournaledCalls, replay

PLACE = TopicPartition("jobs", 0)
CONTENTS = {PLACE: {n: Original(b"k", b"job %d" % n, {"n": b"%d" % n}) for n in range(4)}}
MS = 1_000_000


def given(offset: int, token: int, began_ms: int, delivery: int = 1) -> Delivered:
    return Delivered(
        PLACE,
        offset,
        b"job %d" % offset,
        token,
        delivery,
        "a",
        began_ms * MS,
        (began_ms + 1) * MS,
        float(began_ms + 1),
    )


def said(
    act: SettleAction,
    offset: int,
    token: int,
    began_ms: int,
    fate: Fate = Fate.DONE,
    delay_s: float = 0.0,
) -> SettleCall:
    return SettleCall(
        act,
        PLACE,
        offset,
        token,
        "a",
        began_ms * MS,
        float(began_ms),
        (began_ms + 1) * MS,
        fate,
        delay_s,
    )


def letter(offset: int, **changes: object) -> Letter:
    original = CONTENTS[PLACE][offset]
    found = Letter("jobs", 0, offset, "g", "no good", 1, *original, died="today")
    return found._replace(**changes)  # type: ignore[arg-type]  # fields of all types


@pytest.fixture
def history() -> GroupHistory:
    """All of four messages done: the last as a dead letter, the first at its second delivery."""
    history = GroupHistory("g")
    history.record_deliveries([given(0, 1, 10), given(1, 1, 10), given(2, 2, 12), given(3, 2, 12)])
    history.record_calls(
        [said(SettleAction.NACK, 0, 1, 20, delay_s=0.03), said(SettleAction.ACK, 1, 1, 22)]
    )
    history.record_calls([said(SettleAction.ACK, 2, 2, 24), said(SettleAction.REJECT, 3, 2, 25)])
    history.record_deliveries([given(0, 3, 60, delivery=2)])
    history.record_calls(
        [said(SettleAction.ACK, 0, 1, 61, Fate.LOST), said(SettleAction.ACK, 0, 3, 63)]
    )
    return history


def info(**changes: int) -> GroupInfo:
    counters = {"lag": 0, "done": 3, "dead": 1, "end_offset": 4, **changes}
    part = GroupPartitionInfo(partition=0, **counters)  # type: ignore[arg-type]  # all are numbers
    return GroupInfo(name="g", topic="jobs", mode="shared", partitions=[part])


def test_a_history_that_keeps_all_promises_passes(history: GroupHistory) -> None:
    history.check_drained(CONTENTS, [letter(3)])
    history.check_figures(info(), CONTENTS, [letter(3)])


def broken(history: GroupHistory, match: str, letters: list[Letter] | None = None) -> None:
    with pytest.raises(Violation, match=match):
        history.check_drained(CONTENTS, [letter(3)] if letters is None else letters)


def test_a_message_given_out_after_its_ack_returned_is_noticed(history: GroupHistory) -> None:
    history.record_deliveries([given(1, 9, 24)])
    broken(history, "I5.*after the ack")


def test_a_poll_that_began_before_the_ack_returned_may_still_bring_it(
    history: GroupHistory,
) -> None:
    history.record_deliveries([given(1, 9, 23)])
    history.check_drained(CONTENTS, [letter(3)])


def test_two_leases_that_end_one_message_are_noticed(history: GroupHistory) -> None:
    history.record_calls([said(SettleAction.ACK, 2, 9, 30)])
    broken(history, "I4.*2 leases")


def test_a_lease_that_brings_a_message_twice_is_noticed(history: GroupHistory) -> None:
    history.record_deliveries([given(2, 2, 13)])
    broken(history, "I4.*twice")


def test_a_delivered_message_that_was_not_sent_is_found(history: GroupHistory) -> None:
    history.record_deliveries([given(1, 9, 5)._replace(value=b"another")])
    broken(history, "I2")


def test_a_message_that_no_consumer_acknowledged_is_found() -> None:
    history = GroupHistory("g")
    history.record_calls([said(SettleAction.ACK, number, 1, 20) for number in (0, 1)])
    history.record_calls([said(SettleAction.ACK, 2, 1, 20, Fate.LOST)])
    broken(history, "I5: 1 messages were neither.*jobs/0@2")


def test_an_ack_without_an_answer_may_have_counted() -> None:
    history = GroupHistory("g")
    history.record_calls(
        [said(SettleAction.ACK, number, 1, 20, Fate.UNKNOWN) for number in (0, 1, 2)]
    )
    history.check_drained(CONTENTS, [letter(3)])
    history.check_figures(info(), CONTENTS, [letter(3)])


def test_an_early_delivery_is_noticed(history: GroupHistory) -> None:
    history.record_delay([b"job 2"], 14.0)
    broken(history, "I8.*early")


def test_a_delivery_before_the_delay_of_a_nack_is_over_is_noticed(history: GroupHistory) -> None:
    history.record_deliveries([given(0, 9, 40, delivery=2)])
    broken(history, "I8.*too early")


def test_a_message_given_out_while_it_is_leased_is_noticed(history: GroupHistory) -> None:
    history.check_exclusive(visibility_s=0.03)
    history.record_deliveries([given(2, 9, 13)])
    with pytest.raises(Violation, match="while it was leased"):
        history.check_exclusive(visibility_s=0.03)
    history.record_leave("a", 13 * MS)
    history.check_exclusive(visibility_s=0.03)


def test_a_lease_that_expired_is_given_to_another_as_a_failure_and_not_before() -> None:
    history = GroupHistory("g")
    history.record_deliveries([given(0, 1, 10), given(0, 2, 50, delivery=2)])
    history.check_exclusive(visibility_s=0.03)
    with pytest.raises(Violation, match="I4"):
        history.check_exclusive(visibility_s=0.05)


@pytest.mark.parametrize(
    ("letters", "match"),
    [
        ([letter(3), letter(3)], "twice"),
        ([], "neither|rejected"),
        ([letter(3), letter(2)], "acknowledged and a dead letter"),
        ([letter(3, key=None)], "I2"),
        ([letter(3, headers={})], "I2"),
        ([letter(3, reason="")], "lacks its reason"),
        ([letter(3, group="h")], "lacks its reason"),
        ([letter(3, deliveries=0)], "died after delivery"),
    ],
)
def test_dead_letters_that_are_not_as_they_should_be_are_noticed(
    history: GroupHistory, letters: list[Letter], match: str
) -> None:
    broken(history, match, letters)


@pytest.mark.parametrize(
    "changes",
    [{"done": 4}, {"done": 2, "lag": 1}, {"dead": 0, "lag": 1}, {"end_offset": 5, "lag": 1}],
)
def test_figures_that_do_not_fit_are_noticed(
    history: GroupHistory, changes: dict[str, int]
) -> None:
    with pytest.raises(Violation, match="I5"):
        history.check_figures(info(**changes), CONTENTS, [letter(3)])


@pytest.mark.parametrize("cut", [0, 3, 20])
def test_the_journal_of_a_killed_process_counts_and_its_last_call_is_in_doubt(
    tmp_path: Path, cut: int
) -> None:
    asked = said(SettleAction.ACK, 0, 1, 20, Fate.UNKNOWN)._replace(ended_ns=0)
    path = tmp_path / "journal"
    written = cast("GroupHistory", JournaledCalls(Journal(path), "group"))
    written.record_deliveries(iter([given(0, 1, 10), given(1, 1, 10)]))
    written.begin_calls("ada", [asked])
    written.end_calls("ada", [asked._replace(fate=Fate.LOST, ended_ns=21 * MS)])
    written.begin_calls("ada", [asked._replace(offset=1)])
    whole = path.read_bytes()
    written.end_calls("ada", [asked._replace(offset=1)])
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    history = GroupHistory("g")
    replay(path, {"group": history})
    history.close()
    assert history.deliveries(PLACE, 0) == [given(0, 1, 10)]
    assert history.offsets(SettleAction.ACK, Fate.LOST) == {(PLACE, 0)}
    assert history.offsets(SettleAction.ACK, Fate.UNKNOWN) == {(PLACE, 1)}
