"""Idle groups sleep, and are there again when somebody needs them."""

from contextlib import suppress

import pytest

from quivermq.batches import Index
from quivermq.errors import NotLeader
from quivermq.log.layout import SEGMENT_HEADER_BYTES
from quivermq.queue import TopicSettings
from quivermq.raft import MembershipChange, parse_changes
from quivermq.replica import (
    Produced,
    ReadReady,
    Replica,
    ReplicaSettings,
    Rouse,
    Send,
    Sleep,
)
from tests.replica.group import Group, Node, batch

TICKS = 5
SOON = ReplicaSettings(sleep_ticks=TICKS)
ELECTION = SOON.election_ticks


def asleep(members: int = 3, settings: ReplicaSettings = SOON) -> Group:
    """A group that has stored something and has fallen asleep."""
    group = Group(members, settings)
    group.produce(group.leader())
    group.tick(settings.sleep_ticks + settings.election_ticks)
    assert all(node.replica.is_asleep for node in group.nodes.values())
    return group


def visit_desk(replica: Replica) -> None:
    with suppress(NotLeader):
        replica.with_leases(lambda leases: leases.working_copy.committed("readers"), None, 0, 0)


def sleepers(group: Group) -> list[int]:
    return [member for member, node in group.nodes.items() if node.replica.is_asleep]


def leader_of(group: Group) -> Node:
    return next(node for node in group.nodes.values() if node.replica.is_leader)


def followers_of(group: Group) -> list[Node]:
    return [node for node in group.nodes.values() if not node.replica.is_leader]


@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_an_idle_group_falls_asleep_and_then_says_and_does_nothing(members: int) -> None:
    group = asleep(members)
    for _ in range(100):
        for node in group.nodes.values():
            node.replica.tick(group.now_ms)
            assert not node.replica.take_effects()
            node.replica.validate()
    assert len(sleepers(group)) == members
    terms = {node.replica.term for node in group.nodes.values()}
    assert len(terms) == 1


def test_a_group_in_use_does_not_fall_asleep() -> None:
    group = Group(3, SOON)
    leader = group.leader()
    for _ in range(4 * TICKS):
        group.tick(TICKS - 1)
        assert not sleepers(group)
        group.produce(leader)


def test_reads_at_a_follower_keep_the_group_awake() -> None:
    group = Group(3, SOON)
    group.leader()
    group.tick()
    for _ in range(4 * TICKS):
        followers_of(group)[0].replica.read(group.token())
        group.settle()
        group.tick(TICKS - 1)
        assert not sleepers(group)


def test_with_sleep_ticks_zero_no_replica_sleeps() -> None:
    group = Group(3, ReplicaSettings(sleep_ticks=0))
    group.leader()
    group.tick(100)
    assert not sleepers(group)


@pytest.mark.parametrize("members", [1, 3])
def test_a_sleeping_leader_stores_a_batch_at_once_and_wakes_the_others(members: int) -> None:
    group = asleep(members)
    leader = leader_of(group)
    assert isinstance(leader.answers[group.produce(leader)], Produced)
    assert not sleepers(group)
    group.tick(3 * ELECTION)
    assert leader.replica.is_leader, "sleep is no reason to step down"
    assert len(sleepers(group)) == members


def test_a_read_at_a_sleeping_follower_is_answered() -> None:
    group = asleep()
    follower = followers_of(group)[0]
    token = group.token()
    follower.replica.read(token)
    group.settle()
    assert isinstance(follower.answers[token], ReadReady)


def test_a_leader_that_wakes_sends_heartbeats_with_its_next_tick() -> None:
    group = asleep()
    leader = leader_of(group)
    leader.replica.wake()
    group.tick()
    assert not sleepers(group)
    group.tick(3 * ELECTION)
    assert leader_of(group) is leader
    assert leader.replica.term == followers_of(group)[0].replica.term
    assert len(sleepers(group)) == 3


def test_waking_is_safe_at_any_time_and_in_any_state() -> None:
    group = Group(3, SOON)
    for _ in range(60):
        for node in group.nodes.values():
            node.replica.wake()
        group.tick()
    leader = group.leader()
    assert not sleepers(group), "who is woken at every tick never sleeps"
    assert isinstance(leader.answers[group.produce(leader)], Produced)


