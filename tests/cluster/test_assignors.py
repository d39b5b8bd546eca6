"""Assignors: everything given out, evenly, and by the sticky one with the fewest moves."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quivermq.cluster.assignors import ASSIGNORS, moves_needed, sticky

NAMES = sorted(ASSIGNORS)


@st.composite
def situations(
    draw: st.DrawFn, partitions_max: int = 60, members_max: int = 20
) -> tuple[list[int], list[int], dict[int, int]]:
    """Partitions, members, and owners of whom some may be gone, as some partitions may be."""
    count = draw(st.integers(0, partitions_max))
    members = draw(st.lists(st.integers(1, 1 << 62), min_size=1, max_size=members_max, unique=True))
    known = draw(st.lists(st.integers(1, 1 << 62), max_size=5)) + members
    owned = st.dictionaries(st.integers(0, partitions_max + 5), st.sampled_from(known))
    return list(range(count)), members, draw(owned)


def moves(before: Mapping[int, int], after: Mapping[int, int], members: Sequence[int]) -> int:
    return sum(before.get(p) in members and before[p] != owner for p, owner in after.items())


def balanced(partitions: Sequence[int], members: Sequence[int]) -> Iterator[dict[int, int]]:
    for owners in product(members, repeat=len(partitions)):
        loads = Counter(dict.fromkeys(members, 0)) + Counter(owners)
        counts = [loads[member] for member in members]
        if max(counts) - min(counts) <= 1:
            yield dict(zip(partitions, owners, strict=True))


@pytest.mark.parametrize("name", NAMES)
@given(situation=situations())
def test_every_partition_has_one_live_owner_and_loads_differ_by_one_at_most(
    name: str, situation: tuple[list[int], list[int], dict[int, int]]
) -> None:
    partitions, members, current = situation
    owners = ASSIGNORS[name](partitions, members, current)
    assert sorted(owners) == partitions
    loads = Counter(owners.values())
    assert set(loads) <= set(members)
    counts = [loads[member] for member in members]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize("name", NAMES)
@given(situation=situations(), seed=st.randoms(use_true_random=False))
def test_the_order_of_the_members_makes_no_difference(
    name: str, situation: tuple[list[int], list[int], dict[int, int]], seed: st.DataObject
) -> None:
    partitions, members, current = situation
    shuffled = list(members)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]  # it is a `random.Random`
    assert ASSIGNORS[name](partitions, members, current) == ASSIGNORS[name](
        partitions, shuffled, dict(reversed(current.items()))
    )


@settings(max_examples=60, deadline=None)
@given(situation=situations(partitions_max=6, members_max=4))
def test_no_balanced_assignment_has_fewer_moves_than_the_sticky_one(
    situation: tuple[list[int], list[int], dict[int, int]],
) -> None:
    partitions, members, current = situation
    best = min(moves(current, each, members) for each in balanced(partitions, members))
    assert moves(current, sticky(partitions, members, current), members) == best
    assert moves_needed(partitions, members, current) == best


@given(situation=situations(partitions_max=400, members_max=60))
def test_the_sticky_one_moves_as_few_as_the_formula_says(
    situation: tuple[list[int], list[int], dict[int, int]],
) -> None:
    partitions, members, current = situation
    found = sticky(partitions, members, current)
    assert moves(current, found, members) == moves_needed(partitions, members, current)


@given(situation=situations())
def test_what_is_balanced_stays_as_it_is(
    situation: tuple[list[int], list[int], dict[int, int]],
) -> None:
    partitions, members, current = situation
    once = sticky(partitions, members, current)
    assert sticky(partitions, members, once) == once


def test_a_member_gives_up_what_is_named_last() -> None:
    current = {0: 1, 1: 1, 2: 1, 3: 1}
    assert sticky([0, 2, 3, 1], [1, 2], current) == {0: 1, 1: 2, 2: 1, 3: 2}


def test_round_robin_takes_turns_and_range_keeps_neighbours_together() -> None:
    assert ASSIGNORS["round-robin"](range(5), [7, 3], {}) == {0: 3, 1: 7, 2: 3, 3: 7, 4: 3}
    assert ASSIGNORS["range"](range(5), [7, 3], {}) == {0: 3, 1: 3, 2: 3, 3: 7, 4: 7}


@pytest.mark.parametrize("name", NAMES)
def test_a_group_without_members_gets_no_assignment(name: str) -> None:
    assert ASSIGNORS[name]([0, 1], [], {0: 5}) == {}
