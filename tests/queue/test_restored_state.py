"""The state of a partition as a backup carries it: groups and producers, taken out and put back."""

import pytest

from quivermq.batches import COUNTER_MAX, Frame, FrameKind, Header, Index, Offset
from quivermq.errors import InvalidRequest, Overloaded
from quivermq.queue import (
    Groups,
    Partition,
    ProducerTable,
    check_restored,
    groups_command,
    restored_groups_command,
    restored_producers_command,
)
from quivermq.queue.groups import Op, pack_operation


class Applied:
    """A partition, and the entries that it is given."""

    def __init__(self, start: int | None = None) -> None:
        begin = None if start is None else Offset(start)
        self.partition = Partition(Index(1), 1, begin)

    def put(self, frame: Frame) -> None:
        partition = self.partition
        stamped = frame.stamped(
            term=1,
            index=Index(partition.applied_index + 1),
            base_offset=partition.next_offset,
            timestamp_ms=1_000,
        )
        partition.apply(stamped)

    def command(self, body: bytes) -> None:
        self.put(Frame.of(FrameKind.COMMAND, body))

    def operate(self, *operations: list[object]) -> None:
        self.command(groups_command(map(pack_operation, operations)))

    def batch(self, count: int, **fields: int) -> None:
        self.put(Frame(Header(kind=FrameKind.DATA, count=count, **fields), b""))


def busy(groups: int = 3) -> Applied:
    """Groups that hold, have done and commit something each."""
    applied = Applied()
    applied.batch(100, producer_id=7)
    for number in range(1, groups + 1):
        applied.operate(
            [Op.CREATE, number, f"group-{number}"],
            [Op.SHARE, number, 0],
            [Op.GRANT, number, 1000 + number, 5, 30_000, [[0, 20, 0]], [], [[0, 20]]],
            [Op.FINISH, number, 1000 + number, 5, [[3, 10]]],
            [Op.COMMIT, number, 40 + number],
            [Op.CLAIM, number, 9],
        )
    applied.operate([Op.CANCEL, [[90, 95]]])
    return applied


GROUPS = restored_groups_command(busy().partition.groups)


def restored(source: Partition, start: int, bytes_max: int = 1) -> Applied:
    """Another partition, with all groups of this one, one part after the other."""
    target, after, parts = Applied(start), 0, 0
    while True:
        part, after = source.groups.fork().part(after, bytes_max)
        command = restored_groups_command(part)
        check_restored(command)
        target.command(command)
        # The same again, as after an answer that was lost.
        target.command(command)
        parts += 1
        if not after:
            assert parts > 1
            return target


def test_groups_are_put_back_as_they_were_but_for_claims() -> None:
    source = busy()
    target = restored(source.partition, 0)
    target.batch(100)
    target.partition.validate()
    for group in source.partition.groups.by_number.values():
        assert group.claimed == 9
        group.claimed = 0
    assert target.partition.groups.pack() == source.partition.groups.pack()


def test_what_was_deleted_since_is_lost_to_restored_groups() -> None:
    target = restored(busy().partition, 30)
    target.batch(70)
    target.partition.validate()
    group = target.partition.groups.by_name["group-2"]
    assert (group.floor, group.totals.lost, group.leased_messages) == (30, 23, 0)
    assert group.committed == 42


def test_a_partition_to_be_restored_begins_at_its_offset_also_after_a_restart() -> None:
    applied = Applied(5_000)
    applied.partition = Partition.restore(applied.partition.checkpoint())
    assert applied.partition.next_offset == 5_000
    assert applied.partition.priority_index.begin == 5_000
    applied.batch(10)
    assert applied.partition.next_offset == 5_010
    applied.partition.validate()


def test_batches_of_a_backup_are_not_recorded_until_the_table_of_producers_is_there() -> None:
    source = busy()
    applied = Applied(0)
    # Numbers as a producer leaves them that was forgotten once, and then began anew.
    applied.batch(3, producer_id=7, sequence=40)
    applied.partition = Partition.restore(applied.partition.checkpoint())
    applied.batch(3, producer_id=7, sequence=0)
    with pytest.raises(Overloaded):
        applied.partition.producers.check(Header(kind=FrameKind.DATA, count=1, producer_id=8))
    command = restored_producers_command(source.partition.producers.pack())
    check_restored(command)
    applied.command(command)
    assert applied.partition.producers.position(7) == (0, 100)
    applied.batch(1, producer_id=7, sequence=100)
    assert applied.partition.producers.position(7) == (0, 101)
    applied.partition.validate()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01{}",
        b"\x04\x01",
        b"\x05",
        restored_producers_command(ProducerTable().pack() + b"x"),
        restored_groups_command(busy().partition.groups)[:-1],
        restored_groups_command(busy().partition.groups).replace(
            b"group-1", b"\xff\xff\xff\xff-11"
        ),
        restored_groups_command(busy().partition.groups).replace(b"group-1", b"group/1"),
    ],
)
def test_nothing_is_restored_that_could_not_be_carried_out(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_restored(body)


def test_a_group_that_is_in_two_places_at_once_is_refused() -> None:
    groups = Groups()
    source = busy(1).partition.groups.fork()
    group = source.by_number[1]
    group.done.add(0, COUNTER_MAX)
    groups.by_name[group.name] = groups.by_number[1] = group
    with pytest.raises(InvalidRequest):
        check_restored(restored_groups_command(groups))
