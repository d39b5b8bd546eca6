"""Membership changes: answered when those who stay can do without those who go."""

import pytest

from quivermq.cluster import member_of
from quivermq.errors import NotLeader, Timeout
from quivermq.raft import (
    Act,
    Change,
    Configuration,
    EntryKind,
    MembershipChange,
    Transition,
    parse_changes,
)
from quivermq.raft import MessageKind as Said
from quivermq.replica import Changed, Consensus, Produced, Send
from quivermq.replica.membership_changes import SEAL, MembershipChanges
from tests.replica.group import Group, Node


def removal(member: int) -> MembershipChange:
    return MembershipChange((Change(Act.REMOVE, member),))


def change(group: Group, node: Node, wanted: MembershipChange) -> int:
    token = group.token()
    node.replica.change_membership(token, wanted)
    group.settle()
    return token


def others(group: Group, *not_these: Node) -> list[Node]:
    return [node for node in group.nodes.values() if node not in not_these]


def lose_seals(group: Group) -> None:
    """Let no append pass that has a seal in it."""
    send = group.send

    def without_seals(sender: int, effect: Send) -> None:
        mail = effect.mail
        if isinstance(mail, Consensus) and mail.message.kind is Said.APPEND:
            for entry in mail.message.entries:
                if entry.kind is EntryKind.MEMBERSHIP and entry.data == SEAL.encode():
                    return
        send(sender, effect)

    group.send = without_seals


def test_a_change_is_answered_only_when_the_remaining_members_hold_its_seal() -> None:
    group = Group(4)
    leader = group.leader()
    send = group.send
    lose_seals(group)
    going = others(group, leader)[0]
    token = change(group, leader, removal(going.member))
    group.tick(5)
    assert going.member not in leader.replica.configuration.members, "it is in force"
    assert token not in leader.answers
    group.send = send
    group.tick(5)
    assert leader.answers[token] == Changed()


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_whom_a_change_removed_may_be_switched_off_when_it_is_answered(behind: int) -> None:
    """Of four voters one is removed, then the leader is lost: two of three have to do."""
    group = Group(4)
    leader = group.leader()
    going, *staying = others(group, leader)
    slow = [going, *staying][behind]
    group.cut = {(leader.member, slow.member)}
    token = change(group, leader, removal(going.member))
    ticks = 0
    while token not in leader.answers:
        group.tick()
        ticks += 1
        assert ticks < 10
    assert leader.answers[token] == Changed()
    leader.is_up = going.is_up = False
    group.heal()
    for node in staying:
        node.restart(power=True)
    successor = group.leader()
    assert successor in staying
    assert isinstance(successor.answers[group.produce(successor)], Produced)


def test_a_leader_that_removes_itself_does_not_say_that_it_may_go() -> None:
    group = Group(4)
    leader = group.leader()
    token = change(group, leader, removal(leader.member))
    assert isinstance(leader.answers[token], Timeout)
    successor = group.leader()
    assert successor is not leader
    again = change(group, successor, removal(leader.member))
    group.tick(2)
    assert successor.answers[again] == Changed()
    staying = others(group, leader, successor)
    leader.is_up = successor.is_up = False
    for node in staying:
        node.restart(power=True)
    assert group.leader() in staying


def test_a_joint_change_that_is_left_by_itself_is_answered_when_it_is_over() -> None:
    group = Group(3)
    leader = group.leader()
    going = others(group, leader)
    group.add(4)
    group.add(5)
    changes = parse_changes(f"v4 v5 r{going[0].member} r{going[1].member}")
    send = group.send
    lose_seals(group)
    token = change(group, leader, MembershipChange(changes))
    group.tick(10)
    assert leader.replica.configuration == Configuration(voters=(leader.member, 4, 5))
    assert token not in leader.answers
    group.send = send
    group.tick(10)
    assert leader.answers[token] == Changed()
    leader.is_up = False
    for node in going:
        node.is_up = False
    for member in (4, 5):
        group[member].restart(power=True)
    assert group.leader().member in (4, 5)


def test_a_joint_change_that_is_left_on_request_is_answered_twice() -> None:
    group = Group(3)
    leader = group.leader()
    going = others(group, leader)[0]
    group.add(4)
    enter = MembershipChange(parse_changes(f"v4 r{going.member}"), Transition.EXPLICIT)
    token = change(group, leader, enter)
    group.tick(5)
    assert leader.answers[token] == Changed()
    assert leader.replica.configuration.is_joint
    token = change(group, leader, MembershipChange())
    group.tick(2)
    assert leader.answers[token] == Changed()
    assert not leader.replica.configuration.is_joint


