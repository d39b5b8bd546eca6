"""Majorities, alone and joint: what a set of voters has agreed on.

Pure functions over ids. A joint decision (thesis §4.3) needs both halves; an empty half agrees to
everything, so that a configuration that is not joint is the joint one with an empty half.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from quivermq.raft.messages import Configuration

EVERYTHING = (1 << 64) - 1
"""The index that an empty set of voters has agreed on: above every other."""


class VoteResult(Enum):
    """How a vote stands. Lost means that no answer still to come could win it."""

    PENDING = "VotePending"
    LOST = "VoteLost"
    WON = "VoteWon"


def majority_index(voters: Sequence[int], acked: Callable[[int], int]) -> int:
    """The highest index that a majority of `voters` has acknowledged."""
    if not voters:
        return EVERYTHING
    ascending = sorted([acked(voter) for voter in voters])
    # Of 2f+1 voters the f+1 from this position on have at least this index; of 2f also f+1.
    return ascending[(len(ascending) - 1) // 2]


def agreed_index(configuration: Configuration, acked: Callable[[int], int]) -> int:
    """The highest index that the configuration has agreed on, joint or not."""
    agreed = majority_index(configuration.voters, acked)
    if configuration.outgoing:
        agreed = min(agreed, majority_index(configuration.outgoing, acked))
    return agreed


def majority_vote(voters: Sequence[int], votes: Mapping[int, bool]) -> VoteResult:
    """How `votes` (absent: not yet answered) stand among `voters`."""
    needed = len(voters) // 2 + 1 if voters else 0
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return VoteResult.WON
    if granted + (len(voters) - granted - refused) < needed:
        return VoteResult.LOST
    return VoteResult.PENDING


def joint_vote(configuration: Configuration, votes: Mapping[int, bool]) -> VoteResult:
    """Won when both halves are won, lost as soon as either is lost."""
    results = {
        majority_vote(configuration.voters, votes),
        majority_vote(configuration.outgoing, votes),
    }
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
