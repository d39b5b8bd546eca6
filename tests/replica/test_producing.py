"""Producing through a replica: who may, what is answered, and what is never stored twice."""

import pytest

from quivermq.batches import Frame, FrameKind, Index, Origin, decode_messages, encode_batch
from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.errors import (
    Corrupt,
    Fenced,
    InvalidRequest,
    NotLeader,
    OutOfSequence,
    Overloaded,
    Timeout,
)
from quivermq.queue import PRODUCERS_MAX, TopicSettings, priority_index
from quivermq.replica import Changed, Persist, Produced, ReplicaSettings
from tests.replica.group import Group, Node, batch


def values(node: Node) -> list[bytes]:
    """Every message in a node's log."""
    frames = node.log.frames(node.log.first_index)
    data = [frame for frame in frames if frame.header.kind == FrameKind.DATA]
    return [message.value for frame in data for message in decode_messages(frame)]


def test_a_batch_is_answered_with_its_offsets_once_it_is_on_a_majority() -> None:
    group = Group(3)
    leader = group.leader()
    first = group.produce(leader, batch(b"a", b"b"))
    second = group.produce(leader, batch(b"c"))
    assert leader.answers[first] == Produced(0, 2, group.now_ms, is_repeat=False)
    assert leader.answers[second].base_offset == 2
    group.tick()
    assert [values(node) for node in group.nodes.values()] == [[b"a", b"b", b"c"]] * 3


def test_nothing_is_acknowledged_before_it_is_durable_on_a_majority() -> None:
    group = Group(3)
    leader = group.leader()
    followers = [node for node in group.nodes.values() if node is not leader]
    for node in group.nodes.values():
        node.is_held = True
    token = group.produce(leader)
    assert any(isinstance(work, Persist) for work in leader.work)
    leader.is_held = False
    group.settle()
    assert token not in leader.answers, "one disk of three is no majority"
    followers[0].is_held = False
    group.settle()
    assert isinstance(leader.answers[token], Produced)


def test_a_leader_counts_itself_only_after_its_own_fsync() -> None:
    group = Group(3)
    leader = group.leader()
    leader.is_held = True
    other = next(node for node in group.nodes.values() if node is not leader)
    other.is_held = True
    token = group.produce(leader)
    assert token not in leader.answers
    leader.is_held = False
    group.settle()
    assert isinstance(leader.answers[token], Produced)


def test_a_follower_counts_only_after_its_own_fsync() -> None:
    group = Group(3)
    leader = group.leader()
    followers = [node for node in group.nodes.values() if node is not leader]
    for node in followers:
        node.is_held = True
    token = group.produce(leader)
    assert token not in leader.answers, "one disk of three is no majority"
    followers[0].is_held = False
    group.settle()
    assert isinstance(leader.answers[token], Produced)


def test_only_a_leader_takes_batches_and_the_others_name_it() -> None:
    group = Group(3)
    leader = group.leader()
    group.tick(2)
    for node in group.nodes.values():
        if node is not leader:
            refusal = node.answers[group.produce(node)]
            assert isinstance(refusal, NotLeader)
            assert refusal.leader == leader.member


def test_a_new_leader_takes_nothing_before_it_has_applied_all_before_its_term() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    others = [node for node in group.nodes.values() if node is not leader]
    leader.is_up = False
    for node in others:
        node.is_held = True
    while not any(node.replica.is_leader for node in others):
        group.tick()
        for node in others:
            # Votes may be stored, so that an election ends; entries may not.
            while node.work and isinstance(node.work[0], Persist) and not node.work[0].frames:
                node._work_once()
        group.settle()
    elected = next(node for node in others if node.replica.is_leader)
    assert not elected.replica.is_serving
    assert isinstance(elected.answers[group.produce(elected)], NotLeader)
    for node in others:
        node.is_held = False
    group.settle()
    assert elected.replica.is_serving
    assert elected.answers[group.produce(elected)].base_offset == 1