def test_a_new_leader_seals_what_the_one_before_it_left_unsealed() -> None:
    group = Group(4)
    leader = group.leader()
    send = group.send
    lose_seals(group)
    going, *staying = others(group, leader)
    change(group, leader, removal(going.member))
    group.tick(3)
    leader.is_up = False
    group.send = send
    successor = group.leader()
    group.tick(3)
    for node in staying:
        kinds = [frame.body for frame in node.log.frames(node.log.first_index)]
        assert kinds.count(SEAL.encode()) == 1
    assert successor in staying


def test_a_seal_is_followed_by_no_other() -> None:
    group = Group(3)
    leader = group.leader()
    group.add(4)
    change(group, leader, MembershipChange(parse_changes("l4")))
    group.tick(50)
    bodies = [bytes(frame.body) for frame in leader.log.frames(leader.log.first_index)]
    assert bodies.count(SEAL.encode()) == 1


def test_changes_say_whose_end_has_come() -> None:
    changes = MembershipChanges()
    plain = Configuration(voters=(1, 2, 3))
    changes.propose(5, 50)
    assert changes.is_busy
    assert not changes.apply(5, removal(4), plain)
    assert changes.is_seal_due
    assert changes.apply(6, SEAL, plain) == [50]
    assert not changes.is_seal_due
    assert not changes.is_busy
    changes.propose(7, 70)
    changes.propose(8, 80)
    assert changes.take_displaced(8) == 80
    assert changes.give_up() == [70]
    assert not changes.is_busy


def test_a_change_at_a_follower_is_refused() -> None:
    group = Group(3)
    leader = group.leader()
    group.tick()
    follower = others(group, leader)[0]
    token = change(group, follower, removal(leader.member))
    assert isinstance(follower.answers[token], NotLeader)


def test_a_replica_that_was_moved_away_and_back_elects_nobody_before_it_hears_of_its_leader() -> (
    None
):
    """It comes back under its number with a blank log. A member that missed its removal still
    counts on it, and would lead without what the others have agreed on since."""
    group = Group(3)
    leader = group.leader()
    behind, moved = others(group, leader)
    group.isolate(behind.member)
    added = group.add(4)
    group.cut |= {(behind.member, 4), (4, behind.member)}
    for changes in ("l4", "v4", f"r{moved.member}"):
        token = change(group, leader, MembershipChange(parse_changes(changes)))
        group.tick(10)
        assert leader.answers[token] == Changed()
    stored = group.produce(leader)
    group.tick(2)
    assert isinstance(leader.answers[stored], Produced)
    blank = group.add(moved.member)
    leader.is_up = added.is_up = False
    group.heal()
    group.tick(200)
    assert not behind.replica.is_leader
    assert not blank.replica.is_leader
    leader.is_up = True
    group.tick(100)
    assert leader.replica.is_leader
    assert behind.log.edge == leader.log.edge


def test_a_replica_that_came_back_elects_nobody_while_it_is_copied() -> None:
    """It knows who the members are and has a part of the log: it is saved by its other number, on
    which a member that missed the removal does not count."""
    group = Group(3)
    leader = group.leader()
    behind, moved = others(group, leader)
    early = group.produce(leader)
    group.tick(2)
    group.isolate(behind.member)
    added = group.add(4)
    group.cut |= {(behind.member, 4), (4, behind.member)}
    for changes in ("l4", "v4", f"r{moved.member}"):
        token = change(group, leader, MembershipChange(parse_changes(changes)))
        group.tick(10)
        assert leader.answers[token] == Changed()
    stored = group.produce(leader)
    group.tick(2)
    assert isinstance(leader.answers[early], Produced)
    assert isinstance(leader.answers[stored], Produced)
    moved.is_up = False
    back = group.add(member_of(moved.member, 0, stay=1))
    cut_copies_short(group, to=back.member, before=behind.log.edge.next_index)
    change(group, leader, MembershipChange(parse_changes(f"l{back.member}")))
    group.tick(10)
    assert back.replica.configuration.members, "it has been spoken to"
    assert back.log.edge.next_index <= behind.log.edge.next_index, "and is copied"
    leader.is_up = added.is_up = False
    group.heal()
    group.tick(200)
    assert not behind.replica.is_leader
    assert not back.replica.is_leader
    leader.is_up = added.is_up = True
    group.tick(100)
    assert behind.log.edge == leader.log.edge == back.log.edge


def cut_copies_short(group: Group, to: int, before: int) -> None:
    """Let that member get no entry from this index on, until the cuts are healed."""
    send = group.send

    def short(sender: int, effect: Send) -> None:
        mail = effect.mail
        if effect.to == to and group.cut and isinstance(mail, Consensus):
            kept = tuple(entry for entry in mail.message.entries if entry.index < before)
            if kept != tuple(mail.message.entries):
                effect = Send(to, Consensus(mail.message._replace(entries=kept)))
        send(sender, effect)

    group.send = short
