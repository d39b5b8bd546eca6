"""Checks the replicas of all brokers at every step, from outside.

- A term has one leader, and a member gives one vote in it, also across restarts.
- Term, commit index and applied index of a replica only grow.
- Replicas that applied equally much applied the same, and have the same state, byte for byte; what
  was applied anywhere is never lost.
- The logs on all disks are equal as far as they overlap, checkpoints included, and time never goes
  back in them.
- The invariants that replicas check themselves (`Replica.validate`) hold, as far as they are asked.

The digest of a replica hashes the headers, and so the content, of all entries that it has applied:
one entry that differs makes it differ for good.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant, Corrupt
from quivermq.log import Log
from quivermq.node import HostedReplica
from quivermq.raft import Message, MessageKind
from quivermq.replica import Consensus, Mail
from quivermq.testing import Violation

_VALIDATE_EVERY: Final = 500
"""A replica checks itself at every so many steps: that takes longer than the step."""


class Standing(NamedTuple):
    """A replica after a step."""

    term: int
    commit: int
    applied: int
    digest: int
    is_leader: bool


class _Seen(NamedTuple):
    life: object
    standing: Standing


class ReplicaChecks:
    """All that is known of all replicas, by partition."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        """Not raised where they are found: a broker would take them for errors of its own."""
        self.steps = 0
        self._seen: dict[tuple[bytes, int], _Seen] = {}
        self._votes: dict[tuple[bytes, int, int], int] = {}
        self._leaders: dict[tuple[bytes, int], int] = {}
        self._applied: dict[bytes, dict[int, tuple[int, int]]] = defaultdict(dict)
        """By index, the member that applied so much first, and its digest."""
        self._entries: dict[object, dict[int, tuple[int, bytes]]] = defaultdict(dict)
        self._checkpoints: dict[object, dict[int, tuple[int, bytes]]] = defaultdict(dict)

    # While it runs.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See every step of every replica, and every vote that reaches a broker: the votes of one
        that came back without its disk reach none."""
        advance, receive = HostedReplica.advance, HostedReplica.receive

        def seen_advance(hosted: HostedReplica) -> None:
            advance(hosted)
            self._look_at(hosted)

        def seen_receive(hosted: HostedReplica, sender: int, mail: Mail) -> None:
            if isinstance(mail, Consensus) and _is_vote(mail.message):
                self.see_vote(hosted.id, sender, mail.message.term, hosted.member)
            receive(hosted, sender, mail)

        HostedReplica.advance = seen_advance  # type: ignore[assignment,method-assign]
        HostedReplica.receive = seen_receive  # type: ignore[assignment,method-assign]
        try:
            yield
        finally:
            HostedReplica.advance = advance  # type: ignore[method-assign]
            HostedReplica.receive = receive  # type: ignore[method-assign]

    def _look_at(self, hosted: HostedReplica) -> None:
        replica = hosted.replica
        if not replica.is_repairing:
            standing = Standing(
                replica.term,
                replica.commit_index,
                replica.applied_index,
                replica.digest,
                replica.is_leader,
            )
            self.see(hosted.id, hosted.member, replica, standing)
            if self.steps % _VALIDATE_EVERY == 0:
                self._validate(hosted)

    def _validate(self, hosted: HostedReplica) -> None:
        try:
            hosted.replica.validate()
        except BrokenInvariant as error:
            self._violated(f"member {hosted.member} of {hosted.name}: {error}")

    def see(self, partition: bytes, member: int, life: object, standing: Standing) -> None:
        """A replica took a step; `life` is another object when it is made anew."""
        self.steps += 1
        before = self._seen.get((partition, member))
        if before is not None and before.life is life and before.standing == standing:
            return
        self._seen[partition, member] = _Seen(life, standing)
        if before is not None and before.life is life:
            self._check_progress(member, before.standing, standing)
        if standing.applied > standing.commit:
            self._violated(f"I6: member {member} applied more than is committed: {standing}")
        if standing.is_leader:
            self._see_leader(partition, member, standing.term)
        first, digest = self._applied[partition].setdefault(
            standing.applied, (member, standing.digest)
        )
        if digest != standing.digest:
            self._violated(
                f"I6: members {first} and {member} applied other entries up to {standing.applied}"
            )

    def _check_progress(self, member: int, before: Standing, standing: Standing) -> None:
        if any(now < then for now, then in zip(standing[:3], before[:3], strict=True)):
            self._violated(f"I6: member {member} went back from {before} to {standing}")

    def _see_leader(self, partition: bytes, member: int, term: int) -> None:
        leader = self._leaders.setdefault((partition, term), member)
        if leader != member:
            self._violated(f"members {leader} and {member} both lead term {term}")
        self.see_vote(partition, member, term, member)

    def see_vote(self, partition: bytes, member: int, term: int, candidate: int) -> None:
        """A member gives its vote to a candidate."""
        known = self._votes.setdefault((partition, member, term), candidate)
        if known != candidate:
            self._violated(f"member {member} votes for {known} and {candidate} in term {term}")

    def _violated(self, text: str) -> None:
        self.violations.append(Violation(text))

    # At the end.

    def check_states(self, replicas: Sequence[HostedReplica]) -> int:
        """Compare all replicas after everything has healed; returns how many there were."""
        for hosted in replicas:
            replica = hosted.replica
            if (checkpoint := replica.checkpoint) is not None:
                applied = replica.applied_index
                self.check_state(hosted.id, hosted.member, applied, checkpoint.data)
        # A partition without a leader is about to be removed.
        for partition in {hosted.id: None for hosted in replicas if hosted.replica.is_serving}:
            commits = [one.replica.commit_index for one in replicas if one.id == partition]
            self.check_commit(partition, max(commits))
        return len(replicas)

    def check_state(self, partition: bytes, member: int, applied: int, state: bytes) -> None:
        """A replica that applied so much has this state."""
        _compare(self._checkpoints[partition], applied, member, state, "the states")

    def check_commit(self, partition: bytes, commit: int) -> None:
        """No replica of a partition knows of more that is committed."""
        furthest = max(self._applied[partition], default=0)
        if commit < furthest:
            raise Violation(f"I6: {furthest} was applied, and only {commit} is committed")

    def check_log(self, place: object, node: int, log: Log) -> None:
        """The log of one broker, read from its disk after all have ended."""
        latest_ms = 0
        for frame in log.frames(log.first_index):
            header = frame.header
            if header.timestamp_ms < latest_ms:
                raise Violation(f"I6: time goes back before {frame} of {place} at node {node}")
            latest_ms = header.timestamp_ms
            packed = bytes(frame.packed_header)
            _compare(self._entries[place], header.index, node, packed, f"the logs of {place}")
        for index in log.checkpoints():
            # A damaged one is no other state: the one before it leads to the same.
            with suppress(Corrupt):
                data = log.load_checkpoint(index).data
                _compare(self._checkpoints[place], index, node, data, f"checkpoints of {place}")


def _is_vote(message: Message) -> bool:
    return message.kind is MessageKind.VOTE_REPLY and not message.reject


def _compare(
    known: dict[int, tuple[int, bytes]], index: int, owner: int, content: bytes, what: str
) -> None:
    other, expected = known.setdefault(index, (owner, content))
    if expected != content:
        raise Violation(f"I6: {what} of {other} and {owner} differ at {index}")
