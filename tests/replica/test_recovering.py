"""Replicas that are behind, new, restarted or damaged."""

import time
from dataclasses import replace
from random import Random

import pytest

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.errors import Corrupt, NotLeader, Overloaded, Timeout
from quivermq.log import Damage
from quivermq.log.disk import Unreadable
from quivermq.log.layout import SEGMENT_HEADER_BYTES
from quivermq.queue import Partition, catalog_command
from quivermq.raft import Configuration, MembershipChange, parse_changes
from quivermq.raft import MessageKind as Said
from quivermq.replica import (
    Changed,
    Chunk,
    Consensus,
    EntriesReply,
    EntriesRequest,
    Offer,
    Produced,
    ReadReady,
    Repair,
    Replica,
    ReplicaSettings,
    ReplicaState,
    Rouse,
    Send,
    TransferEnded,
    carry_out,
    newest_state,
)
from quivermq.testing.simulated_disk import SimulatedFile
from tests.replica.group import FOLDER, Group, Node, batch


def filled(members: int = 3, batches: int = 60, settings: ReplicaSettings | None = None) -> Group:
    group = Group(members, settings)
    leader = group.leader()
    for number in range(batches):
        group.produce(leader, batch(b"m%d" % number, producer=4, sequence=number))
    group.tick(2)
    return group


def agree(group: Group) -> bool:
    """Whether all live replicas have applied the same."""
    return (
        len({(n.replica.applied_index, n.replica.digest) for n in group.nodes.values() if n.is_up})
        == 1
    )


def follower_of(group: Group) -> Node:
    leader = group.leader()
    return next(node for node in group.nodes.values() if node is not leader)


def segments(node: Node) -> list[str]:
    return [path for path in node.disk.paths() if path.endswith(".seg")]


def test_a_checkpoint_is_kept_beside_every_segment() -> None:
    group = filled()
    for node in group.nodes.values():
        assert len(node.log.segment_starts) > 3
        assert node.log.checkpoints() == node.log.segment_starts


def test_checkpoints_of_all_replicas_are_the_same_bytes() -> None:
    group = filled()
    first, *others = group.nodes.values()
    for index in first.log.checkpoints():
        data = first.log.load_checkpoint(index).data
        assert all(node.log.load_checkpoint(index).data == data for node in others)


def test_a_restart_replays_from_the_newest_checkpoint_to_the_same_state() -> None:
    group = filled()
    digest = group.leader().replica.digest
    for node in group.nodes.values():
        node.restart()
        start = newest_state(node.log).partition.applied_index
        assert start + 1 == node.log.checkpoints()[-1]
    group.leader()
    group.tick(3)
    assert agree(group)
    again = group.produce(group.leader(), batch(b"m5", producer=4, sequence=5))
    assert group.leader().answers[again].is_repeat, "dedup survived"
    assert digest != 0


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one() -> None:
    group = filled()
    node = follower_of(group)
    newest = [path for path in node.disk.paths() if path.endswith(".ckpt")][-1]
    node.disk.flip_bit(newest, 8 * 100)
    node.restart()
    group.tick(3)
    assert agree(group)


def test_without_any_readable_checkpoint_a_replica_does_not_start() -> None:
    group = filled()
    node = follower_of(group)
    for path in node.disk.paths():
        if ".ckpt" in path:
            node.disk.flip_bit(path, 8 * 100)
    with pytest.raises(Corrupt, match="no checkpoint is readable"):
        node.restart()


def group_with_one_behind(message_bytes_max: int) -> tuple[Group, Node, Node]:
    """A group, its leader, and a member that was down while the others went on and dropped."""
    group = filled(batches=10, settings=ReplicaSettings(message_bytes_max=message_bytes_max))
    lagging = follower_of(group)
    lagging.is_up = False
    leader = group.leader()
    for number in range(10, 80):
        group.produce(leader, batch(b"m%d" % number, producer=4, sequence=number))
    for node in group.nodes.values():
        if node is not lagging:
            assert node.log.drop_before(Index(60)) > 40
    lagging.restart()
    return group, leader, lagging


