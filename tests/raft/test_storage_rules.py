"""Durability order: what a Ready says must be on disk before what is said."""

from random import Random

import pytest

from quivermq.errors import BrokenInvariant, InvalidRequest
from quivermq.raft import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    Options,
    PeerNonsense,
    RawNode,
    Ready,
    Role,
    parse_changes,
)
from quivermq.testing.memory_storage import MemoryStorage
from tests.raft.group import node_with, settle, storage_with

ASYNC = Options(prevote=False, check_quorum=False, async_storage=True)


def append(term: int, log_term: int, index: int, *entries: Entry, commit: int = 0) -> Message:
    return Message(MessageKind.APPEND, 1, 2, term, log_term, index, entries, commit)


def taken(node: RawNode) -> Ready:
    ready = node.ready()
    assert ready is not None
    return ready


def test_a_ready_is_handed_out_once() -> None:
    node = node_with(options=ASYNC)
    node.step(append(1, 0, 0, Entry(1, 1)))
    assert node.has_ready
    taken(node)
    assert not node.has_ready
    assert node.ready() is None


def test_a_ready_waits_for_the_one_before_it() -> None:
    node = node_with()
    node.step(append(1, 0, 0, Entry(1, 1)))
    taken(node)
    node.tick()
    with pytest.raises(BrokenInvariant, match="before advance"):
        node.ready()


def test_a_commit_index_alone_need_not_be_synced() -> None:
    node = node_with(1, 1)
    node.step(append(1, 1, 2, commit=1))
    settle_first = taken(node)
    assert settle_first.hard_state == HardState(1, 0, 1)
    assert not settle_first.must_sync


@pytest.mark.parametrize(
    "message", [append(1, 0, 0, Entry(1, 1)), Message(MessageKind.VOTE, 1, 2, 1)]
)
def test_entries_and_votes_must_be_synced(message: Message) -> None:
    node = node_with()
    node.step(message)
    assert taken(node).must_sync


def test_replies_leave_after_the_messages_that_promise_nothing() -> None:
    node = node_with(1, options=Options(prevote=False))
    node.step(append(1, 1, 1, Entry(1, 2)))
    node.step(Message(MessageKind.HEARTBEAT, 1, 2, 1))
    kinds = [message.kind for message in taken(node).messages]
    assert kinds == [MessageKind.HEARTBEAT_REPLY, MessageKind.APPEND_REPLY]


def test_with_asynchronous_storage_only_durable_entries_are_applied() -> None:
    node = node_with(options=ASYNC)
    node.step(append(1, 0, 0, Entry(1, 1), commit=1))
    ready = taken(node)
    assert ready.committed == ()
    (store,) = ready.messages
    node.replica.log.storage.append(store.entries)
    for response in store.responses:
        if response.to == 1:
            node.step(response)
    assert [entry.index for entry in taken(node).committed] == [1]


def test_with_synchronous_storage_entries_are_written_and_applied_in_one_go() -> None:
    node = node_with()
    node.step(append(1, 0, 0, Entry(1, 1), commit=1))
    ready = taken(node)
    assert [entry.index for entry in ready.committed] == [1]


def test_a_confirmation_of_an_entry_that_was_replaced_confirms_nothing() -> None:
    """The write belongs to this term, but its leader has replaced the entry since."""
    node = node_with(options=ASYNC)
    node.step(append(1, 0, 0, Entry(1, 1), Entry(1, 2)))
    taken(node)
    node.step(Message(MessageKind.VOTE, 1, 3, 3, 9, 9))
    (store,) = taken(node).messages
    node.step(append(3, 1, 1, Entry(3, 2)))
    confirmation = store.responses[-1]
    assert (confirmation.term, confirmation.log_term, confirmation.index) == (3, 1, 2)
    node.step(confirmation)
    node.validate()
    assert node.replica.log.tail_start == 1


def test_a_confirmation_of_an_earlier_term_confirms_nothing_even_if_it_fits() -> None:
    """Entry (1, 1) was written, replaced, and is back from a later leader, not yet written."""
    node = node_with(options=ASYNC)
    node.step(append(1, 0, 0, Entry(1, 1)))
    (first,) = taken(node).messages
    node.step(append(2, 0, 0, Entry(2, 1)))
    taken(node)
    node.step(append(3, 0, 0, Entry(1, 1), Entry(3, 2)))
    taken(node)
    confirmation = first.responses[-1]
    assert (confirmation.kind, confirmation.log_term, confirmation.index) == (
        MessageKind.STORED,
        1,
        1,
    )
    node.step(confirmation)
    assert node.replica.log.tail_start == 1


def test_the_next_write_confirms_all_before_it() -> None:
    node = node_with(options=ASYNC)
    node.step(append(1, 0, 0, Entry(1, 1)))
    taken(node)
    node.step(Message(MessageKind.VOTE, 1, 3, 2, 9, 9))
    (store,) = taken(node).messages
    assert store.entries == []
    confirmation = store.responses[-1]
    assert (confirmation.kind, confirmation.term, confirmation.index) == (MessageKind.STORED, 2, 1)
    node.step(confirmation)
    assert node.replica.log.tail_start == 2


