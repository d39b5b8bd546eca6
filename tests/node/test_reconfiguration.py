"""The way from any members to any others: always a leader, one copy at a time, never stuck."""

from itertools import combinations

import pytest

from quivermq.node.reconfiguration import next_change
from quivermq.raft import Act, Change, Configuration, MembershipChange
from quivermq.raft.membership import changed

MEMBERS = (1, 2, 3, 4)


def subsets(least: int) -> list[tuple[int, ...]]:
    return [s for n in range(least, len(MEMBERS) + 1) for s in combinations(MEMBERS, n)]


def after(configuration: Configuration, change: list[Change]) -> Configuration:
    """As the core does it: a joint configuration is left by itself."""
    made = changed(configuration, MembershipChange(tuple(change)))
    return changed(made, MembershipChange()) if made.is_joint else made


@pytest.mark.parametrize("voters", subsets(1))
@pytest.mark.parametrize("before", subsets(1))
def test_every_way_ends_where_it_should(before: tuple[int, ...], voters: tuple[int, ...]) -> None:
    for leader in before:
        configuration, leads = Configuration(voters=before), leader
        learners = {5} if 4 in voters else set()
        for _ in range(20):
            change = next_change(configuration, set(voters), learners, leads)
            if change is None:
                break
            if not change:
                assert leads not in voters
                leads = voters[0]
                assert leads in configuration.voters
                continue
            configuration = after(configuration, change)
            assert leads in configuration.voters, "the leader is never voted out by its own change"
        assert set(configuration.voters) == set(voters)
        assert set(configuration.learners) == learners


def test_members_are_copied_one_at_a_time_and_vote_only_later() -> None:
    change = next_change(Configuration(voters=(1,)), {1, 2, 3}, set(), 1)
    assert change == [Change(Act.ADD_LEARNER, 2)]


def test_the_same_broker_under_another_number_takes_the_place_of_its_former_self() -> None:
    again = 1 << 16 | 3
    configuration = Configuration(voters=(1, 2, 3), learners=(again,))
    change = next_change(configuration, {1, 2, again}, set(), 1)
    assert change == [Change(Act.ADD_VOTER, again), Change(Act.REMOVE, 3)]