def test_a_replica_behind_the_kept_log_gets_a_checkpoint_in_parts() -> None:
    group, leader, lagging = group_with_one_behind(message_bytes_max=300)
    parts = record(group, Chunk)
    group.tick(20)
    assert len(parts) > 3
    assert all(len(part.data) <= 300 for part in parts)
    assert agree(group)
    assert lagging.log.first_index == leader.log.first_index


def record(group: Group, kind: type) -> list:
    """Every mail of a kind that is sent from now on."""
    seen = []
    send = group.send

    def watch(sender: int, effect: Send) -> None:
        if isinstance(effect.mail, kind):
            seen.append(effect.mail)
        send(sender, effect)

    group.send = watch
    return seen


def lose_mail(group: Group, kind: type, every: int) -> None:
    """Lose one of `every` mails of a kind."""
    send, count = group.send, 0

    def lossy(sender: int, effect: Send) -> None:
        nonlocal count
        count += isinstance(effect.mail, kind)
        if not (isinstance(effect.mail, kind) and count % every == 0):
            send(sender, effect)

    group.send = lossy


def test_a_transfer_survives_lost_parts_and_a_change_of_leader() -> None:
    group, leader, lagging = group_with_one_behind(message_bytes_max=200)
    lose_mail(group, Chunk, every=4)
    while lagging.replica._receiving is None or len(lagging.replica._receiving.data) < 400:
        group.tick()
    other = next(n for n in group.nodes.values() if n not in {leader, lagging})
    leader.replica.transfer_leader(other.member)
    group.settle()
    group.tick(60)
    assert group.leader() is other
    assert agree(group)


def test_a_checkpoint_that_arrives_damaged_is_not_taken() -> None:
    group = filled(batches=40)
    leader, newcomer = group.leader(), group.add(4)
    leader.log.drop_before(Index(30))
    send = group.send
    spoilt = []

    def spoil(sender: int, effect: Send) -> None:
        mail = effect.mail
        if isinstance(mail, Chunk) and mail.data and len(spoilt) < 2:
            spoilt.append(mail)
            effect = Send(
                effect.to, Chunk(mail.index, mail.checksum, mail.at, mail.data[:-1] + b"!")
            )
        send(sender, effect)

    group.send = spoil
    endings = record(group, TransferEnded)
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    group.settle()
    group.tick(40)
    assert [ending.arrived for ending in endings][:2] == [False, False]
    assert endings[-1].arrived
    assert newcomer.replica.digest == leader.replica.digest


def test_a_checkpoint_is_never_in_memory_as_a_whole_where_it_is_sent_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = filled(batches=40)
    leader, newcomer = group.leader(), group.add(4)
    leader.log.drop_before(Index(30))
    monkeypatch.setattr(leader.log, "load_checkpoint", None)
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    group.tick(20)
    assert newcomer.replica.digest == leader.replica.digest


def test_bytes_that_are_no_checkpoint_are_corrupt_whatever_they_are() -> None:
    state = newest_state(Group(1)[1].log).pack()
    size = int.from_bytes(state[2:6], "little")
    members = [b"[]", b"[" * 2_000, b'{"voters": 1}', b'{"voters": ["1"]}', b'{"auto_leave": 0}']
    for data in (
        b"",
        state[:-1],
        state + b"!",
        *(state[:2] + len(m).to_bytes(4, "little") + m + state[6 + size :] for m in members),
    ):
        with pytest.raises(Corrupt):
            ReplicaState.unpack(data)


