"""Disk work of a replica with drops: in order, joined between drops, as far as there is room."""

import pytest

from quivermq.batches import Index
from quivermq.errors import Corrupt, StorageFull, TooLarge
from quivermq.log import Log
from quivermq.replica import Drop, Persist, carry_out_all
from tests.log.entries import entries
from tests.log.logs import new_log


def persist(log: Log, number: int, first: int, count: int = 1) -> Persist:
    frames = entries(log.edge, first - log.edge.next_index + count, body=b"x" * 400)
    return Persist(number, 0, 0, Index(0), None, tuple(frames[-count:]))


def test_all_of_it_is_done_and_counted() -> None:
    _, log = new_log()
    seen: list[int] = []
    work = [
        persist(log, 1, 1),
        persist(log, 2, 2),
        Drop(lambda log: seen.append(log.edge.next_index)),
        persist(log, 3, 3),
        Drop(lambda log: seen.append(log.edge.next_index)),
    ]
    assert carry_out_all(log, work) == 5
    assert seen == [3, 4]
    assert log.edge.next_index == 4


def test_a_full_disk_stops_it_at_the_first_piece_without_room() -> None:
    disk, log = new_log()
    work = [persist(log, number, number) for number in range(1, 9)]
    disk.faults.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths()) + 600
    done = carry_out_all(log, work)
    assert 0 < done < 8
    assert log.edge.next_index == done + 1
    disk.faults.capacity_bytes = None
    assert carry_out_all(log, work[done:]) == 8 - done
    assert log.edge.next_index == 9


@pytest.mark.parametrize("refusal", [Corrupt("bad"), StorageFull("full"), TooLarge("large")])
def test_a_drop_that_cannot_be_done_is_let_be(refusal: Exception) -> None:
    _, log = new_log()

    def fail(_: Log) -> None:
        raise refusal

    assert carry_out_all(log, [Drop(fail), persist(log, 1, 1)]) == 2
    assert log.edge.next_index == 2
