"""Quorums against a model that tries every subset."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.raft import Configuration
from quivermq.raft.quorum import EVERYTHING, VoteResult, agreed_index, joint_vote

ids = st.lists(st.integers(1, 7), unique=True, max_size=7).map(lambda xs: tuple(sorted(xs)))


def majorities(voters: tuple[int, ...]) -> list[set[int]]:
    """Every set of more than half of the voters."""
    sizes = range(len(voters) // 2 + 1, len(voters) + 1)
    return [set(chosen) for size in sizes for chosen in combinations(voters, size)]


def halves(configuration: Configuration) -> list[tuple[int, ...]]:
    return [half for half in (configuration.voters, configuration.outgoing) if half]


def modelled_index(configuration: Configuration, acked: dict[int, int]) -> int:
    """The highest index that some majority of each half has."""

    def is_agreed(index: int) -> bool:
        return all(
            any(all(acked.get(m, 0) >= index for m in majority) for majority in majorities(half))
            for half in halves(configuration)
        )

    if not halves(configuration):
        return EVERYTHING
    return max(index for index in range(6) if is_agreed(index))


def modelled_vote(configuration: Configuration, votes: dict[int, bool]) -> VoteResult:
    """Won or lost as soon as no answer still to come could change it."""

    def wins(granted: set[int]) -> bool:
        return all(
            any(majority <= granted for majority in majorities(half))
            for half in halves(configuration)
        )

    yes = {member for member, vote in votes.items() if vote}
    if wins(yes):
        return VoteResult.WON
    open_ = set(configuration.all_voters) - votes.keys()
    return VoteResult.PENDING if wins(yes | open_) else VoteResult.LOST


@given(ids, ids, st.dictionaries(st.integers(1, 7), st.integers(0, 5)))
def test_an_index_is_agreed_if_some_majority_of_each_half_has_it(
    voters: tuple[int, ...], outgoing: tuple[int, ...], acked: dict[int, int]
) -> None:
    configuration = Configuration(voters, outgoing)
    agreed = agreed_index(configuration, lambda member: acked.get(member, 0))
    assert agreed == modelled_index(configuration, acked)


@given(ids, ids, st.dictionaries(st.integers(1, 7), st.booleans()))
def test_a_vote_is_won_or_lost_as_soon_as_no_answer_could_change_it(
    voters: tuple[int, ...], outgoing: tuple[int, ...], votes: dict[int, bool]
) -> None:
    configuration = Configuration(voters, outgoing)
    assert joint_vote(configuration, votes) is modelled_vote(configuration, votes)


@pytest.mark.parametrize("voters", [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)])
@pytest.mark.parametrize("outgoing", [(), (1,), (3, 4), (2, 3, 4)])
def test_small_quorums_agree_with_the_model_whatever_the_answers(
    voters: tuple[int, ...], outgoing: tuple[int, ...]
) -> None:
    configuration = Configuration(voters, outgoing)
    for answers in product((0, 1, 2), repeat=4):
        acked = dict(enumerate(answers, 1))
        votes = {member: answer == 2 for member, answer in acked.items() if answer}
        agreed = agreed_index(configuration, lambda member, acked=acked: acked[member])
        assert agreed == modelled_index(configuration, acked)
        assert joint_vote(configuration, votes) is modelled_vote(configuration, votes)


@given(ids.filter(bool), ids.filter(bool))
def test_any_two_joint_quorums_share_a_voter(
    voters: tuple[int, ...], outgoing: tuple[int, ...]
) -> None:
    configuration = Configuration(voters, outgoing)
    everyone = configuration.all_voters
    winning = [
        {m for m, bit in zip(everyone, f"{mask:0{len(everyone)}b}", strict=True) if bit == "1"}
        for mask in range(2 ** len(everyone))
    ]
    quorums = [
        chosen
        for chosen in winning
        if joint_vote(configuration, {m: m in chosen for m in everyone}) is VoteResult.WON
    ]
    assert all(first & second for first in quorums for second in quorums)