def test_a_woken_leader_without_a_quorum_steps_down_within_an_election_timeout() -> None:
    group = asleep()
    leader = leader_of(group)
    group.isolate(leader.member)
    group.tick(ELECTION - 1)
    assert leader.replica.is_leader, "it has a whole election timeout to hear a quorum"
    group.tick()
    assert not leader.replica.is_leader


def test_a_woken_follower_waits_a_whole_election_timeout() -> None:
    group = asleep()
    leader_of(group).is_up = False
    waited = 0
    while not any(node.replica.is_leader for node in group.nodes.values() if node.is_up):
        group.tick()
        waited += 1
    assert ELECTION <= waited <= 2 * ELECTION + 2


def test_a_sleeping_leader_that_dies_is_succeeded_once_its_node_is_missed() -> None:
    group = asleep()
    dead = leader_of(group)
    dead.is_up = False
    successor = group.leader()
    assert successor is not dead
    assert isinstance(successor.answers[group.produce(successor)], Produced)


def test_a_member_that_missed_the_sleep_message_wakes_the_others_without_an_election() -> None:
    group = Group(3, SOON)
    group.produce(group.leader())
    leader = leader_of(group)
    deaf = followers_of(group)[0]
    term = leader.replica.term
    while not leader.replica.is_asleep:
        group.now_ms += 100
        for node in group.nodes.values():
            node.replica.tick(group.now_ms)
            for effect in node.replica.take_effects():
                is_lost = effect.to == deaf.member and isinstance(effect.mail, Sleep)
                if not is_lost:
                    group.send(node.member, effect)
        group.settle()
    assert not deaf.replica.is_asleep
    group.tick(2 * ELECTION + TICKS + 2)
    assert len(sleepers(group)) == 3
    assert (leader_of(group), leader.replica.term) == (leader, term)


def test_a_follower_sleeps_only_on_its_leaders_word_about_all_that_it_has() -> None:
    group = Group(3, ReplicaSettings(sleep_ticks=0))
    group.produce(group.leader())
    group.tick(3)
    leader = leader_of(group)
    follower, other = followers_of(group)
    term, index = leader.replica.term, leader.replica.applied_index
    for sender, word in (
        (leader.member, Sleep(term - 1, index)),
        (leader.member, Sleep(term + 1, index)),
        (leader.member, Sleep(term, Index(index - 1))),
        (leader.member, Sleep(term, Index(index + 1))),
        (other.member, Sleep(term, index)),
    ):
        follower.replica.receive(sender, word)
        assert not follower.replica.is_asleep, word
    leader.replica.receive(leader.member, Sleep(term, index))
    assert not leader.replica.is_asleep
    follower.replica.receive(leader.member, Sleep(term, index))
    assert follower.replica.is_asleep
    follower.replica.receive(other.member, Sleep(term, index))
    assert not follower.replica.is_asleep, "a word that is not for it wakes a sleeper"


def test_a_follower_with_work_under_way_does_not_sleep() -> None:
    group = Group(3, ReplicaSettings(sleep_ticks=0))
    leader = group.leader()
    group.tick(3)
    follower = followers_of(group)[0]
    follower.is_held = True
    group.produce(leader)
    group.tick()
    word = Sleep(leader.replica.term, leader.replica.applied_index)
    follower.replica.receive(leader.member, word)
    assert not follower.replica.is_asleep, "its disk has not stored what it knows"
    follower.is_held = False
    group.tick(2)
    token = group.token()
    follower.replica.read(token)
    follower.replica.receive(leader.member, word)
    assert not follower.replica.is_asleep, "a read waits"
    group.settle()
    follower.replica.receive(leader.member, word)
    assert follower.replica.is_asleep


