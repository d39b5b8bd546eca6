"""Committed offsets of groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, Kind
from quivermq.errors import InvalidRequest
from quivermq.queue import Partition, commit_offset_command
from tests.queue.test_partition import stamped

NAMES = st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}", fullmatch=True)


def commit(partition: Partition, group: str, offset: int) -> None:
    frame = Frame.of(Kind.COMMAND, commit_offset_command(group, offset))
    assert partition.apply(stamped(frame, partition))


def test_the_last_word_of_a_group_holds_also_if_it_goes_back() -> None:
    partition = Partition()
    for offset in (5, 2**63 - 1, 3):
        commit(partition, "readers", offset)
    commit(partition, "others", 0)
    assert partition.offsets == {"readers": 3, "others": 0}


@given(st.lists(st.tuples(NAMES, st.integers(0, 2**63 - 1)), max_size=10), st.integers(0, 10))
def test_offsets_survive_a_checkpoint_anywhere(commits: list[tuple[str, int]], at: int) -> None:
    partition = Partition()
    for number, (group, offset) in enumerate(commits):
        if number == at:
            partition = Partition.restore(partition.checkpoint())
        commit(partition, group, offset)
    assert Partition.restore(partition.checkpoint()).offsets == dict(commits)
    partition.validate()


def test_the_order_of_commits_does_not_show_in_a_checkpoint() -> None:
    one, other = Partition(), Partition()
    for partition, groups in ((one, "ab"), (other, "ba")):
        for group in groups:
            commit(partition, group, 1)
    assert one.offsets.pack() == other.offsets.pack()


@pytest.mark.parametrize(
    ("group", "offset"),
    [
        ("", 0),
        (".", 0),
        ("..", 0),
        ("a/b", 0),
        ("ä", 0),
        ("a\n", 0),
        ("x" * 201, 0),
        (7, 0),
        ("a", -1),
        ("a", 2**63),
        ("a", 1.0),
        ("a", True),
    ],
)
def test_names_and_offsets_that_make_no_sense_are_refused(group, offset) -> None:
    with pytest.raises(InvalidRequest):
        commit_offset_command(group, offset)
