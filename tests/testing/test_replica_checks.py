"""The checker of replicas finds what must never be."""

import re
from random import Random

import pytest

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.log import Log
from quivermq.replica import blank_log
from quivermq.testing import Violation
from quivermq.testing.simulated_disk import SimulatedDisk
from quivermq.testing.simulation.replica_checks import ReplicaChecks, Standing
from tests.testing.test_simulation import simulate

PARTITION = b"orders"
LIFE, NEXT_LIFE = object(), object()

TWO_LEADERS = """
from quivermq.testing.simulation.replica_checks import ReplicaChecks, Standing

def lie(checks, hosted):
    for member in (1, 2):
        checks.see(hosted.id, member, hosted, Standing(2, 5, 5, 77, True))

ReplicaChecks._look_at = lie
"""
TWO_VOTES = """
from quivermq.testing.simulation.replica_checks import ReplicaChecks

see_vote = ReplicaChecks.see_vote

def see_two(checks, partition, member, term, candidate):
    see_vote(checks, partition, member, term, candidate)
    if member != candidate:
        see_vote(checks, partition, member, term, member)

ReplicaChecks.see_vote = see_two
"""
BROKEN = """
from quivermq.errors import BrokenInvariant
from quivermq.replica import Replica

def break_one(replica):
    raise BrokenInvariant("planted")

Replica.validate = break_one
"""
RUN = """
from itertools import count
from quivermq.testing import Simulation
from quivermq.testing.simulation import run_seed

print(run_seed(next(n for n in count() if len(Simulation(n).cluster.brokers) == 3)).failure)
"""


def standing(
    term: int = 2, commit: int = 5, applied: int = 5, digest: int = 77, *, is_leader: bool = False
) -> Standing:
    return Standing(term, commit, applied, digest, is_leader)


def found(checks: ReplicaChecks) -> list[str]:
    return [str(violation) for violation in checks.violations]


def test_replicas_that_agree_are_fine_and_one_that_starts_again_may_be_behind() -> None:
    checks = ReplicaChecks()
    checks.see_vote(PARTITION, 2, 2, 1)
    checks.see(PARTITION, 1, LIFE, standing(is_leader=True))
    checks.see(PARTITION, 2, LIFE, standing(commit=4, applied=4, digest=66))
    checks.see(PARTITION, 2, LIFE, standing())
    checks.see(PARTITION, 1, NEXT_LIFE, standing(commit=3, applied=3, digest=55))
    checks.see(PARTITION, 2, LIFE, standing(term=3, is_leader=True))
    checks.see(b"another", 2, LIFE, standing(digest=1, is_leader=True))
    checks.check_state(PARTITION, 1, 5, b"state")
    checks.check_state(PARTITION, 2, 5, b"state")
    assert not checks.violations


def test_a_term_has_one_leader() -> None:
    checks = ReplicaChecks()
    for member in (1, 2):
        checks.see(PARTITION, member, LIFE, standing(is_leader=True))
    assert found(checks) == ["members 1 and 2 both lead term 2"]


def test_a_member_votes_once_a_term_and_a_leader_voted_for_itself() -> None:
    checks = ReplicaChecks()
    checks.see_vote(PARTITION, 3, 2, 1)
    checks.see_vote(PARTITION, 3, 2, 1)
    checks.see_vote(PARTITION, 3, 2, 2)
    checks.see(PARTITION, 3, LIFE, standing(is_leader=True))
    assert found(checks) == [
        "member 3 votes for 1 and 2 in term 2",
        "member 3 votes for 1 and 3 in term 2",
    ]


@pytest.mark.parametrize(
    "later", [standing(term=1), standing(commit=4, applied=4, digest=66), standing(commit=4)]
)
def test_nothing_goes_back_in_the_life_of_a_replica(later: Standing) -> None:
    checks = ReplicaChecks()
    checks.see(PARTITION, 1, LIFE, standing())
    checks.see(PARTITION, 1, LIFE, later)
    assert "member 1 went back" in found(checks)[0]


def test_nothing_is_applied_that_is_not_committed() -> None:
    checks = ReplicaChecks()
    checks.see(PARTITION, 1, LIFE, standing(commit=4))
    assert "applied more than is committed" in found(checks)[0]


def test_replicas_that_applied_equally_much_applied_the_same() -> None:
    checks = ReplicaChecks()
    checks.see(PARTITION, 1, LIFE, standing())
    checks.see(PARTITION, 2, LIFE, standing(digest=78))
    assert found(checks) == ["I6: members 1 and 2 applied other entries up to 5"]


def test_what_was_applied_is_never_lost() -> None:
    checks = ReplicaChecks()
    checks.see(PARTITION, 1, LIFE, standing())
    checks.check_commit(PARTITION, 5)
    with pytest.raises(Violation, match="5 was applied, and only 4 is committed"):
        checks.check_commit(PARTITION, 4)


def test_replicas_end_in_the_same_state() -> None:
    checks = ReplicaChecks()
    checks.check_state(PARTITION, 1, 5, b"state")
    with pytest.raises(Violation, match="the states of 1 and 2 differ at 5"):
        checks.check_state(PARTITION, 2, 5, b"other")


def log_of(*entries: tuple[int, bytes, int]) -> Log:
    """A log with entries of these terms, contents and times."""
    log = blank_log(SimulatedDisk(Random(1)), "log", b"0123456789abcdef")
    for index, (term, body, time_ms) in enumerate(entries, 1):
        frame = Frame.of(FrameKind.COMMAND, body).stamped(
            term=term, index=Index(index), base_offset=Offset(0), timestamp_ms=time_ms
        )
        log.append([frame])
    log.sync()
    return log


def test_logs_are_equal_as_far_as_they_overlap() -> None:
    checks = ReplicaChecks()
    checks.check_log("orders/0", 1, log_of((1, b"a", 5), (1, b"b", 6)))
    checks.check_log("orders/0", 2, log_of((1, b"a", 5)))
    checks.check_log("orders/1", 2, log_of((1, b"x", 5)))
    with pytest.raises(Violation, match="the logs of orders/0 of 1 and 3 differ at 2"):
        checks.check_log("orders/0", 3, log_of((1, b"a", 5), (1, b"c", 6)))


def test_checkpoints_at_one_index_are_the_same_bytes() -> None:
    checks = ReplicaChecks()
    for node, state in ((1, b"state"), (2, b"state"), (3, b"other")):
        log = log_of((1, b"a", 5))
        log.save_checkpoint(Index(1), state)
        if node < 3:
            checks.check_log("orders/0", node, log)
    with pytest.raises(Violation, match="checkpoints of orders/0 of 1 and 3 differ at 1"):
        checks.check_log("orders/0", node, log)


def test_time_never_goes_back_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of((1, b"a", 5), (1, b"b", 6))
    # A log refuses such entries itself.
    monkeypatch.setattr(log, "frames", lambda first: reversed(list(Log.frames(log, first))))
    with pytest.raises(Violation, match=r"time goes back before .* of orders/0 at node 1"):
        ReplicaChecks().check_log("orders/0", 1, log)


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        (TWO_LEADERS, r"Violation: members 1 and 2 both lead term 2"),
        (TWO_VOTES, r"Violation: member \d votes for \d and \d in term 2"),
        (BROKEN, r"Violation: member \d of .*: planted"),
    ],
)
def test_a_simulation_ends_with_the_first_violation(planted: str, seen: str) -> None:
    """In a process of its own: what killed brokers leave behind ends with it."""
    assert re.match(seen, simulate("-c", planted + RUN))
