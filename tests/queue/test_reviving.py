"""Dead letters go back to the group that failed: the original is delivered again, once."""

import pytest

from quivermq.errors import Overloaded
from quivermq.queue import Piece, dead_letters, group
from tests.queue.rig import Rig


def bury_all(rig: Rig, *groups: str) -> None:
    """All messages of these groups are dead letters, and stored as such."""
    for name in groups:
        taken = rig.take(group=name)
        rig.leases.reject(name, taken.lease, None, "bad", rig.now_ms)
        rig.commit()
        for found, record in rig.leases.dead_letters.dying():
            rig.leases.dead_letters.bury(found, record.number)
        rig.commit()


def revive(
    rig: Rig, redrive: int, *places: tuple[int, int, int], name: str = "g", start: int = 0
) -> list[tuple[int, int]]:
    pieces = [Piece(*place, 0) for place in places]
    gone = rig.leases.dead_letters.revive(name, redrive, pieces, start)
    rig.commit()
    return gone


def test_only_the_group_that_failed_gets_it_again() -> None:
    rig = Rig()
    rig.put(5)
    bury_all(rig, "g", "h")
    assert (rig.stats().dead, rig.stats("h").dead) == (5, 5)
    assert revive(rig, 1, (1, 2, 0), (3, 4, 0)) == []
    assert rig.stats().floor == 1
    assert (rig.stats().waiting, rig.stats().dead, rig.stats("h").dead) == (2, 3, 5)
    rig.restart()
    taken = rig.take()
    assert rig.offsets(taken) == [1, 3]
    assert [piece.failures for piece in taken.pieces] == [0, 0]
    assert rig.polled(group="h") == []
    rig.leases.acknowledge("g", taken.lease, None)
    rig.commit()
    assert (rig.stats().done, rig.stats().dead, rig.stats().floor) == (2, 3, 5)


def test_a_repeated_redrive_does_not_bring_back_what_was_acknowledged_since() -> None:
    rig = Rig()
    rig.put(3)
    bury_all(rig, "g")
    revive(rig, 7, (0, 3, 0))
    rig.leases.acknowledge("g", rig.take().lease, None)
    rig.commit()
    rig.restart()
    assert revive(rig, 7, (0, 3, 0)) == []
    assert rig.polled() == []
    assert revive(rig, 8, (0, 1, 0)) == []
    assert rig.polled() == [0]


def test_of_two_letters_of_one_message_and_of_one_in_hand_each_comes_once() -> None:
    rig = Rig()
    rig.put(4)
    bury_all(rig, "g")
    revive(rig, 1, (1, 3, 2), (2, 4, 2))
    assert rig.polled() == [1, 2, 3]
    assert revive(rig, 2, (0, 4, 0)) == []
    assert rig.polled() == [0]


def test_a_letter_whose_record_is_not_ended_is_put_back_afterwards() -> None:
    """It is stored as a letter; the record of it ends a moment later, or under the next leader."""
    rig = Rig()
    rig.put(3)
    taken = rig.take()
    rig.leases.reject("g", taken.lease, [(1, 2)], "bad", rig.now_ms)
    rig.commit()
    with pytest.raises(Overloaded, match="in a moment"):
        revive(rig, 1, (1, 2, 0))
    ((_, record),) = rig.leases.dead_letters.dying()
    rig.leases.dead_letters.bury("g", record.number)
    rig.commit()
    assert revive(rig, 1, (1, 2, 0)) == []
    assert rig.polled() == [1]


def test_a_repeated_redrive_is_answered_while_its_message_dies_again() -> None:
    rig = Rig()
    rig.put(1)
    bury_all(rig, "g")
    revive(rig, 1, (0, 1, 0))
    rig.leases.reject("g", rig.take().lease, None, "bad", rig.now_ms)
    rig.commit()
    assert revive(rig, 1, (0, 1, 0)) == []


def test_what_is_deleted_or_was_never_the_groups_is_told() -> None:
    rig = Rig()
    rig.put(10)
    bury_all(rig, "g")
    assert revive(rig, 1, (0, 2, 0), (5, 6, 0), (9, 12, 0), start=3) == [(0, 2), (10, 12)]
    assert rig.polled() == [5, 9]
    rig.leases.seek("g", 8)
    rig.commit()
    assert revive(rig, 2, (6, 7, 0)) == [(6, 7)]
    assert revive(rig, 3, (6, 7, 0), name="unknown") == [(6, 7)]


def test_urgent_letters_come_back_urgent() -> None:
    rig = Rig()
    rig.put(1, priority=0)
    rig.put(1, priority=5)
    bury_all(rig, "g")
    revive(rig, 1, (0, 1, 0), (1, 2, 5))
    assert rig.polled(most=1) == [1]


def test_after_a_seek_the_counts_stay_right() -> None:
    rig = Rig()
    rig.put(3)
    bury_all(rig, "g")
    rig.leases.seek("g", 0)
    rig.leases.acknowledge("g", rig.take().lease, None)
    rig.commit()
    assert revive(rig, 1, (0, 2, 0)) == []
    assert (rig.stats().done, rig.stats().waiting, rig.stats().dead) == (1, 2, 0)


def test_so_many_redrives_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "REVIVALS_MAX", 2)
    rig = Rig()
    rig.put(4)
    bury_all(rig, "g")
    for number in range(3):
        revive(rig, number, (number, number + 1, 0))
    assert list(rig.partition.groups.by_name["g"].revivals) == [1, 2]


def test_what_was_given_again_is_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.put(9)
    bury_all(rig, "g", "h")
    records = rig.leases.dead_letters
    assert records.revived("g") is None
    monkeypatch.setattr(dead_letters, "REVIVED_INTERVALS", 2)
    revive(rig, 1, (0, 2, 0), (4, 5, 0))
    revive(rig, 2, (7, 8, 0), name="h")
    assert [list(records.revived(name) or ()) for name in "gh"] == [[(0, 2), (4, 5)], [(7, 8)]]
    revive(rig, 3, (6, 7, 0))
    assert [list(records.revived(name) or ()) for name in "gh"] == [[(6, 7)], []]