def test_a_checkpoint_with_a_catalog_that_is_none_is_corrupt() -> None:
    partition = Partition()
    command = Frame.of(FrameKind.COMMAND, catalog_command(0, {"a": 1}))
    partition.apply(command.stamped(term=1, index=Index(1), base_offset=Offset(0), timestamp_ms=0))
    packed = ReplicaState(Configuration(voters=(1,)), partition).pack()
    assert ReplicaState.unpack(packed).partition.catalog.values == {"a": 1}
    with pytest.raises(Corrupt):
        ReplicaState.unpack(packed.replace(b'"version"', b'"another"'))


def test_a_crash_during_a_transfer_leaves_nothing_half_done() -> None:
    settings = ReplicaSettings(message_bytes_max=200)
    group = filled(batches=60, settings=settings)
    leader, newcomer = group.leader(), group.add(4)
    leader.log.drop_before(Index(40))
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    for _ in range(3):
        group.tick()
        newcomer.restart()
        assert newcomer.log.damage == []
    group.tick(150)
    assert newcomer.replica.digest == leader.replica.digest


def test_members_come_and_go_while_serving() -> None:
    group = filled()
    leader = group.leader()
    group.add(4)
    gone = follower_of(group)
    token = group.token()
    change = MembershipChange(parse_changes(f"v4 r{gone.member}"))
    leader.replica.change_membership(token, change)
    group.settle()
    group.tick(10)
    assert leader.answers[token] == Changed()
    assert gone.member not in leader.replica.configuration.members
    assert 4 in leader.replica.configuration.voters
    assert isinstance(leader.answers[group.produce(leader)], Produced)
    assert group[4].replica.applied_index == leader.replica.applied_index


def test_a_second_change_while_one_is_under_way_is_told_to_wait() -> None:
    group = filled(batches=2)
    leader = group.leader()
    for node in group.nodes.values():
        node.is_held = True
    group.add(4)
    group.add(5)
    first, second = group.token(), group.token()
    leader.replica.change_membership(first, MembershipChange(parse_changes("l4")))
    leader.replica.change_membership(second, MembershipChange(parse_changes("l5")))
    for node in group.nodes.values():
        node.is_held = False
    group.settle()
    assert leader.answers[first] == Changed()
    assert isinstance(leader.answers[second], Overloaded)


def test_a_read_sees_everything_acknowledged_before_it() -> None:
    group = filled()
    leader = group.leader()
    for node in group.nodes.values():
        token = group.token()
        node.replica.read(token)
        group.settle()
        group.tick()
        assert node.answers[token] == ReadReady(leader.replica.edge.next_offset)


def test_a_read_at_a_follower_waits_until_it_has_applied_what_the_leader_has() -> None:
    group = filled(batches=2)
    leader, node = group.leader(), follower_of(group)
    node.is_held = True
    acked = leader.answers[group.produce(leader)].base_offset
    token = group.token()
    node.replica.read(token)
    group.settle()
    group.tick()
    assert token not in node.answers, f"it would not see offset {acked}"
    node.is_held = False
    group.settle()
    group.tick()
    assert node.answers[token] == ReadReady(acked + 1)


def test_a_late_word_on_a_read_before_a_restart_confirms_nothing_after_it() -> None:
    group = filled(batches=2)
    leader, node = group.leader(), follower_of(group)
    late: list[Send] = []
    send = group.send

    def hold(sender: int, effect: Send) -> None:
        mail = effect.mail
        is_reply = isinstance(mail, Consensus) and mail.message.kind is Said.READ_REPLY
        late.append(effect) if is_reply else send(sender, effect)

    group.send = hold
    node.replica.read(7)
    group.settle()
    group.tick()
    (reply,) = late
    node.restart()
    group.tick(2)
    group.isolate(node.member)
    acked = leader.answers[group.produce(leader)].base_offset
    node.replica.read(7)
    node.replica.receive(leader.member, reply.mail)
    group.settle()
    assert 7 not in node.answers, f"it would not see offset {acked}"