def test_a_leader_does_not_sleep_while_a_member_gives_no_sign_of_life() -> None:
    group = Group(3, ReplicaSettings(sleep_ticks=ELECTION + TICKS))
    leader = group.leader()
    group.tick(2)
    silent = followers_of(group)[0]
    send = group.send
    group.send = lambda sender, effect: sender != silent.member and send(sender, effect)
    group.tick(5 * ELECTION)
    assert leader.replica.lag_of(silent.member) == 0
    assert not sleepers(group)
    group.send = send
    group.tick(ELECTION + TICKS + 2)
    assert len(sleepers(group)) == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda replica: replica.produce(1, batch(b"x"), 0),
        lambda replica: replica.read(1),
        lambda replica: replica.change_catalog(1, 0, {}, (), 0),
        visit_desk,
        lambda replica: replica.change_settings(1, TopicSettings(), 0),
        lambda replica: replica.change_membership(1, MembershipChange(parse_changes("l9"))),
        lambda replica: replica.transfer_leader(2),
        lambda replica: replica.wake(),
    ],
)
@pytest.mark.parametrize("is_leader", [True, False])
def test_whatever_a_sleeper_is_asked_wakes_it(ask, is_leader: bool) -> None:
    group = asleep()
    node = leader_of(group) if is_leader else followers_of(group)[0]
    ask(node.replica)
    assert not node.replica.is_asleep


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_group_sleeps_while_a_minority_is_away_and_wakes_when_it_is_back(is_behind: bool) -> None:
    group = Group(3, SOON)
    leader = group.leader()
    group.tick(2)
    away = followers_of(group)[0]
    away.is_up = False
    if is_behind:
        group.produce(leader)
    group.tick(5 * ELECTION)
    assert sorted(sleepers(group)) == sorted({1, 2, 3} - {away.member})
    # It was paused and knows nothing of it: only the leader's broker notices.
    away.is_up = True
    group.tick(2)
    assert away.replica.applied_index == leader.replica.applied_index
    group.tick(2 * ELECTION + TICKS)
    assert len(sleepers(group)) == 3
    assert leader_of(group) is leader


def test_a_leader_whose_majority_is_away_does_not_sleep_but_steps_down() -> None:
    group = Group(3, SOON)
    leader = group.leader()
    group.tick(2)
    one, other = followers_of(group)
    one.is_up = False
    group.tick(5 * ELECTION)
    assert leader.replica.is_asleep
    other.is_up = False
    group.tick(ELECTION)
    assert not leader.replica.is_leader
    group.tick(5 * ELECTION)
    assert not leader.replica.is_asleep


def test_a_leader_does_not_fall_asleep_without_a_majority() -> None:
    group = Group(3, SOON)
    leader = group.leader()
    group.tick(2)
    others = {node.member for node in followers_of(group)}
    for _ in range(2 * ELECTION):
        leader.replica.tick(group.now_ms, others)
        leader.replica.take_effects()
        assert not leader.replica.is_asleep
    assert not leader.replica.is_leader


def test_a_follower_whose_leaders_node_is_silent_can_succeed_at_once() -> None:
    group = asleep()
    dead = leader_of(group)
    dead.is_up = False
    heir, other = followers_of(group)
    heir.replica.campaign()
    group.settle()
    assert not heir.replica.is_leader, "it believes in its leader, and so does the other"
    for node in (heir, other):
        node.replica.lose_leader()
    heir.replica.campaign()
    group.settle()
    assert heir.replica.is_leader


