"""Runs of staged batches: joined, cut into pieces, packed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.spark.sink.staged_runs import (
    Run,
    TargetPartition,
    join_staged,
    last_batch_size,
    merge_runs,
    pack_staged,
    split_runs,
    unpack_staged,
)

RUNS = st.lists(
    st.builds(
        Run,
        st.integers(0, 3),
        st.integers(0, 1 << 40),
        st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
    ),
    max_size=6,
)


def spread(runs: list[Run]) -> list[tuple[int, int, int]]:
    """Every batch: partition, start, messages."""
    found = []
    for run in runs:
        at = run.start
        for count in run.counts:
            found.append((run.partition, at, count))
            at += count
    return found


def test_adjacent_runs_are_merged() -> None:
    runs = [Run(1, 0, (2,)), Run(1, 2, (3, 1)), Run(2, 6, (1,)), Run(1, 6, (1,)), Run(1, 8, (1,))]
    assert list(merge_runs(runs)) == [
        Run(1, 0, (2, 3, 1)),
        Run(2, 6, (1,)),
        Run(1, 6, (1,)),
        Run(1, 8, (1,)),
    ]


@given(RUNS, st.integers(1, 7), st.data())
def test_pieces_hold_every_batch_once_in_order(
    runs: list[Run], most: int, data: st.DataObject
) -> None:
    batches = spread(runs)
    done = data.draw(st.integers(0, len(batches)))
    skipped = sum(count for _, _, count in batches[:done])
    found: list[tuple[int, int, int]] = []
    number = skipped
    for first, piece in split_runs(runs, skipped, most):
        assert first == number
        number += sum(run.stop - run.start for run in piece)
        assert 1 <= len(spread(piece)) <= most
        found += spread(piece)
    assert found == batches[done:]
    assert last_batch_size(runs, skipped) == (batches[done - 1][2] if done else 0)


def test_a_piece_cannot_begin_within_a_batch() -> None:
    with pytest.raises(ValueError, match="in the midst of a batch"):
        list(split_runs([Run(0, 0, (3, 3))], 4, 10))


@given(st.dictionaries(st.builds(TargetPartition, st.text(), st.integers(0, 9)), RUNS.map(tuple)))
def test_packed_runs_are_unpacked(staged: dict[TargetPartition, tuple[Run, ...]]) -> None:
    assert unpack_staged(pack_staged(staged)) == staged


def test_tasks_are_joined_in_their_order() -> None:
    a, b = TargetPartition("t", 0), TargetPartition("t", 1)
    parts = [{b: (Run(0, 5, (1,)),)}, {a: (Run(1, 0, (2,)),), b: (Run(1, 2, (2,)),)}]
    assert join_staged(parts) == {
        a: (Run(1, 0, (2,)),),
        b: (Run(0, 5, (1,)), Run(1, 2, (2,))),
    }


def test_ten_thousand_batches_are_a_small_list() -> None:
    staged = {
        TargetPartition("orders", place): tuple(
            Run(place % 4, 1_000_000 * place + 10_000 * n, (9_000 + n % 7,)) for n in range(100)
        )
        for place in range(100)
    }
    assert len(pack_staged(staged)) < 120_000
