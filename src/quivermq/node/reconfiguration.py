"""Gives a partition other members: learners first, brought up to date, then one joint change.

The leader of the partition does this. A leader that is to go hands its leadership over and lets the
next leader finish: every step leads from any configuration on the way to the one that is wanted.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from itertools import cycle
from typing import Final

from quivermq.cluster import node_of
from quivermq.errors import InvalidRequest, NotEnoughReplicas, NotLeader, Timeout
from quivermq.node.hosted_replica import HostedReplica
from quivermq.raft import Act, Change, Configuration, MembershipChange

logger = logging.getLogger("quivermq.reconfiguring")

_LOOK_AGAIN_S: Final = 0.02
_LAG_MAX: Final = 64
"""A learner that lacks so few entries is up to date: it gets them before it is asked to vote."""


async def reconfigure(
    hosted: HostedReplica,
    voters: Collection[int],
    learners: Collection[int] = (),
    *,
    is_alive: Callable[[int], bool],
    timeout_s: float,
) -> None:
    """Give the partition exactly these members. Raises `NotLeader` when another leader must go on.

    `Timeout` says that a member could not be brought up to date, `NotEnoughReplicas` that its
    broker is down; asking again goes on from there.
    """
    if not voters:
        raise InvalidRequest(f"{hosted.name} cannot be without members that vote")
    try:
        async with asyncio.timeout(timeout_s):
            while not await _step(hosted, set(voters), set(learners), is_alive):
                pass
    except TimeoutError:
        raise Timeout(
            f"{hosted.name} did not get its members within {timeout_s:.0f} s; it goes on when asked"
        ) from None


async def _step(
    hosted: HostedReplica, voters: set[int], learners: set[int], is_alive: Callable[[int], bool]
) -> bool:
    """One change; True if there is none left to make."""
    if not hosted.was_serving:
        raise NotLeader(f"{hosted.name} is led elsewhere", leader=_leader(hosted))
    configuration = hosted.replica.configuration
    if configuration.is_joint:
        await asyncio.sleep(_LOOK_AGAIN_S)
        return False
    change = next_change(configuration, voters, learners, hosted.member)
    if change is None:
        return True
    if not change:
        await _hand_over(hosted, voters)
        return False
    await _bring_up(hosted, _to_wait_for(configuration, change, voters), is_alive)
    logger.info("%s: %s", hosted.name, "; ".join(map(_in_words, change)))
    await _propose(hosted, MembershipChange(tuple(change)))
    return False


def _in_words(change: Change) -> str:
    node = node_of(change.member)
    match change.act:
        case Act.ADD_LEARNER:
            return f"broker {node} gets a copy, without a vote"
        case Act.ADD_VOTER:
            return f"broker {node} votes"
        case Act.REMOVE:
            return f"broker {node} is taken out"
    return f"broker {node} is updated"


def next_change(
    configuration: Configuration, voters: set[int], learners: set[int], leader: int
) -> list[Change] | None:
    """The next step towards these members; [] if the leader has to hand over first, None at the
    end."""
    known = set(configuration.members)
    if missing := sorted((voters | learners) - known):
        return [Change(Act.ADD_LEARNER, missing[0])]
    here = set(configuration.voters)
    if here == voters and set(configuration.learners) == learners:
        return None
    goes = leader not in voters
    change = [Change(Act.ADD_VOTER, member) for member in sorted(voters - here)]
    if goes and change:
        # The leader stays until another member can lead.
        return change
    if goes:
        return []
    change += [Change(Act.ADD_LEARNER, member) for member in sorted(here & learners)]
    change += [Change(Act.REMOVE, member) for member in sorted(known - voters - learners)]
    return change


def _to_wait_for(configuration: Configuration, change: list[Change], voters: set[int]) -> set[int]:
    """The members that must be up to date before this change: those that it lets vote; and before
    another learner comes, those that came before it, so that one is copied at a time."""
    if any(one.act is Act.ADD_VOTER for one in change):
        return {one.member for one in change if one.act is Act.ADD_VOTER}
    if any(one.act is Act.ADD_LEARNER for one in change):
        return set(configuration.learners) & voters
    return set()


async def _bring_up(
    hosted: HostedReplica, rising: set[int], is_alive: Callable[[int], bool]
) -> None:
    """Wait until these have nearly everything; not for a broker that is down: that may take for
    ever, and the controller has other partitions to move."""
    while behind := [member for member in rising if not _is_up_to_date(hosted, member)]:
        if not hosted.was_serving:
            raise NotLeader(f"{hosted.name} is led elsewhere", leader=_leader(hosted))
        down = [node_of(member) for member in behind if not is_alive(node_of(member))]
        if down:
            raise NotEnoughReplicas(
                f"{hosted.name} waits for node {down[0]}, which is down: start it, or let it go "
                f"with `quiver cluster remove {down[0]}`"
            )
        logger.debug("%s waits for %s", hosted.name, behind)
        hosted.wake()
        await asyncio.sleep(_LOOK_AGAIN_S)


def _is_up_to_date(hosted: HostedReplica, member: int) -> bool:
    lag = hosted.replica.lag_of(member)
    return lag is not None and lag <= _LAG_MAX


async def _propose(hosted: HostedReplica, change: MembershipChange) -> None:
    await hosted.call(lambda replica, token: replica.change_membership(token, change))


async def _hand_over(hosted: HostedReplica, voters: set[int]) -> None:
    """Try one after the other: with one that is down the partition would take nothing in."""
    loop = asyncio.get_running_loop()
    for target in cycle(sorted(voters, key=lambda member: _lag(hosted, member))):
        hosted.transfer_leader(target)
        deadline = loop.time() + 2 * hosted.election_s
        while loop.time() < deadline:
            if not hosted.was_serving:
                raise NotLeader(f"{hosted.name} was handed over", leader=_leader(hosted))
            await asyncio.sleep(_LOOK_AGAIN_S)


def _lag(hosted: HostedReplica, member: int) -> tuple[bool, int]:
    lag = hosted.replica.lag_of(member)
    return lag is None, lag or 0


def _leader(hosted: HostedReplica) -> int:
    return node_of(hosted.replica.leader)
