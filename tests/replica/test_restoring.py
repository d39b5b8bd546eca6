"""Batches of a backup through a replica: each at the offset and with the time that it had, once."""

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.errors import InvalidRequest, OutOfSequence, Overloaded
from quivermq.queue import ProducerTable, restored_producers_command
from quivermq.replica import Changed, Produced, Result
from tests.replica.group import Group, Node, batch


def old(offset: int, timestamp_ms: int, *values: bytes) -> Frame:
    """A batch as another log holds it."""
    return batch(*values).stamped(
        term=9, index=Index(77), base_offset=Offset(offset), timestamp_ms=timestamp_ms
    )


def restore(group: Group, node: Node, frame: Frame) -> int:
    token = group.token()
    node.replica.restore(token, frame)
    return token


def restored(group: Group, node: Node, frame: Frame) -> Result:
    token = restore(group, node, frame)
    group.settle()
    return node.answers[token]


def stored(node: Node) -> list[tuple[int, int, int]]:
    frames = node.log.frames(node.log.first_index)
    headers = [frame.header for frame in frames if frame.header.kind == FrameKind.DATA]
    return [(header.base_offset, header.count, header.timestamp_ms) for header in headers]


def test_batches_keep_offsets_and_times_on_every_replica() -> None:
    group = Group(3)
    leader = group.leader()
    waiting = [
        restore(group, leader, frame)
        for frame in (old(0, 5_000, b"a", b"b"), old(2, 5_000, b"c"), old(3, 6_000, b"d"))
    ]
    group.settle()
    group.tick()
    assert [leader.answers[token] for token in waiting] == [
        Produced(0, 2, 5_000, is_repeat=False),
        Produced(2, 1, 5_000, is_repeat=False),
        Produced(3, 1, 6_000, is_repeat=False),
    ]
    for node in group.nodes.values():
        assert stored(node) == [(0, 2, 5_000), (2, 1, 5_000), (3, 1, 6_000)]


def test_a_batch_that_is_there_is_not_stored_again() -> None:
    group = Group(1)
    leader = group.leader()
    restored(group, leader, old(0, 5_000, b"a", b"b"))
    again = restored(group, leader, old(0, 5_000, b"a", b"b"))
    assert again == Produced(0, 2, 5_000, is_repeat=True)
    assert stored(leader) == [(0, 2, 5_000)]


def test_a_batch_that_is_under_way_is_not_taken_twice_nor_called_stored() -> None:
    group = Group(1)
    leader = group.leader()
    leader.is_held = True
    first = restore(group, leader, old(0, 5_000, b"a"))
    # Not proposed yet, and then not written yet.
    early = restore(group, leader, old(0, 5_000, b"a"))
    group.settle()
    late = restore(group, leader, old(0, 5_000, b"a"))
    group.settle()
    assert first not in leader.answers
    assert isinstance(leader.answers[early], Overloaded)
    assert isinstance(leader.answers[late], Overloaded)
    leader.is_held = False
    group.settle()
    assert isinstance(leader.answers[first], Produced)
    assert stored(leader) == [(0, 1, 5_000)]


def test_a_gap_is_refused() -> None:
    group = Group(1)
    leader = group.leader()
    restored(group, leader, old(0, 5_000, b"a"))
    refusal = restored(group, leader, old(2, 5_000, b"c"))
    assert isinstance(refusal, OutOfSequence)
    assert refusal.expected == 1


def test_commands_are_taken_only_if_they_restore() -> None:
    group = Group(1)
    leader = group.leader()
    table = Frame.of(FrameKind.COMMAND, restored_producers_command(ProducerTable().pack()))
    assert isinstance(restored(group, leader, table), Changed)
    for body in (b"\x02{}", b"\x04garbage", b""):
        refused = restored(group, leader, Frame.of(FrameKind.COMMAND, body))
        assert isinstance(refused, InvalidRequest)
    assert isinstance(restored(group, leader, Frame.of(FrameKind.NOOP)), InvalidRequest)
