"""Checkers of a simulation, one class for each guarantee.

They see nodes and clients from outside, keep their own records, and share nothing with the code
under test but the format of a frame. Each raises `Violation` with the number of the guarantee from
`docs/guarantees.md` in front.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quivermq.batches import Frame, FrameKind, Header, decode_messages
from quivermq.replica import Produced
from quivermq.testing import Violation


class BatchId(NamedTuple):
    """The identity of a batch, however often it is sent."""

    producer_id: int
    epoch: int
    sequence: int

    @classmethod
    def of(cls, header: Header) -> "BatchId":
        return cls(header.producer_id, header.producer_epoch, header.sequence)


class ReplicaContents(NamedTuple):
    """The log of one replica at the end, read from its disk."""

    member: int
    next_offset: int
    frames: Sequence[Frame]


def is_data(frame: Frame) -> bool:
    return frame.header.kind == FrameKind.DATA


@dataclass
class Acknowledged:
    """I1: what was acknowledged is on every live replica, at its offset, with its bytes."""

    acked: dict[BatchId, tuple[Frame, Produced]] = field(default_factory=dict)

    def ack(self, frame: Frame, produced: Produced) -> None:
        """A client is told that its batch is stored."""
        batch = BatchId.of(frame.header)
        known = self.acked.setdefault(batch, (frame, produced))[1]
        told = (produced.base_offset, produced.count, produced.timestamp_ms)
        before = (known.base_offset, known.count, known.timestamp_ms)
        if told != before or produced.count != frame.header.count:
            raise Violation(f"I1: {batch} was acknowledged as {known}, then as {produced}")

    def check(self, copies: Sequence[ReplicaContents]) -> None:
        for copy in copies:
            held = {frame.header.base_offset: frame for frame in copy.frames if is_data(frame)}
            first = min(held, default=copy.next_offset)
            for batch, (frame, produced) in self.acked.items():
                found = held.get(produced.base_offset)
                if found is None and produced.base_offset < first:
                    continue
                if found is None:
                    raise Violation(f"I1: node {copy.member} lacks {batch}, acked as {produced}")
                same_place = found.header.timestamp_ms == produced.timestamp_ms
                if BatchId.of(found.header) != batch or found.body != frame.body or not same_place:
                    raise Violation(f"I1: node {copy.member} has {found} where {batch} was acked")


@dataclass
class NothingUnsent:
    """I2: everything stored was sent by a producer."""

    sent: dict[BatchId, list[bytes]] = field(default_factory=dict)

    def send(self, frame: Frame, values: list[bytes]) -> None:
        """A client sends these messages, perhaps not for the first time."""
        self.sent.setdefault(BatchId.of(frame.header), values)

    def check(self, frames: Sequence[Frame]) -> None:
        for frame in filter(is_data, frames):
            batch = BatchId.of(frame.header)
            stored = [message.value for message in decode_messages(frame)]
            if self.sent.get(batch) != stored:
                raise Violation(f"I2: {frame} of {batch} holds {stored}, never sent like that")


class ProducerOrder:
    """I3: the batches of a producer are stored in its order, without gaps; epochs only grow."""

    def check(self, frames: Sequence[Frame]) -> None:
        following: dict[int, tuple[int, int]] = {}
        for frame in filter(is_data, frames):
            header = frame.header
            epoch, expected = following.get(header.producer_id, (0, 0))
            if header.producer_epoch > epoch:
                epoch, expected = header.producer_epoch, 0
            if (header.producer_epoch, header.sequence) != (epoch, expected):
                raise Violation(
                    f"I3: {frame} has {BatchId.of(header)} where epoch {epoch}, "
                    f"sequence {expected} is next"
                )
            following[header.producer_id] = (epoch, expected + header.count)


class OneCopy:
    """I7: no batch is stored twice, and offsets count messages without gaps."""

    def check(self, frames: Sequence[Frame]) -> None:
        seen: dict[BatchId, Frame] = {}
        next_offset: int | None = None
        for frame in frames:
            header = frame.header
            if next_offset not in {None, header.base_offset}:
                raise Violation(f"I7: {frame} where offset {next_offset} is next")
            next_offset = header.next_offset
            if is_data(frame) and seen.setdefault(BatchId.of(header), frame) is not frame:
                first = seen[BatchId.of(header)]
                raise Violation(f"I7: {BatchId.of(header)} is stored twice: {first} and {frame}")


class TimeOrder:
    """I6: the times that leaders stamp never go back in the log, whatever their clocks do."""

    def check(self, frames: Sequence[Frame]) -> None:
        latest_ms = 0
        for frame in frames:
            if frame.header.timestamp_ms < latest_ms:
                raise Violation(
                    f"I6: {frame} is stamped {latest_ms - frame.header.timestamp_ms} "
                    "ms before the one in front of it"
                )
            latest_ms = frame.header.timestamp_ms


@dataclass
class NothingGoesBack:
    """I6: within a process, term, commit and applied index only grow; on disk, the term does."""

    reached: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    saved_terms: dict[int, int] = field(default_factory=dict)

    def see(self, member: int, life: int, term: int, commit: int, applied: int) -> None:
        now = (term, commit, applied)
        before = self.reached.get((member, life), now)
        if any(new < old for new, old in zip(now, before, strict=True)):
            raise Violation(
                f"I6: node {member} went back from (term, commit, applied) {before} to {now}"
            )
        if applied > commit:
            raise Violation(f"I6: node {member} applied {applied}, only {commit} is committed")
        self.reached[member, life] = now

    def save_term(self, member: int, term: int) -> None:
        """The term that is on a node's disk, now or after a restart."""
        before = self.saved_terms.get(member, 0)
        if term < before:
            raise Violation(f"I6: node {member} forgot term {before} and starts in {term}")
        self.saved_terms[member] = term


