"""Feeds all checkers with the actions of hosts and clients."""

from collections.abc import Sequence
from typing import Final

from quivermq.batches import Frame, Index
from quivermq.queue import GrantedLease
from quivermq.raft import Message, MessageKind
from quivermq.replica import Consensus, Mail, Persist, Produced, ReadReady, Repair
from quivermq.testing import Violation
from quivermq.testing.virtual.story import Story
from tests.replica.simulation.checkers import (
    Acknowledged,
    CommittedPrefix,
    FreshReads,
    NewestEpoch,
    NothingGoesBack,
    NothingUnsent,
    OneAnswer,
    OneCopy,
    OneLeader,
    OneVote,
    ProducerOrder,
    ReplicaContents,
    SameDigest,
    SoundSleep,
    TimeOrder,
)
from tests.replica.simulation.host import Host
from tests.replica.simulation.lease_checkers import (
    CountedFailures,
    EveryMessage,
    NeverEarly,
    OneWinner,
    offsets_of,
)
from tests.replica.simulation.process import HostWork
from tests.replica.simulation.requests import Poll, Settle, SettleReply, Verb

FIRST_INDEX: Final = 2
"""A partition begins with a checkpoint at index 1."""
VALIDATE_EVERY: Final = 100
"""Replicas re-check themselves at every so many looks: it costs as much as all else together."""