def test_a_leader_without_a_quorum_refuses_a_read_when_it_gives_up_leadership() -> None:
    group = filled()
    leader = group.leader()
    group.isolate(leader.member)
    token = group.token()
    leader.replica.read(token)
    group.settle()
    assert token not in leader.answers
    group.tick(2 * group.settings.election_ticks)
    assert isinstance(leader.answers[token], NotLeader)


def test_a_follower_refuses_a_read_that_was_asked_of_a_leader_that_is_gone() -> None:
    """Long before it would be given up: the next leader can be asked at once."""
    group = filled()
    leader = group.leader()
    follower, other = (node for node in group.nodes.values() if node is not leader)
    group.isolate(leader.member)
    token = group.token()
    follower.replica.read(token)
    group.settle()
    assert token not in follower.answers
    other.replica.wake()
    group.tick(2 * group.settings.election_ticks)
    assert isinstance(follower.answers[token], NotLeader)


def test_an_unanswered_read_ends_in_a_timeout() -> None:
    # A leader that hears nothing of the asker would sleep, and the asker miss it.
    group = filled(settings=ReplicaSettings(sleep_ticks=0))
    leader = group.leader()
    follower = next(node for node in group.nodes.values() if node is not leader)
    group.cut.add((follower.member, leader.member))
    token = group.token()
    follower.replica.read(token)
    group.tick(group.settings.read_ticks - 1)
    assert token not in follower.answers
    group.tick(1)
    assert isinstance(follower.answers[token], Timeout)


def test_a_damaged_replica_fetches_what_it_lost_and_then_takes_part() -> None:
    group = filled()
    node = follower_of(group)
    starts = node.log.segment_starts
    lost = segments(node)[2]
    node.disk.lose_file(lost)
    node.restart()
    assert node.replica.is_repairing
    refusal = node.answers[group.produce(node)]
    assert isinstance(refusal, NotLeader)
    assert "damaged" in str(refusal)
    before = group.leader().log
    group.tick(30)
    assert not node.replica.is_repairing
    assert node.log.damage == []
    assert agree(group)
    for index in range(starts[2], starts[3]):
        assert node.log.read(Index(index), bytes_max=1) == before.read(Index(index), bytes_max=1)
    node.restart()
    assert not node.replica.is_repairing


@pytest.mark.parametrize("where", [0, 1, -1])
def test_a_flipped_bit_is_mended_wherever_it_is(where: int) -> None:
    group = filled()
    node = follower_of(group)
    node.disk.flip_bit(segments(node)[where], 8 * (SEGMENT_HEADER_BYTES + 20))
    if where != -1:
        # A sealed segment: only a read finds it.
        with pytest.raises(Corrupt):
            list(node.log.frames(node.log.first_index))
        node.replica = Replica(node.member, node.log, group.settings, node.disk.random)
    else:
        node.restart()
    assert node.replica.is_repairing
    group.tick(30)
    assert not node.replica.is_repairing
    assert list(node.log.frames(node.log.first_index)) == list(
        group.leader().log.frames(group.leader().log.first_index)
    )


def test_damage_that_a_peers_question_finds_is_mended() -> None:
    group = filled()
    node = follower_of(group)
    starts = node.log.segment_starts
    node.disk.flip_bit(segments(node)[1], 8 * (SEGMENT_HEADER_BYTES + 20))
    group.send(group.leader().member, Send(node.member, EntriesRequest(starts[1], starts[2])))
    group.settle()
    assert node.replica.is_repairing
    group.tick(30)
    assert not node.replica.is_repairing
    assert node.log.read(starts[1]) == group.leader().log.read(starts[1])


def test_a_damaged_replica_neither_votes_nor_leads() -> None:
    group = filled()
    leader = group.leader()
    damaged, healthy = (node for node in group.nodes.values() if node is not leader)
    damaged.disk.lose_file(segments(damaged)[1])
    damaged.restart()
    leader.is_up = False
    send = group.send
    lose_mail(group, EntriesReply, every=1)
    term = healthy.replica.term
    group.tick(60)
    assert damaged.replica.is_repairing
    assert not healthy.replica.is_leader, "with the damaged one's vote there would be a majority"
    assert healthy.replica.term == term
    group.send = send
    group.tick(60)
    assert not damaged.replica.is_repairing
    assert isinstance(group.leader().answers[group.produce(group.leader())], Produced)