def test_a_leader_that_sleeps_while_one_is_away_answers_no_read_once_it_is_deposed() -> None:
    group = Group(3, SOON)
    former = group.leader()
    group.tick(2)
    other = followers_of(group)[0]
    group.cut |= {(former.member, other.member), (other.member, former.member)}
    group.tick(5 * ELECTION)
    assert former.replica.is_asleep
    # The others elect one of them, and the sleeper is told nothing.
    third = next(node for node in followers_of(group) if node is not other)
    group.isolate(former.member)
    third.replica.wake()
    while not any(node.replica.is_serving for node in (other, third)):
        for node in (other, third):
            node.replica.tick(group.now_ms)
        group.settle()
    successor = next(node for node in (other, third) if node.replica.is_serving)
    assert isinstance(successor.answers[group.produce(successor)], Produced)
    assert former.replica.is_asleep, "it believes that it leads"
    token = group.token()
    former.replica.read(token)
    group.tick(ELECTION // 2)
    assert token not in former.answers
    group.heal()
    group.tick(2 * ELECTION)
    assert isinstance(former.answers[token], NotLeader)


def test_a_leader_does_not_sleep_while_a_member_that_answers_has_yet_to_write() -> None:
    group = Group(3, SOON)
    leader = group.leader()
    group.tick(2)
    slow = followers_of(group)[0]
    slow.is_held = True
    group.produce(leader)
    group.tick(5 * ELECTION)
    assert leader.replica.lag_of(slow.member) == 1
    assert not leader.replica.is_asleep
    slow.is_held = False
    group.tick(2 * ELECTION + TICKS)
    assert len(sleepers(group)) == 3


def test_answers_to_heartbeats_of_before_do_not_wake_a_leader() -> None:
    group = Group(3, SOON)
    group.leader()
    group.tick(2)
    leader = leader_of(group)
    late: list[tuple[int, Send]] = []
    while not leader.replica.is_asleep:
        group.now_ms += 100
        for node in group.nodes.values():
            node.replica.tick(group.now_ms)
        for node in group.nodes.values():
            node.pump()
        # Everything takes a tick to arrive.
        due, late = late, list(group.mail)
        group.mail.clear()
        for sender, effect in due:
            group[effect.to].replica.receive(sender, effect.mail)
    for _ in range(3):
        for sender, effect in late:
            group[effect.to].replica.receive(sender, effect.mail)
        for node in group.nodes.values():
            node.pump()
        late = list(group.mail)
        group.mail.clear()
    assert len(sleepers(group)) == 3
    assert not late


def test_a_restarted_member_is_taken_in_again_and_the_group_sleeps_on() -> None:
    group = asleep()
    for node in list(group.nodes.values()):
        node.restart()
        group.tick(5 * ELECTION)
        assert len(sleepers(group)) == 3
        assert len({n.replica.applied_index for n in group.nodes.values()}) == 1


def test_a_learner_that_restarted_unnoticed_wakes_the_leader() -> None:
    group = Group(3, SOON)
    leader = group.leader()
    group.add(4)
    token = group.token()
    leader.replica.change_membership(token, MembershipChange(parse_changes("l4")))
    group.tick(ELECTION + TICKS)
    assert len(sleepers(group)) == 4
    learner = group[4]
    learner.restart(is_noticed=False)
    assert learner.replica.leader == 0
    group.tick(2 * ELECTION + 2)
    assert learner.replica.leader == leader.member
    assert learner.replica.applied_index == leader.replica.applied_index
    group.tick(ELECTION + TICKS)
    assert len(sleepers(group)) == 4


def test_followers_of_a_leader_that_cannot_know_what_it_lost_elect_another() -> None:
    group = asleep()
    lost = leader_of(group)
    (segment,) = [path for path in lost.disk.paths() if path.endswith(".seg")]
    lost.disk.replace_content(segment, lost.disk.content(segment)[:300])
    lost.restart(is_noticed=False)
    assert lost.replica.is_lost
    assert group.leader() is not lost


def test_a_mending_replica_never_sleeps_and_rouses_its_peers() -> None:
    group = asleep()
    node = followers_of(group)[0]
    (segment,) = [p for p in node.disk.paths() if p.endswith(".seg")]
    node.disk.flip_bit(segment, 8 * (SEGMENT_HEADER_BYTES + 20))
    node.restart()
    assert node.replica.is_repairing
    rouses: list[int] = []
    for _ in range(2 * ELECTION):
        node.replica.tick(group.now_ms)
        assert not node.replica.is_asleep
        rouses += [
            effect.to
            for effect in node.replica.take_effects()
            if isinstance(effect, Send) and isinstance(effect.mail, Rouse)
        ]
    assert sorted(rouses) == sorted([other for other in group.nodes if other != node.member] * 2)


def test_a_rouse_wakes_and_does_nothing_else() -> None:
    group = asleep()
    leader = leader_of(group)
    leader.replica.receive(followers_of(group)[0].member, Rouse())
    assert not leader.replica.is_asleep
    assert not leader.replica.take_effects()


def test_a_group_that_lost_power_in_its_sleep_goes_on() -> None:
    group = asleep()
    for node in group.nodes.values():
        node.restart(power=True)
    leader = group.leader()
    assert leader.answers[group.produce(leader, batch(b"more"))].base_offset == 1
