"""Bounds: message size, messages and bytes in flight, uncommitted bytes, bytes to apply."""

from dataclasses import fields

import pytest

from quivermq.errors import InvalidRequest, Overloaded
from quivermq.raft import Entry, Message, MessageKind, Options, Pace, RawNode
from quivermq.raft.messages import ENTRY_OVERHEAD_BYTES
from tests.raft.group import Group, acked, change, elected, node_with, of_kind, settle, step


def leader_with(**limits: int) -> RawNode:
    """A leader with member 2 caught up and 3 silent."""
    options = Options(prevote=False, check_quorum=False, **limits)
    node = elected(node_with(options=options), 2)
    acked(node, 2, 1)
    return node


LIMITS = [f.name for f in fields(Options) if f.name.endswith(("_max", "_ticks"))]


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("value", [0, -1])
def test_no_limit_may_be_zero(name: str, value: int) -> None:
    with pytest.raises(InvalidRequest, match=name):
        Options(**{name: value})


def test_an_election_must_take_longer_than_a_heartbeat() -> None:
    with pytest.raises(InvalidRequest, match="election_ticks"):
        Options(election_ticks=2, heartbeat_ticks=2)


def test_an_append_stays_within_the_message_size() -> None:
    group = Group(3, options=Options(prevote=False, message_bytes_max=60))
    group.elect(1)
    group.cut_off = {3}
    group.propose(1, *[b"x" * 20] * 7)
    group.cut_off = set()
    sizes = []
    group.lose = lambda m: bool(m.kind is MessageKind.APPEND and sizes.append(len(m.entries)))
    group.tick(1)
    assert max(sizes) == 2
    assert group.payloads(3) == [b"x" * 20] * 7


def test_an_entry_larger_than_a_message_still_travels() -> None:
    group = Group(3, options=Options(prevote=False, message_bytes_max=1))
    group.elect(1)
    group.propose(1, b"x" * 1000, b"y" * 1000)
    assert group.payloads(2) == [b"x" * 1000, b"y" * 1000]


def test_appends_in_flight_are_bounded_in_messages() -> None:
    node = leader_with(inflight_messages_max=2)
    for _ in range(5):
        node.propose(b"x")
    assert len(of_kind(settle(node), MessageKind.APPEND)) == 2
    progress = node.replica.progress[2]
    assert (progress.is_paused, len(progress.inflight)) == (True, 2)


def test_appends_in_flight_are_bounded_in_bytes() -> None:
    node = leader_with(inflight_bytes_max=100)
    for _ in range(5):
        node.propose(b"x" * 42)
    assert len(of_kind(settle(node), MessageKind.APPEND)) == 2


def sent_to(messages: list[Message], member: int) -> list[int]:
    """The first entry of each append."""
    return [m.entries[0].index for m in messages if m.to == member and m.entries]


def test_a_member_that_is_behind_has_less_in_flight_than_one_that_others_wait_for() -> None:
    node = leader_with(behind_bytes_max=100, message_bytes_max=50)
    for _ in range(10):
        node.propose(b"x" * 42)
    settle(node)
    acked(node, 2, 11)
    assert node.replica.log.committed == 11
    assert sent_to(acked(node, 3, 1), 3) == [2, 3]
    assert sent_to(acked(node, 3, 2), 3) == [4]
    assert sent_to(acked(node, 3, 10), 3) == [11]
    acked(node, 3, 11)
    for _ in range(5):
        node.propose(b"x" * 42)
    assert sent_to(settle(node), 3) == [12, 13, 14, 15, 16]


def test_an_acknowledgement_frees_the_window_and_sends_more() -> None:
    node = leader_with(inflight_messages_max=2)
    for _ in range(5):
        node.propose(b"x")
    settle(node)
    sent = [m for m in acked(node, 2, 3) if m.to == 2 and m.entries]
    assert [[e.index for e in m.entries] for m in sent] == [[4, 5, 6]]
    assert len(node.replica.progress[2].inflight) == 1