def test_a_repeat_of_a_stored_batch_gets_the_first_offsets_from_any_leader() -> None:
    group = Group(3)
    leader = group.leader()
    first = leader.answers[group.produce(leader, batch(b"a", b"b", producer=9))]
    again = leader.answers[group.produce(leader, batch(b"a", b"b", producer=9))]
    assert (again.base_offset, again.is_repeat) == (first.base_offset, True)
    leader.is_up = False
    successor = group.leader()
    retried = successor.answers[group.produce(successor, batch(b"a", b"b", producer=9))]
    assert (retried.base_offset, retried.is_repeat) == (first.base_offset, True)
    assert values(successor) == [b"a", b"b"]


def test_a_repeat_of_a_batch_in_flight_waits_with_it_and_is_stored_once() -> None:
    group = Group(3)
    leader = group.leader()
    leader.is_held = True
    for node in group.nodes.values():
        node.is_held = True
    tokens = [group.produce(leader, batch(b"once", producer=9)) for _ in range(3)]
    assert not set(tokens) & set(leader.answers)
    for node in group.nodes.values():
        node.is_held = False
    group.settle()
    assert {leader.answers[token].base_offset for token in tokens} == {0}
    assert values(leader) == [b"once"]


def test_gaps_and_old_epochs_are_refused_in_flight_too() -> None:
    group = Group(1)
    leader = group.leader()
    leader.is_held = True
    group.produce(leader, batch(b"a", producer=9, epoch=3))
    group.produce(leader, batch(b"b", producer=9, epoch=3, sequence=1))
    gap = group.produce(leader, batch(b"d", producer=9, epoch=3, sequence=3))
    zombie = group.produce(leader, batch(b"z", producer=9, epoch=2))
    assert isinstance(leader.answers[gap], OutOfSequence)
    assert leader.answers[gap].expected == 2
    assert isinstance(leader.answers[zombie], Fenced)
    leader.is_held = False
    group.settle()
    assert values(leader) == [b"a", b"b"]


def test_a_lying_or_foreign_body_is_refused_before_it_is_proposed() -> None:
    group = Group(1)
    leader = group.leader()
    good = batch(b"a", b"b")
    liar = Frame(good.header._replace(count=3), good.body)
    assert isinstance(leader.answers[group.produce(leader, liar)], Corrupt)
    noop = Frame.of(FrameKind.NOOP)
    assert isinstance(leader.answers[group.produce(leader, noop)], InvalidRequest)
    assert values(leader) == []


def test_past_the_bound_producers_are_told_to_come_back() -> None:
    group = Group(1, ReplicaSettings(proposals_max=3))
    leader = group.leader()
    leader.is_held = True
    tokens = [group.produce(leader) for _ in range(5)]
    refused = [leader.answers[token] for token in tokens[3:]]
    assert all(isinstance(refusal, Overloaded) for refusal in refused)
    leader.is_held = False
    group.settle()
    assert [leader.answers[token].base_offset for token in tokens[:3]] == [0, 1, 2]
    assert isinstance(leader.answers[group.produce(leader)], Produced)


def test_what_the_core_refuses_is_as_if_it_had_never_come() -> None:
    """Batches behind a refused one are refused too, or their producer's sequence had a gap."""
    group = Group(1, ReplicaSettings(uncommitted_bytes_max=3000, message_bytes_max=1000))
    leader = group.leader()
    leader.is_held = True
    sizes = (1500, 1500, 400, 10)
    tokens = []
    for sequence, size in enumerate(sizes):
        tokens.append(group.token())
        frame = batch(b"x" * size, producer=9, sequence=sequence)
        leader.replica.produce(tokens[-1], frame, group.now_ms)
    group.settle()
    leader.is_held = False
    group.settle()
    outcomes = [type(leader.answers[token]) for token in tokens]
    assert Overloaded in outcomes
    stored = outcomes.index(Overloaded)
    assert outcomes == [Produced] * stored + [Overloaded] * (4 - stored)
    for sequence in range(stored, 4):
        frame = batch(b"x" * sizes[sequence], producer=9, sequence=sequence)
        assert isinstance(leader.answers[group.produce(leader, frame)], Produced)
    assert [len(value) for value in values(leader)] == list(sizes)


