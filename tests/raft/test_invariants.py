"""`validate` notices each kind of corruption, and tells the story."""

from collections.abc import Callable

import pytest

from quivermq.errors import BrokenInvariant
from quivermq.raft import Configuration, Entry, Role, Snapshot
from quivermq.raft.reads import ReadRequest
from quivermq.raft.replica import Replica
from tests.raft.group import elected, node_with

Corruption = Callable[[Replica], object]


def corrupted_reads(replica: Replica) -> None:
    replica.reads.add(ReadRequest(1, b"r"), 1)


FOLLOWER: dict[str, Corruption] = {
    "out of order": lambda r: setattr(r.log, "applied", 9),
    "outside of the tail": lambda r: setattr(r.log, "handed", 99),
    "lies at": lambda r: r.log.tail.append(Entry(1, 77)),
    "fall": lambda r: r.log.tail.append(Entry(0, 3)),
    "is ahead": lambda r: r.log.tail.append(Entry(9, 3)),
    "does not follow the snapshot": lambda r: setattr(
        r.log, "incoming", Snapshot(1, 1, Configuration((1,)))
    ),
    "negative": lambda r: setattr(r, "uncommitted_bytes", -1),
    "without leading": lambda r: setattr(r, "leader", 1),
    "candidate that knows a leader": lambda r: (
        setattr(r, "role", Role.PRE_CANDIDATE),
        setattr(r, "leader", 2),
    ),
    "voted for another": lambda r: setattr(r, "role", Role.CANDIDATE),
    "left over": corrupted_reads,
    "election timeout": lambda r: setattr(r, "election_timeout", 1),
    "tracks": lambda r: r.progress.pop(3),
    "wrong kind": lambda r: setattr(r.progress[2], "is_learner", True),
    "a learner that votes": lambda r: setattr(
        r, "configuration", r.configuration._replace(learners=(2,))
    ),
    "not above match": lambda r: setattr(r.progress[2], "match", 99),
    "not what the window holds": lambda r: setattr(r.progress[2].inflight, "bytes", 5),
    "in flight while not replicating": lambda r: r.progress[2].inflight.add(1, 1),
    "pending in PROBE": lambda r: setattr(r.progress[2], "pending_snapshot", 4),
}

LEADER: dict[str, Corruption] = {
    "believe in itself": lambda r: setattr(r, "leader", 2),
    "to itself": lambda r: setattr(r, "transferee", 1),
    "300 messages in flight": lambda r: [r.progress[1].inflight.add(1, 0) for _ in range(300)],
}


@pytest.mark.parametrize("fault", FOLLOWER)
def test_a_corrupted_follower_is_noticed(fault: str) -> None:
    node = node_with(1, 1)
    node.validate()
    FOLLOWER[fault](node.replica)
    with pytest.raises(BrokenInvariant, match=fault) as story:
        node.validate()
    assert "member 1" in str(story.value)


@pytest.mark.parametrize("fault", LEADER)
def test_a_corrupted_leader_is_noticed(fault: str) -> None:
    node = elected(node_with(1, 1), 2)
    LEADER[fault](node.replica)
    with pytest.raises(BrokenInvariant, match=fault):
        node.validate()
