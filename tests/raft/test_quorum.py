"""Quorums against a model that tries every subset."""

from itertools import combinations

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


@given(ids, ids, st.dictionaries(st.integers(1, 7), st.integers(0, 5)))
def test_an_index_is_agreed_if_some_majority_of_each_half_has_it(
    voters: tuple[int, ...], outgoing: tuple[int, ...], acked: dict[int, int]
) -> None:
    configuration = Configuration(voters, outgoing)
    agreed = agreed_index(configuration, lambda member: acked.get(member, 0))

    def is_agreed(index: int) -> bool:
        return all(
            any(all(acked.get(m, 0) >= index for m in majority) for majority in majorities(half))
            for half in halves(configuration)
        )

    if not halves(configuration):
        assert agreed == EVERYTHING
    else:
        assert agreed == max(index for index in range(6) if is_agreed(index))


@given(ids, ids, st.dictionaries(st.integers(1, 7), st.booleans()))
def test_a_vote_is_won_or_lost_as_soon_as_no_answer_could_change_it(
    voters: tuple[int, ...], outgoing: tuple[int, ...], votes: dict[int, bool]
) -> None:
    configuration = Configuration(voters, outgoing)

    def wins(granted: set[int]) -> bool:
        return all(
            any(majority <= granted for majority in majorities(half))
            for half in halves(configuration)
        )

    yes = {member for member, vote in votes.items() if vote}
    open_ = {*voters, *outgoing} - votes.keys()
    expected = (
        VoteResult.WON
        if wins(yes)
        else VoteResult.PENDING
        if wins(yes | open_)
        else VoteResult.LOST
    )
    assert joint_vote(configuration, votes) is expected


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