def test_a_full_window_lets_one_empty_append_through_after_a_sign_of_life() -> None:
    node = leader_with(inflight_messages_max=1)
    node.propose(b"x")
    node.propose(b"y")
    settle(node)
    reply = Message(MessageKind.HEARTBEAT_REPLY, 1, 2, 1)
    (probe,) = of_kind(step(node, reply), MessageKind.APPEND)
    assert (probe.index, probe.entries) == (2, ())
    assert node.replica.progress[2].is_paused


def test_a_probed_member_gets_one_append_at_a_time() -> None:
    node = elected(node_with(), 2)
    node.propose(b"x")
    assert of_kind(settle(node), MessageKind.APPEND) == []
    assert node.replica.progress[3].is_paused


def test_an_unreachable_member_is_probed_again() -> None:
    node = leader_with()
    node.propose(b"x")
    settle(node)
    node.report_unreachable(2)
    progress = node.replica.progress[2]
    assert (progress.pace, progress.next, len(progress.inflight)) == (Pace.PROBE, 2, 0)
    node.report_unreachable(9)
    settle(node)


def test_uncommitted_proposals_are_bounded() -> None:
    node = leader_with(uncommitted_bytes_max=100)
    node.propose(b"x" * 50)
    with pytest.raises(Overloaded, match="58 of 100"):
        node.propose(b"x" * 50)
    settle(node)
    acked(node, 2, 2)
    node.propose(b"x" * 50)


def test_a_refused_proposal_leaves_no_trace() -> None:
    node = leader_with(uncommitted_bytes_max=20)
    node.propose(b"x" * 12)
    settle(node)
    before = (node.replica.log.last_index, node.replica.pending_membership)
    with pytest.raises(Overloaded):
        node.propose(b"y")
    with pytest.raises(Overloaded):
        node.propose_membership(change("v4"))
    assert (node.replica.log.last_index, node.replica.pending_membership) == before
    assert settle(node) == []


def test_one_proposal_past_the_limit_is_taken_when_nothing_else_waits() -> None:
    node = leader_with(uncommitted_bytes_max=10)
    settle(node)
    node.propose(b"x" * 1000)


def test_empty_proposals_count_too() -> None:
    node = leader_with(uncommitted_bytes_max=3 * ENTRY_OVERHEAD_BYTES)
    for _ in range(3):
        node.propose(b"")
    with pytest.raises(Overloaded):
        node.propose(b"")


def test_a_new_leader_starts_counting_at_zero() -> None:
    node = leader_with(uncommitted_bytes_max=20)
    node.propose(b"x" * 100)
    settle(node)
    step(node, Message(MessageKind.APPEND, 1, 2, 2, 1, 1, (Entry(2, 2),)))
    elected(node, 2)
    assert node.replica.uncommitted_bytes == ENTRY_OVERHEAD_BYTES, "its own first entry"


def test_a_ready_hands_out_a_bounded_amount_to_apply() -> None:
    options = Options(apply_bytes_max=50)
    node = node_with(1, 1, 1, 1, 1, 1, 1, commit=7, options=options)
    sizes = []
    while (ready := node.ready()) is not None:
        sizes.append(len(ready.committed))
        node.advance()
    assert sizes == [5, 2]


def test_with_asynchronous_storage_the_bound_covers_all_that_is_being_applied() -> None:
    options = Options(apply_bytes_max=50, async_storage=True)
    node = node_with(1, 1, 1, 1, 1, 1, 1, commit=7, options=options)
    first = node.ready()
    assert first is not None
    assert len(first.committed) == 5
    assert node.ready() is None
    node.step(first.messages[-1].responses[0])
    second = node.ready()
    assert second is not None
    assert len(second.committed) == 2


def test_an_empty_proposal_list_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        leader_with().propose()