class StoredEntries:
    """The entries that one node is known to have on its disk, by index."""

    def __init__(self) -> None:
        self.frames: dict[int, Frame] = {}
        self._last = 0

    def add(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            self.frames[frame.header.index] = frame
            self._last = max(self._last, frame.header.index)

    def forget_from(self, first: int) -> None:
        for index in range(first, self._last + 1):
            self.frames.pop(index, None)
        self._last = min(self._last, first)


class Auditor:
    """Sees every node and client, and raises `Violation`."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self.acknowledged = Acknowledged()
        self.nothing_unsent = NothingUnsent()
        self.nothing_goes_back = NothingGoesBack()
        self.committed = CommittedPrefix()
        self.same_digest = SameDigest()
        self.one_leader = OneLeader()
        self.one_vote = OneVote()
        self.fresh_reads = FreshReads()
        self.newest_epoch = NewestEpoch()
        self.one_answer = OneAnswer()
        self.one_winner = OneWinner()
        self.counted_failures = CountedFailures()
        self.never_early = NeverEarly()
        self.every_message = EveryMessage()
        self.configuration_at = 0
        self.members: tuple[int, ...] = ()
        """The members, as of the last entry that any node has applied."""
        self.voters: tuple[int, ...] = ()
        self.is_joint = False
        self.ever_members: set[int] = set()
        self._looks = 0
        self._hosts: dict[int, Host] = {}
        self._asleep: set[int] = set()
        self._stored: dict[int, StoredEntries] = {}
        self._shown: dict[int, int] = {}
        """By node, up to where its applied entries were compared."""

    def note_founders(self, members: tuple[int, ...]) -> None:
        """A cluster begins with these members."""
        self.members = self.voters = members
        self.ever_members.update(members)

    def note_produce(self, frame: Frame, values: list[bytes]) -> None:
        self.nothing_unsent.send(frame, values)

    def note_ack(self, frame: Frame, produced: Produced) -> None:
        self.acknowledged.ack(frame, produced)
        self.fresh_reads.end = max(self.fresh_reads.end, produced.base_offset + produced.count)
        self._story.counts["repeats" if produced.is_repeat else "acks"] += 1

    def note_read(self, end_at_start: int, ready: ReadReady) -> None:
        self.fresh_reads.finish(end_at_start, ready.end)
        self._story.counts["reads"] += 1

    def note_grant(self, host: Host, poll: Poll, leased: GrantedLease) -> None:
        """A leader gives messages out."""
        group, pieces = poll.group, leased.pieces
        self.one_winner.grant(group, poll.consumer, leased.lease, pieces, poll.sent_us)
        self.counted_failures.grant(group, pieces)
        self.never_early.grant(group, pieces, host.clock.now_ms)
        if poll.auto_ack:
            self.one_winner.finish(group, 0, offsets_of(pieces), self._story.now_us)
        self._story.counts["messages given out"] += len(offsets_of(pieces))

    def note_settlement(self, said: Settle, answer: SettleReply) -> None:
        """A leader confirms that messages are settled."""
        lost = set(offsets_of(answer.lost))
        kept = [offset for offset in offsets_of(said.intervals) if offset not in lost]
        self._story.counts[f"messages {said.verb.value}"] += len(kept)
        self._story.counts[f"messages {said.verb.value} lost"] += len(lost)
        if said.verb is Verb.ACK:
            self.one_winner.finish(said.group, said.lease, kept, self._story.now_us)

    def note_attempt(self, group: str, parts: Sequence[Sequence[int]]) -> None:
        """A consumer is about to finish messages, whether that succeeds or not."""
        self.every_message.tried.update((group, offset) for offset in offsets_of(parts))

    def check_drained(self, group: str, end: int, letters: Sequence[int]) -> None:
        """A group is done with everything below `end`."""
        self.every_message.check(group, end, letters, self.one_winner.winners)

    def note_request(self, host: Host, token: int) -> None:
        self.one_answer.ask(token, host.member, host.life)

    def note_answer(self, host: Host, token: int) -> None:
        self.one_answer.answer(token, host.member)

    def note_start(self, host: Host) -> None:
        """A process began: what its log lost of its own writing is forgotten here too."""
        self._hosts[host.member] = host
        self._shown[host.member] = 0
        self.nothing_goes_back.save_term(host.member, host.log.term)
        self._stored.setdefault(host.member, StoredEntries()).forget_from(host.log.edge.next_index)

    def note_write(self, host: Host, work: HostWork) -> None:
        """Disk work begins: until it is done the content of its target is unknown."""
        if isinstance(work, Persist):
            stored = self._stored[host.member]
            if work.checkpoint is not None:
                stored.forget_from(0)
            if work.frames:
                stored.forget_from(work.frames[0].header.index)

    def note_written(self, host: Host, work: HostWork) -> None:
        """Disk work is done."""
        if isinstance(work, Persist | Repair):
            self._stored[host.member].add(work.frames)
        if isinstance(work, Persist) and work.checkpoint is not None:
            self._story.counts["checkpoints installed"] += 1
            self._story.tell(f"node {host.member} installs {work.checkpoint.edge}")
        if isinstance(work, Repair):
            self._story.counts["repairs"] += 1
        self.nothing_goes_back.save_term(host.member, host.log.term)

    def note_drop(self, host: Host, end: Index) -> None:
        """Applied entries are about to go: look at those that no node has shown yet."""
        for index in range(host.log.first_index, end):
            if index not in self.committed.history:
                self.committed.apply(host.member, host.log.read(Index(index), bytes_max=1)[0])

    def note_message(self, host: Host, to: int, mail: Mail) -> None:
        """A node sends a message to another one."""
        if isinstance(mail, Consensus):
            message: Message = mail.message
            if message.kind is MessageKind.VOTE_REPLY and not message.reject:
                repair = host.replica.is_repairing
                self.one_vote.see(host.member, message.term, to, is_repairing=repair)

    def note_step(self, host: Host) -> None:
        """A node took one step."""
        replica = host.replica
        applied = replica.applied_index
        member = host.member
        self.nothing_goes_back.see(member, host.life, replica.term, replica.commit_index, applied)
        if replica.is_leader:
            if replica.term not in self.one_leader.leaders:
                self._story.tell(f"node {member} leads term {replica.term}")
            self.one_leader.see(member, replica.term, is_repairing=replica.is_repairing)
        if applied != self._shown.get(member):
            self._compare_applied(host, applied)
        if replica.is_asleep != (member in self._asleep):
            self._note_sleep(host)

    def _note_sleep(self, host: Host) -> None:
        """A node fell asleep or woke up."""
        replica = host.replica
        self._story.trace(f"node {host.member} {'sleeps' if replica.is_asleep else 'wakes'}")
        if not replica.is_asleep:
            self._asleep.discard(host.member)
            return
        self._asleep.add(host.member)
        self._story.counts["sleeps"] += 1
        if replica.is_leader:
            members = [self._hosts[member] for member in replica.configuration.members]
            ends = {
                other.member: int(other.log.edge.next_index) for other in members if other.is_up
            }
            SoundSleep().see(host.member, host.log.edge.next_index, ends)

    def _compare_applied(self, host: Host, applied: int) -> None:
        member, replica = host.member, host.replica
        self.same_digest.see(member, applied, replica.digest)
        if applied > self.configuration_at:
            self.configuration_at = applied
            configuration = replica.configuration
            self.members, self.voters = configuration.members, configuration.all_voters
            self.is_joint = configuration.is_joint
            self.ever_members.update(self.members)
        if host.process is None or host.process.disk_queue:
            # What is applied may still be on its way to the disk, over an entry that lost.
            return
        self._looks += 1
        if self._looks % VALIDATE_EVERY == 0:
            replica.validate()
        stored = self._stored[member]
        for index in range(self._shown.get(member, 0) + 1, applied + 1):
            frame = stored.frames.get(index)
            if frame is not None:
                self.committed.apply(member, frame)
        self._shown[member] = applied

    def check_end(self, copies: Sequence[ReplicaContents]) -> None:
        """The final checks, on what is on the disks."""
        history = self.committed.check(copies)
        indexes = [frame.header.index for frame in history]
        if indexes != list(range(FIRST_INDEX, FIRST_INDEX + len(indexes))):
            raise Violation(f"the simulation lost sight of some of entries {indexes}")
        self.acknowledged.check(copies)
        self.nothing_unsent.check(history)
        ProducerOrder().check(history)
        OneCopy().check(history)
        TimeOrder().check(history)
        self.never_early.check(history)