def test_batches_that_arrive_together_are_written_together() -> None:
    group = Group(3)
    leader = group.leader()
    leader.is_held = True
    tokens = [group.token() for _ in range(20)]
    for token in tokens:
        leader.replica.produce(token, batch(b"m%d" % token), group.now_ms)
    group.settle()
    writes = [work for work in leader.work if isinstance(work, Persist) and work.frames]
    assert [len(work.frames) for work in writes] == [20]
    leader.is_held = False
    group.settle()
    assert [leader.answers[token].base_offset for token in tokens] == list(range(20))


def store_of_each(group: Group, leader: Node, producers: range) -> None:
    """One batch of each of these producers, as many under way at a time as there may be."""
    for first in range(producers.start, producers.stop, 1_000):
        tokens = {}
        for producer in producers[first - producers.start :][:1_000]:
            tokens[producer] = group.token()
            leader.replica.produce(tokens[producer], batch(b"", producer=producer), group.now_ms)
        group.settle()
        for token in tokens.values():
            assert isinstance(leader.answers[token], Produced)


def test_there_is_always_room_for_a_new_producer() -> None:
    group = Group(1)
    leader = group.leader()
    store_of_each(group, leader, range(1, PRODUCERS_MAX + 51))
    again = leader.answers[group.produce(leader, batch(b"", producer=51))]
    assert again.is_repeat, "the last ones are all remembered"
    gone = leader.answers[group.produce(leader, batch(b"", producer=50, sequence=1))]
    assert isinstance(gone, OutOfSequence)
    assert gone.expected == 0


def test_a_producer_that_is_forgotten_with_a_batch_in_flight_goes_on_behind_it() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader, batch(b"a", producer=10**6))
    store_of_each(group, leader, range(1, PRODUCERS_MAX))
    # Both are taken in before either is applied; the first one makes the other forgotten.
    others, mine, later = (group.token() for _ in range(3))
    leader.replica.produce(others, batch(b"b", producer=10**6 + 1), group.now_ms)
    leader.replica.produce(mine, batch(b"c", producer=10**6, sequence=1), group.now_ms)
    leader.replica.produce(later, batch(b"d", producer=10**6, sequence=2), group.now_ms)
    group.settle()
    offsets = [leader.answers[token].base_offset for token in (others, mine, later)]
    assert offsets == [offsets[0], offsets[0] + 1, offsets[0] + 2]
    repeat = leader.answers[group.produce(leader, batch(b"d", producer=10**6, sequence=2))]
    assert (repeat.base_offset, repeat.is_repeat) == (offsets[2], True)
    long_ago = leader.answers[group.produce(leader, batch(b"a", producer=10**6))]
    assert isinstance(long_ago, InvalidRequest), "not stored again"


def test_a_leader_that_is_deposed_says_that_it_does_not_know() -> None:
    group = Group(3)
    leader = group.leader()
    group.isolate(leader.member)
    token = group.produce(leader, batch(b"unsure", producer=9))
    assert token not in leader.answers
    group.tick(25)
    assert isinstance(leader.answers[token], Timeout)
    group.heal()
    successor = group.leader()
    retried = successor.answers[group.produce(successor, batch(b"unsure", producer=9))]
    assert retried == Produced(retried.base_offset, 1, retried.timestamp_ms, is_repeat=False)
    group.tick(5)
    assert values(leader) == values(successor) == [b"unsure"]


def test_time_in_the_log_never_goes_back_whatever_the_clock_does() -> None:
    group = Group(1)
    leader = group.leader()
    stamps = []
    for jump in (0, 3_600_000, -3_600_000, 5):
        group.now_ms += jump
        stamps.append(leader.answers[group.produce(leader)].timestamp_ms)
    assert stamps == sorted(stamps)
    assert stamps[1] == stamps[2]


def test_settings_are_replicated_and_bad_ones_refused() -> None:
    group = Group(3)
    leader = group.leader()
    token, wrong = group.token(), group.token()
    leader.replica.change_settings(token, TopicSettings(retention_ms=5), group.now_ms)
    leader.replica.change_settings(wrong, TopicSettings(max_deliveries=0), group.now_ms)
    group.settle()
    group.tick()
    assert leader.answers[token] == Changed()
    assert isinstance(leader.answers[wrong], InvalidRequest)
    for node in group.nodes.values():
        assert node.replica._live.partition.settings.retention_ms == 5