@dataclass
class CommittedPrefix:
    """I6: what is committed at an index never changes, and is the same everywhere."""

    history: dict[int, Frame] = field(default_factory=dict)

    def apply(self, member: int, frame: Frame) -> None:
        """A node shows this entry as committed."""
        known = self.history.setdefault(frame.header.index, frame)
        if known is not frame and known != frame:
            raise Violation(f"I6: node {member} has {frame} where {known} is committed")

    def check(self, copies: Sequence[ReplicaContents]) -> list[Frame]:
        """Compare what is on the disks; returns everything that was ever committed, in order."""
        for copy in copies:
            for frame in copy.frames:
                self.apply(copy.member, frame)
        return [self.history[index] for index in sorted(self.history)]


@dataclass
class SameDigest:
    """Divergence: replicas that applied equally much are in the same state."""

    digests: dict[int, tuple[int, object]] = field(default_factory=dict)

    def see(self, member: int, applied: int, digest: object) -> None:
        other, known = self.digests.setdefault(applied, (member, digest))
        if known != digest:
            raise Violation(f"divergence: nodes {other} and {member} differ at {applied}")


@dataclass
class OneLeader:
    """A term has one leader at most, and never a damaged one."""

    leaders: dict[int, int] = field(default_factory=dict)

    def see(self, member: int, term: int, *, is_repairing: bool) -> None:
        """A node says that it leads a term."""
        if self.leaders.setdefault(term, member) != member:
            raise Violation(f"nodes {self.leaders[term]} and {member} both lead term {term}")
        if is_repairing:
            raise Violation(f"F14: node {member} leads term {term}, and is damaged")


@dataclass
class OneVote:
    """A node votes once a term, also across restarts, and never while it is damaged."""

    votes: dict[tuple[int, int], int] = field(default_factory=dict)

    def see(self, voter: int, term: int, candidate: int, *, is_repairing: bool) -> None:
        """A node tells a candidate that it has its vote."""
        known = self.votes.setdefault((voter, term), candidate)
        if known != candidate:
            raise Violation(f"node {voter} votes for {known} and {candidate} in term {term}")
        if is_repairing:
            raise Violation(f"F14: node {voter} votes in term {term}, and is damaged")


class SoundSleep:
    """A leader falls asleep only when all members have everything that it has."""

    def see(self, leader: int, end: int, ends: dict[int, int]) -> None:
        """A leader whose log ends at `end` fell asleep, while its members' logs end at `ends`."""
        behind = {member: other for member, other in ends.items() if other < end}
        if behind:
            raise Violation(f"node {leader} sleeps, its log ends at {end}, and those of {behind}")


@dataclass
class NewestEpoch:
    """F27: a producer is fenced only if a newer one with its id was there."""

    newest: dict[int, int] = field(default_factory=dict)

    def begin(self, producer_id: int, epoch: int) -> None:
        """A producer starts its work."""
        self.newest[producer_id] = max(epoch, self.newest.get(producer_id, 0))

    def fence(self, producer_id: int, epoch: int, why: str) -> None:
        """A producer is told that it is fenced."""
        if epoch >= self.newest.get(producer_id, 0):
            raise Violation(f"F27: producer {producer_id} is the newest, and was fenced: {why}")


@dataclass
class FreshReads:
    """A linearizable read shows everything that was acknowledged before it began."""

    end: int = 0
    """Behind everything acknowledged or read so far."""

    def finish(self, end_at_start: int, end: int) -> None:
        """A read that began when `end_at_start` was known shows `end`."""
        if end < end_at_start:
            raise Violation(f"a read ends at {end}, {end_at_start} was known before it began")
        self.end = max(self.end, end)


@dataclass
class OneAnswer:
    """Every request gets exactly one answer from a process that lives to give it."""

    open: dict[int, tuple[int, int]] = field(default_factory=dict)

    def ask(self, token: int, member: int, life: int) -> None:
        self.open[token] = (member, life)

    def answer(self, token: int, member: int) -> None:
        if self.open.pop(token, None) is None:
            raise Violation(f"node {member} answers request {token}, which it does not owe")

    def check(self, lives: dict[int, int]) -> None:
        owed = [token for token, (member, life) in self.open.items() if lives.get(member) == life]
        if owed:
            token = owed[0]
            raise Violation(f"node {self.open[token][0]} never answered requests {owed}")
