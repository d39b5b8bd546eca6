"""The texts that scenario files and logs are made of, where the files do not show them."""

from quivermq.raft import (
    APPEND_THREAD,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Options,
    ReadState,
    Ready,
    Role,
    Snapshot,
    SoftState,
    Transition,
)
from quivermq.testing.raft_text import (
    configuration_text,
    entry_text,
    message_text,
    ready_text,
    snapshot_text,
)
from tests.raft.group import change, node_with


def test_ids_are_hexadecimal_in_messages() -> None:
    message = Message(MessageKind.HEARTBEAT, 10, 255, 3)
    assert message_text(message) == "ff->a MsgHeartbeat Term:3 Log:0/0"
    store = Message(MessageKind.STORE, APPEND_THREAD, 16)
    assert message_text(store).startswith("10->AppendThread MsgStorageAppend")


def test_payloads_that_are_no_text_are_still_readable() -> None:
    assert entry_text(Entry(1, 2, data=b'a"b\n')) == '1/2 EntryNormal "a\\"b\\n"'
    assert entry_text(Entry(1, 2, data=b"\xff")) == '1/2 EntryNormal "\\\\xff"'
    assert entry_text(Entry(1, 2, data=memoryview(b"x"))) == '1/2 EntryNormal "x"'
    assert entry_text(Entry(1, 2, data=[1])) == "1/2 EntryNormal [1]"


def test_membership_entries_tell_their_changes() -> None:
    simple = change("v2", Transition.SIMPLE).encode()
    assert entry_text(Entry(1, 2, EntryKind.MEMBERSHIP, simple)) == "1/2 EntryConfChange v2"
    several = change("v2 l3 r4").encode()
    text = entry_text(Entry(1, 2, EntryKind.MEMBERSHIP, several))
    assert text == "1/2 EntryConfChangeV2 v2 l3 r4"


def test_a_configuration_tells_both_halves() -> None:
    joint = Configuration((1, 2), (1, 3), (4,), (3,), auto_leave=True)
    assert (
        configuration_text(joint) == "voters=(1 2)&&(1 3) learners=(4) learners_next=(3) autoleave"
    )


def test_a_ready_tells_everything_in_order() -> None:
    ready = Ready(
        soft_state=SoftState(2, Role.FOLLOWER),
        hard_state=HardState(3, 0, 4),
        entries=[Entry(3, 5, data=b"e")],
        snapshot=Snapshot(4, 2, Configuration((1,))),
        committed=[Entry(3, 4)],
        messages=(Message(MessageKind.VOTE_REPLY, 2, 1, 3, reject=True),),
        read_states=(ReadState(b"r", 4),),
        must_sync=True,
    )
    assert ready_text(ready).split("\n") == [
        "Ready MustSync=true:",
        "Lead:2 State:StateFollower",
        "HardState Term:3 Commit:4",
        "ReadStates r@4",
        "Entries:",
        '3/5 EntryNormal "e"',
        f"Snapshot {snapshot_text(Snapshot(4, 2, Configuration((1,))))}",
        "CommittedEntries:",
        '3/4 EntryNormal ""',
        "Messages:",
        "1->2 MsgVoteResp Term:3 Log:0/0 Rejected (Hint: 0)",
    ]
    assert ready_text(None) == "<empty Ready>"


def test_a_status_is_a_copy() -> None:
    node = node_with(voters=(1,), options=Options(prevote=False))
    before = node.status()
    node.campaign()
    assert (before.role, node.status().role) == (Role.FOLLOWER, Role.CANDIDATE)