def test_a_replica_that_cannot_know_what_it_lost_stays_out() -> None:
    group = filled()
    node = follower_of(group)
    last = segments(node)[-1]
    node.disk.replace_content(last, node.disk.content(last)[:300])
    node.restart()
    assert node.replica.is_lost
    group.tick(50)
    assert node.replica.is_lost
    assert not node.replica.is_leader


def test_an_unrequested_answer_does_not_stop_a_lost_replica() -> None:
    group = filled(batches=3)
    node = follower_of(group)
    last = segments(node)[-1]
    node.disk.flip_bit(last, 8 * (SEGMENT_HEADER_BYTES + 20))
    node.disk.replace_content(last, node.disk.content(last)[:-100])
    node.restart()
    assert [damage.last_index is None for damage in node.log.damage] == [False, True]
    first = node.log.damage[0].first_index
    frames = tuple(group.leader().log.read(first))
    node.replica.receive(group.leader().member, EntriesReply(first, frames, Index(1)))
    group.settle()
    assert node.replica.is_lost


def test_a_peer_that_gives_other_entries_does_not_get_them_in() -> None:
    group = filled()
    node = follower_of(group)
    node.disk.lose_file(segments(node)[1])
    node.restart()
    wanted = node.log.damage[0]
    forged = [
        batch(b"forged").stamped(term=2, index=Index(i), base_offset=i * 7, timestamp_ms=0)
        for i in range(wanted.first_index, wanted.last_index + 1)
    ]
    node.replica.tick(group.now_ms)
    node.replica.receive(1, EntriesReply(wanted.first_index, tuple(forged), Index(1)))
    with pytest.raises(Corrupt):
        node.pump()
    assert node.log.damage == [wanted]


def test_what_the_peers_have_dropped_need_not_be_mended() -> None:
    group = filled()
    node = follower_of(group)
    starts = node.log.segment_starts
    node.disk.lose_file(segments(node)[1])
    node.restart()
    for other in group.nodes.values():
        if other is not node:
            assert other.log.drop_before(starts[4]) == starts[4]
    group.tick(30)
    assert not node.replica.is_repairing
    assert node.log.first_index == starts[2], "no more was dropped than had to be"
    assert agree(group)
    node.restart()
    group.tick(10)
    assert agree(group)


def test_what_a_peer_still_keeps_in_part_is_not_dropped() -> None:
    group = filled()
    node = follower_of(group)
    starts = node.log.segment_starts
    node.disk.lose_file(segments(node)[1])
    node.restart()
    wanted = node.log.damage[0]
    node.replica.tick(group.now_ms)
    for kept in (starts[1], starts[2] - 1):
        node.replica.receive(1, EntriesReply(wanted.first_index, (), Index(kept)))
        assert not [e for e in node.replica.take_effects() if isinstance(e, Repair)]
    node.replica.receive(1, EntriesReply(wanted.first_index, (), starts[2]))
    assert [e for e in node.replica.take_effects() if isinstance(e, Repair)] == [
        Repair((), drop_before=starts[2])
    ]


def test_time_may_pass_between_a_repair_and_the_word_that_it_is_done() -> None:
    group = filled()
    node = follower_of(group)
    node.disk.lose_file(segments(node)[1])
    node.restart()
    node.is_held = True
    while not node.work:
        group.tick()
    (repair,) = node.work
    carry_out(node.log, repair)
    for _ in range(20):
        node.replica.tick(group.now_ms)
        effects = node.replica.take_effects()
        assert all(isinstance(e, Send) and isinstance(e.mail, Rouse) for e in effects)
    assert isinstance(node.answers[group.produce(node)], NotLeader)
    node.work.clear()
    node.is_held = False
    node.replica.repaired()
    group.tick(5)
    assert not node.replica.is_repairing
    assert agree(group)


