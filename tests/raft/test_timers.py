"""Time that went by without ticks: intervals begin afresh, and silence in it counts for nothing."""

from quivermq.raft import Message, MessageKind, Options, RawNode, Role
from tests.raft.group import acked, elected, node_with, of_kind, settle, step

OPTIONS = Options(election_ticks=10, heartbeat_ticks=3)
ELECTION = OPTIONS.election_ticks


def ticked(node: RawNode, ticks: int) -> list[Message]:
    sent: list[Message] = []
    for _ in range(ticks):
        node.tick()
        sent += settle(node)
    return sent


def leader() -> RawNode:
    options = Options(election_ticks=ELECTION, heartbeat_ticks=3, prevote=False)
    node = elected(node_with(options=options), 2)
    acked(node, 2, 1)
    return node


def test_a_leader_has_a_whole_election_timeout_to_hear_a_quorum_again() -> None:
    node = leader()
    ticked(node, 2 * ELECTION - 1)
    node.restart_timers()
    ticked(node, ELECTION - 1)
    assert node.replica.role is Role.LEADER
    ticked(node, 1)
    assert node.replica.role is Role.FOLLOWER, "what it heard before counts for nothing"


def test_a_leader_sends_heartbeats_with_its_next_tick() -> None:
    node = leader()
    assert not of_kind(ticked(node, 1), MessageKind.HEARTBEAT)
    node.restart_timers()
    assert of_kind(ticked(node, 1), MessageKind.HEARTBEAT)


def test_a_leader_that_is_heard_again_stays() -> None:
    node = leader()
    ticked(node, 2 * ELECTION - 1)
    node.restart_timers()
    for _ in range(3 * ELECTION):
        step(node, Message(MessageKind.HEARTBEAT_REPLY, 1, 3, 1))
        ticked(node, 1)
    assert node.replica.role is Role.LEADER


def test_a_follower_waits_a_whole_election_timeout_and_keeps_its_leader_until_then() -> None:
    node = node_with(1, options=OPTIONS)
    step(node, Message(MessageKind.HEARTBEAT, 1, 3, 1))
    ticked(node, ELECTION - 1)
    node.restart_timers()
    assert not ticked(node, ELECTION - 1)
    assert node.replica.leader == 3
    assert of_kind(ticked(node, ELECTION), MessageKind.PREVOTE)


def test_followers_that_wake_together_do_not_stand_together() -> None:
    timeouts = set()
    node = node_with(1, options=OPTIONS)
    for _ in range(50):
        node.restart_timers()
        timeouts.add(node.replica.election_timeout)
    assert timeouts == set(range(ELECTION, 2 * ELECTION))
