"""What a leader knows of one member: `progress` by itself."""

import pytest

from quivermq.raft.progress import Inflight, Pace, Progress


def progress(*, match: int = 0, next_index: int = 1, messages_max: int = 10) -> Progress:
    made = Progress(next_index=next_index, inflight=Inflight(messages_max, 1000))
    made.match = match
    return made


def test_a_window_is_full_by_messages_or_by_bytes() -> None:
    window = Inflight(2, 100)
    window.add(5, 40)
    assert not window.full
    window.add(6, 40)
    assert window.full
    window.free_to(5)
    assert (len(window), window.bytes, window.full) == (1, 40, False)
    window.add(7, 70)
    assert window.full
    window.clear()
    assert (len(window), window.bytes) == (0, 0)


def test_freeing_keeps_messages_that_are_only_partly_acknowledged() -> None:
    window = Inflight(5, 100)
    for last in (3, 6, 9):
        window.add(last, 10)
    window.free_to(8)
    assert list(window.window) == [(9, 10)]


def test_replication_starts_right_after_the_match() -> None:
    known = progress(match=4, next_index=9)
    known.replicate()
    assert (known.pace, known.next) == (Pace.REPLICATE, 5)


def test_probing_after_a_snapshot_starts_after_it() -> None:
    known = progress(match=1)
    known.await_snapshot(10)
    assert known.is_paused
    known.probe()
    assert (known.pace, known.next, known.pending_snapshot) == (Pace.PROBE, 11, 0)


@pytest.mark.parametrize(("index", "hint", "next_index"), [(9, 5, 6), (9, 9, 9), (9, 0, 3)])
def test_a_rejected_probe_goes_back_to_the_hint_but_never_to_the_match(
    index: int, hint: int, next_index: int
) -> None:
    known = progress(match=2, next_index=10)
    known.paused = True
    assert known.rejected(index, hint)
    assert (known.next, known.paused) == (next_index, False)


def test_a_rejection_of_anything_but_the_probe_is_stale() -> None:
    known = progress(match=2, next_index=10)
    assert not known.rejected(7, 5)
    assert known.next == 10


def test_acknowledgements_never_go_back() -> None:
    known = progress(match=5, next_index=8)
    assert not known.acknowledged(5)
    assert known.acknowledged(6)
    assert (known.match, known.next) == (6, 8)
    assert known.acknowledged(9)
    assert (known.match, known.next) == (9, 10)


def test_a_commit_index_is_worth_sending_if_the_member_can_use_it() -> None:
    known = progress(match=5, next_index=8)
    known.sent_commit = 5
    assert known.can_learn_commit(6)
    known.sent_commit = 6
    assert not known.can_learn_commit(6), "it was sent"
    known.sent_commit = 7
    assert not known.can_learn_commit(9), "the member holds nothing past 7"
