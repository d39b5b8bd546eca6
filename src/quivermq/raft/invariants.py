"""Checks the invariants that hold between any two steps of a member, from scratch.

Tests call this after every step; it is too slow for every step of a server.
"""

from collections.abc import Iterator

from quivermq.errors import InvalidRequest
from quivermq.raft.membership import check
from quivermq.raft.messages import NOBODY, Role
from quivermq.raft.progress import Pace, Progress
from quivermq.raft.replica import Replica


def validate(replica: Replica) -> None:
    """Raise `BrokenInvariant` with everything that is wrong."""
    faults = [
        *_log_faults(replica),
        *_role_faults(replica),
        *_membership_faults(replica),
        *(
            f"member {member}: {fault}"
            for member, progress in replica.progress.items()
            for fault in _progress_faults(progress)
        ),
    ]
    if faults:
        replica.fail("; ".join(faults))


def _log_faults(replica: Replica) -> Iterator[str]:
    log = replica.log
    if not log.applied <= log.applying <= log.committed <= log.last_index:
        yield f"applied {log.applied}, applying {log.applying} out of order"
    if not log.tail_start <= log.handed <= log.last_index + 1:
        yield f"handed {log.handed} outside of the tail from {log.tail_start}"
    for position, entry in enumerate(log.tail):
        if entry.index != log.tail_start + position:
            yield f"entry {entry.index} lies at {log.tail_start + position}"
    terms = [log.term(log.tail_start - 1) or 0, *(entry.term for entry in log.tail)]
    if terms != sorted(terms):
        yield f"terms {terms} fall"
    if log.tail and terms[-1] > replica.term:
        yield f"an entry of term {terms[-1]} is ahead"
    if log.incoming and log.incoming.index != log.tail_start - 1:
        yield f"the tail from {log.tail_start} does not follow the snapshot {log.incoming.index}"
    if log.applying_bytes < 0 or replica.uncommitted_bytes < 0:
        yield "a count of bytes is negative"


def _role_faults(replica: Replica) -> Iterator[str]:
    role = replica.role
    if role is Role.LEADER and (replica.leader != replica.id or replica.vote != replica.id):
        yield "a leader that does not believe in itself"
    if role is not Role.LEADER and replica.leader == replica.id:
        yield "believes in itself without leading"
    if role in (Role.CANDIDATE, Role.PRE_CANDIDATE) and replica.leader != NOBODY:
        yield "a candidate that knows a leader"
    if role is Role.CANDIDATE and replica.vote != replica.id:
        yield "a candidate that voted for another"
    if role is not Role.LEADER and (replica.transferee or len(replica.reads)):
        yield "leader's business left over"
    if role is Role.LEADER and replica.transferee == replica.id:
        yield "hands leadership to itself"
    options = replica.options
    if not options.election_ticks <= replica.election_timeout < 2 * options.election_ticks:
        yield f"election timeout {replica.election_timeout}"


def _membership_faults(replica: Replica) -> Iterator[str]:
    try:
        check(replica.configuration)
    except InvalidRequest as error:
        yield str(error)
    if tuple(replica.progress) != replica.configuration.members:
        yield f"tracks {tuple(replica.progress)}"
    for member, progress in replica.progress.items():
        if progress.is_learner != (member in replica.configuration.learners):
            yield f"member {member} is tracked as the wrong kind"


def _progress_faults(progress: Progress) -> Iterator[str]:
    if progress.next <= progress.match:
        yield f"next {progress.next} is not above match {progress.match}"
    inflight = progress.inflight
    if inflight.bytes != sum(size for _, size in inflight.window):
        yield f"{inflight.bytes} bytes in flight are not what the window holds"
    if len(inflight) > inflight.messages_max:
        yield f"{len(inflight)} messages in flight"
    if progress.pace is not Pace.REPLICATE and len(inflight):
        yield "messages in flight while not replicating"
    if (progress.pace is Pace.SNAPSHOT) != bool(progress.pending_snapshot):
        yield f"snapshot {progress.pending_snapshot} pending in {progress.pace.name}"