def test_what_is_missing_is_asked_for_without_counting_it_through() -> None:
    group = filled(batches=5)
    node = follower_of(group)
    last = Index(1 << 40)
    node.log.damage.append(Damage("a segment", 0, Index(2), last, "it is missing"))
    replica = Replica(node.member, node.log, ReplicaSettings(), Random(1))
    assert replica.is_repairing
    began = time.monotonic()
    replica.tick(0)
    asked = [effect.mail for effect in replica.take_effects() if isinstance(effect, Send)]
    assert EntriesRequest(Index(2), last) in asked
    assert time.monotonic() - began < 30


def test_members_that_differ_from_those_in_the_checkpoint_are_not_taken() -> None:
    """The sender reads who they were without checking all of the file; who gets it checks."""
    group = filled(batches=40)
    leader, newcomer = group.leader(), group.add(4)
    leader.log.drop_before(Index(30))
    send = group.send

    def misread(sender: int, effect: Send) -> None:
        mail = effect.mail
        if isinstance(mail, Offer) and mail.message.snapshot is not None:
            snapshot = replace(mail.message.snapshot, configuration=Configuration((1, 2, 7)))
            message = mail.message._replace(snapshot=snapshot)
            effect = Send(effect.to, replace(mail, message=message))
        send(sender, effect)

    group.send = misread
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    group.settle()
    group.tick(20)
    assert 7 not in newcomer.replica.configuration.members
    assert newcomer.replica.applied_index == 0


CHECKPOINT_DAMAGE = ["unreadable header", "unreadable content", "flipped bit"]


def damage_checkpoint(node: Node, path: str, damage: str) -> None:
    if damage == "flipped bit":
        node.disk.flip_bit(path, 8 * (len(node.disk.content(path)) - 5))
    elif damage == "unreadable header":
        node.disk.lose_block(path, 0)
    else:
        # The first part is read for the members.
        unreadable_from(node, path, 96 + 200)


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGE)
def test_where_the_oldest_checkpoint_is_damaged_the_next_one_is_sent(damage: str) -> None:
    group = filled(batches=60)
    leader, newcomer = group.leader(), group.add(4)
    first = leader.log.drop_before(Index(30))
    assert len(leader.log.checkpoints()) > 1
    for copy in ("", ".copy"):
        damage_checkpoint(leader, f"{FOLDER}/{first:020d}.ckpt{copy}", damage)
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    group.settle()
    group.tick(80)
    assert newcomer.log.first_index > first
    assert newcomer.replica.digest == leader.replica.digest


@pytest.mark.parametrize("damage", CHECKPOINT_DAMAGE[:2])
def test_where_the_oldest_checkpoint_cannot_be_read_its_copy_is_sent(damage: str) -> None:
    group = filled(batches=60)
    leader, newcomer = group.leader(), group.add(4)
    first = leader.log.drop_before(Index(30))
    damage_checkpoint(leader, f"{FOLDER}/{first:020d}.ckpt", damage)
    leader.replica.change_membership(group.token(), MembershipChange(parse_changes("v4")))
    group.settle()
    group.tick(80)
    assert newcomer.log.first_index == first
    assert newcomer.replica.digest == leader.replica.digest


def unreadable_from(node: Node, path: str, start: int) -> None:
    """Reads of a file that reach beyond some byte fail."""
    opened = node.disk.open_to_read

    def open_to_read(name: str) -> SimulatedFile:
        file = opened(name)
        if name == path:
            read = file.read

            def failing(at: int, size: int) -> bytes:
                if at + size > start:
                    raise Unreadable("Input/output error")
                return read(at, size)

            file.read = failing  # type: ignore[method-assign]
        return file

    node.disk.open_to_read = open_to_read  # type: ignore[method-assign]