@pytest.mark.parametrize("power", [False, True])
def test_everything_acknowledged_is_there_after_all_restart(power: bool) -> None:
    group = Group(3)
    leader = group.leader()
    sent = [b"message %d" % number for number in range(40)]
    for value in sent:
        group.produce(leader, batch(value))
    for node in group.nodes.values():
        node.restart(power=power)
    leader = group.leader()
    assert values(leader) == sent
    assert leader.answers[group.produce(leader)].base_offset == 40
    assert leader.log.read(Index(leader.log.index_of_offset(40)))


@pytest.mark.parametrize("hours", [1, 25, 24 * 400, 10**9, -1, -25, -(10**6)])
def test_a_clock_that_jumps_neither_stores_a_batch_twice_nor_breaks_the_order(hours: int) -> None:
    group = Group(3)
    leader = group.leader()
    first = leader.answers[group.produce(leader, batch(b"a", producer=9))]
    right_ms = group.now_ms
    group.now_ms = max(0, right_ms + hours * 3_600_000)
    group.produce(leader, batch(b"b", producer=8))
    group.now_ms = right_ms + 1_000
    again = leader.answers[group.produce(leader, batch(b"a", producer=9))]
    assert (again.base_offset, again.is_repeat) == (first.base_offset, True)
    token = group.produce(leader, batch(b"c", producer=9, sequence=1))
    assert leader.answers[token].base_offset == 2
    group.tick(3)
    assert values(leader) == [b"a", b"b", b"c"]


def test_an_epoch_in_flight_counts_again_when_a_newer_one_is_refused() -> None:
    group = Group(3, ReplicaSettings(uncommitted_bytes_max=2000))
    leader = group.leader()
    for node in group.nodes.values():
        node.is_held = True
    first = group.produce(leader, batch(b"a" * 1500, producer=9))
    newer = group.produce(leader, batch(b"b" * 1500, producer=9, epoch=1))
    again = group.produce(leader, batch(b"a" * 1500, producer=9))
    for node in group.nodes.values():
        node.is_held = False
    group.settle()
    assert isinstance(leader.answers[newer], Overloaded)
    assert leader.answers[first] == leader.answers[again], "it joined the one in flight"
    assert values(leader) == [b"a" * 1500]


def test_commands_and_joined_repeats_are_bounded_too() -> None:
    group = Group(3, ReplicaSettings(proposals_max=5))
    leader = group.leader()
    for node in group.nodes.values():
        node.is_held = True
    repeats = [group.produce(leader, batch(b"a", producer=9)) for _ in range(10)]
    assert [token in leader.answers for token in repeats] == [False] * 5 + [True] * 5
    command = group.token()
    leader.replica.change_settings(command, TopicSettings(), group.now_ms)
    group.settle()
    assert isinstance(leader.answers[command], Overloaded)
    for node in group.nodes.values():
        node.is_held = False
    group.settle()
    assert isinstance(leader.answers[group.produce(leader)], Produced), "there is room again"


def test_a_clock_far_in_the_future_stops_no_consumer() -> None:
    group = Group(3)
    leader = group.leader()
    group.now_ms = 10**15
    token = group.produce(leader)
    assert leader.answers[token].timestamp_ms == TIMESTAMP_MS_MAX


def test_another_body_under_a_number_that_is_taken_is_refused() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader, batch(b"mine", producer=9))
    stored = group.produce(leader, batch(b"else", producer=9))
    for node in group.nodes.values():
        node.is_held = True
    group.produce(leader, batch(b"mine", producer=9, sequence=1))
    in_flight = group.produce(leader, batch(b"else", producer=9, sequence=1))
    for token in (stored, in_flight):
        assert isinstance(leader.answers[token], InvalidRequest)


def test_delayed_batches_are_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_index, "DELAYED_MAX", 2)
    group = Group(1)
    leader = group.leader()
    delayed = encode_batch([b"a"], origin=Origin(not_before_ms=group.now_ms + 60_000))
    tokens = [group.produce(leader, delayed) for _ in range(3)]
    assert [type(leader.answers[token]) for token in tokens] == [Produced, Produced, Overloaded]
    assert isinstance(leader.answers[group.produce(leader, batch(b"b"))], Produced)
