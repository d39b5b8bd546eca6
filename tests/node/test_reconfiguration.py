"""The way from any members to any others: always a leader, one copy at a time, never stuck."""

import asyncio
from itertools import combinations

import pytest

from quivermq.batches import Index
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.reconfiguration import next_change, reconfigure
from quivermq.raft import Act, Change, Configuration, MembershipChange, Message, MessageKind
from quivermq.raft.membership import changed
from quivermq.replica import Consensus
from tests.node.replica_stage import begin_produce, stage
from tests.transports.stage import on_loop, until

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


def has_log_up_to(group: HostedReplica, member: int, index: int) -> None:
    """A member tells the leader how much of the log it has."""
    reply = Message(MessageKind.APPEND_REPLY, 1, member, group.replica.term, index=Index(index))
    group.receive(member, Consensus(reply))


@on_loop
async def test_a_member_does_not_vote_before_it_has_the_log() -> None:
    async with stage() as it:
        group = await it.serving_group()
        answers = [begin_produce(group) for _ in range(100)]
        await until(lambda: all(answers))
        changing = asyncio.create_task(
            reconfigure(group, {1, 2}, is_alive=lambda _: True, timeout_s=10)
        )
        await until(lambda: group.replica.configuration.learners == (2,))
        has_log_up_to(group, 2, 1)
        await until(lambda: group.replica.lag_of(2))
        # Looked at several times meanwhile.
        await asyncio.sleep(0.1)
        assert group.replica.configuration.all_voters == (1,)
        has_log_up_to(group, 2, group.log.edge.next_index - 1)
        await until(lambda: group.replica.configuration.voters == (1, 2))
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