def test_a_member_starts_where_its_disk_ends() -> None:
    node = node_with(1, 1, 2, term=4, vote=2, commit=2, applied=1)
    replica = node.replica
    assert (replica.term, replica.vote) == (4, 2)
    assert (replica.log.committed, replica.log.applied, replica.log.last_index) == (2, 1, 3)
    ready = taken(node)
    assert [entry.index for entry in ready.committed] == [2]


def test_a_commit_index_past_the_end_of_the_log_means_that_entries_were_lost() -> None:
    with pytest.raises(BrokenInvariant, match="commit of 5 past the end of the log at 2"):
        node_with(1, 1, commit=5)


def test_a_log_with_two_membership_changes_proves_the_first_one_committed() -> None:
    """The second was proposed by a leader that had applied the first."""
    storage = storage_with(1)
    added = MembershipChange(parse_changes("v4")).encode()
    storage.append([Entry(1, 2, EntryKind.MEMBERSHIP, added), Entry(1, 3)])
    assert RawNode(1, storage, ASYNC, Random(0)).replica.log.committed == 0
    storage.append([Entry(1, 4, EntryKind.MEMBERSHIP, added)])
    node = RawNode(1, storage, ASYNC, Random(0))
    assert node.replica.log.committed == 2
    node.campaign()
    assert node.replica.role is Role.FOLLOWER, "it does not stand before it has applied the first"
    unchecked = Options(validate_membership=False)
    assert RawNode(1, storage, unchecked, Random(0)).replica.log.committed == 0


def test_what_was_applied_was_committed() -> None:
    assert node_with(1, 1, commit=0, applied=2).replica.log.committed == 2


def test_applied_past_the_log_is_a_broken_invariant() -> None:
    with pytest.raises(BrokenInvariant, match="commit of 5 past the end"):
        node_with(1, 1, applied=5)


def test_a_member_id_must_be_positive() -> None:
    with pytest.raises(InvalidRequest, match="ids start at 1"):
        RawNode(0, MemoryStorage(), ASYNC, Random(0))


def test_a_configuration_that_makes_no_sense_is_refused_at_start() -> None:
    storage = MemoryStorage(Configuration((1, 2), (), (2,)))
    with pytest.raises(InvalidRequest, match="a learner that votes"):
        RawNode(1, storage, ASYNC, Random(0))


NONSENSE = {
    "no message between members": Message(MessageKind.STORED, 1, 2, 1),
    "APPLIED of 2": Message(MessageKind.APPLIED, 1, 2, 1),
    "STORE of 2": Message(MessageKind.STORE, 1, 2, 1),
    "APPEND of -1": Message(MessageKind.APPEND, 1, -1, 1),
    "is for 3": Message(MessageKind.HEARTBEAT, 3, 2, 1),
    "a hole after 0": append(1, 0, 0, Entry(1, 2)),
    "a hole after 4": append(1, 0, 4, Entry(1, 5), Entry(1, 7)),
    "without a snapshot": Message(MessageKind.SNAPSHOT, 1, 2, 1),
    "not forwarded here": Message(MessageKind.PROPOSE, 1, 2, entries=(Entry(0, 0),)),
    "not a member": Message(MessageKind.VOTE_REPLY, 1, 9, 1),
}


@pytest.mark.parametrize("fault", NONSENSE)
def test_nonsense_of_a_peer_is_refused_and_changes_nothing(fault: str) -> None:
    node = node_with(options=ASYNC)
    with pytest.raises(PeerNonsense, match=fault):
        node.step(NONSENSE[fault])
    assert not node.has_ready
    assert node.replica.term == 0


def test_payloads_are_passed_on_as_they_are() -> None:
    class Frame:
        """A payload that has a size and nothing else; it cannot even be compared."""

        def __len__(self) -> int:
            return 10

        __eq__ = None  # type: ignore[assignment]
        __hash__ = None  # type: ignore[assignment]

    node = RawNode(1, storage_with(voters=(1,)), ASYNC, Random(0))
    node.campaign()
    frame = Frame()
    applied = []
    proposed = False
    while (ready := node.ready()) is not None:
        storage = node.replica.log.storage
        for message in ready.messages:
            if message.kind is MessageKind.STORE:
                storage.append(message.entries)
            applied += message.entries if message.kind is MessageKind.APPLY else ()
            for response in message.responses:
                node.step(response)
        if node.replica.leader == 1 and not proposed:
            node.propose(frame)
            proposed = True
    assert applied[-1].data is frame


def test_the_status_tells_when_a_group_may_sleep() -> None:
    node = node_with(voters=(1,))
    node.campaign()
    assert not node.status().is_settled
    settle(node)
    assert node.status().is_settled
    node.propose(b"x")
    assert not node.status().is_settled
