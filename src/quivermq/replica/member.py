"""A live member of a partition: joins its Raft core and its state machine.

Inputs come in through the methods; `advance` puts what follows from all of them into `out`, so that
what comes in together goes on together. Only a leader that has applied everything before its own
term stamps offsets and time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from quivermq.batches import Frame, FrameKind, Header, Index
from quivermq.errors import (
    BrokenInvariant,
    NotLeader,
    Overloaded,
    QuiverError,
    Timeout,
    UnsupportedFormat,
)
from quivermq.log import Log
from quivermq.queue import (
    Json,
    LeaseManager,
    TopicSettings,
    catalog_command,
    settings_command,
)
from quivermq.raft import (
    Dice,
    Entry,
    EntryKind,
    MembershipChange,
    MembershipRefused,
    Message,
    RawNode,
    Ready,
    Role,
    UnknownPeer,
)
from quivermq.raft import MessageKind as Said
from quivermq.replica.barriers import Barriers
from quivermq.replica.effects import (
    Answer,
    Changed,
    Consensus,
    Effect,
    EntriesReply,
    EntriesRequest,
    Produced,
    ReadReady,
    Result,
    SaveCheckpoint,
    Send,
    Token,
    Wake,
)
from quivermq.replica.entries import frame_of
from quivermq.replica.membership_changes import SEAL, MembershipChanges
from quivermq.replica.proposal_queue import ProposalQueue, catalog_changed
from quivermq.replica.recent import Recent
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.state import ReplicaState
from quivermq.replica.storage import LogStorage
from quivermq.replica.writes import Writes, arrived_state

T = TypeVar("T")

NO_LIMIT: Final = 2**62
APPLIED_AT_ONCE: Final = 2_000
"""Entries that are applied before other requests have their turn; one with operations counts as
many."""
_OPERATION_BYTES: Final = 64


class Member:
    """A live member of a partition's Raft."""

    def __init__(
        self,
        member: int,
        log: Log,
        state: ReplicaState,
        settings: ReplicaSettings,
        dice: Dice,
        out: list[Effect],
    ) -> None:
        self._member = member
        self._log = log
        self._settings = settings
        self._dice = dice
        self._out = out
        self._recent = Recent(settings.recent_bytes_max)
        self.partition = state.partition
        self.core = RawNode(
            member,
            LogStorage(log, state.configuration, self._recent),
            settings.consensus(),
            dice,
            applied=state.partition.applied_index,
        )
        self._writes = Writes(log, self._recent)
        self._barriers = Barriers(settings.read_ticks, dice)
        # The term and the leader that reads were asked in and of.
        self._asked = (0, 0)
        # Not None while this member leads and may stamp entries.
        self._proposals: ProposalQueue | None = None
        self._changes = MembershipChanges()
        # Committed entries that are not applied yet, and how many of the first of them are.
        self._unapplied: deque[Message] = deque()
        self._applied_of_first = 0

    @property
    def state(self) -> ReplicaState:
        """The applied state."""
        return ReplicaState(self.core.replica.configuration, self.partition)

    @property
    def is_serving(self) -> bool:
        return self._proposals is not None

    @property
    def is_busy(self) -> bool:
        """Whether anything here waits: for a commit, for a quorum's word, or for the disk."""
        if self._proposals is not None and (self._proposals.is_busy or self._changes.is_seal_due):
            return True
        if self._unapplied:
            return True
        return bool(self._changes.is_busy or len(self._barriers) or self._writes.is_busy)

    @property
    def has_news(self) -> bool:
        """Whether anything may follow from the inputs so far."""
        return self.core.has_ready or self.is_busy

    def tick(self) -> None:
        # Who waits for its own disk must not blame others: a vote that is being synced, with those
        # of a thousand other partitions, would be overtaken by the next candidacy.
        if self.core.replica.role is Role.LEADER or not self._writes.is_busy:
            self.core.tick()
        for token in self._barriers.tick():
            self._answer(token, Timeout("no quorum confirmed the read in time"))

    def step(self, message: Message) -> None:
        """A message of a peer's core; one of a stranger is ignored."""
        if message.snapshot is not None:
            # Nothing from before it may be applied behind it.
            self._apply_waiting(NO_LIMIT)
        with suppress(UnknownPeer, NotLeader):
            self.core.step(message)

    def produce(self, token: Token, frame: Frame, now_ms: int) -> None:
        try:
            known = self._proposal_queue().admit(token, frame, now_ms)
        except QuiverError as error:
            self._answer(token, error)
        else:
            if known is not None:
                self._answer(token, known)

    # At once: where this member is the only one, and no write waits for the disk.

    def stamp_at_once(self, frame: Frame, now_ms: int) -> Frame | None:
        """A batch as it goes into the log next, if it may be written right now; `wrote_at_once` has
        to follow when it is, and nothing may come in between.

        None: it has to wait for something, or was stored before. Raises the refusal.
        """
        proposals = self._proposals
        if proposals is None or proposals.has_waiting_batches or not self._writes_at_once:
            return None
        if not self._log.has_room_for(len(frame)) or not proposals.check(frame):
            return None
        replica = self.core.replica
        return proposals.stamp(frame, replica.term, Index(replica.log.last_index + 1), now_ms)

    def wrote_at_once(self, frame: Frame) -> Produced:
        """A batch is in the log: that commits it. Apply it."""
        header = frame.header
        if self._proposals is not None:
            self._proposals.follow(header)
        self._follow(header.index)
        self.partition.apply(frame)
        return Produced(header.base_offset, header.count, header.timestamp_ms, is_repeat=False)

    def stamp_waiting_at_once(self) -> list[Frame]:
        """The same for all that was taken in, which `wrote_waiting` finishes."""
        proposals = self._proposals
        if proposals is None or not proposals.has_waiting or not self._writes_at_once:
            return []
        if not self._log.has_room_for(proposals.waiting_bytes):
            return []
        replica = self.core.replica
        return proposals.stamp_waiting(replica.term, Index(replica.log.last_index + 1))

    def wrote_waiting(self, frames: Sequence[Frame]) -> None:
        """They are in the log: that commits them. Apply and answer them."""
        before = self.partition.next_offset
        self._follow(frames[-1].header.index)
        for frame in frames:
            has_effect = self.partition.apply(frame)
            self._answer_proposal(frame.header, has_effect=has_effect)
        if self.partition.next_offset > before:
            self._out.append(Wake(self.partition.next_offset))

    def write_later(self, frames: Sequence[Frame]) -> None:
        """They could not be written: hand them out as work that is tried again."""
        self._persist(self.core.append_alone(frames, forced=True))

    @property
    def _writes_at_once(self) -> bool:
        """Whether what is written is committed by that: nothing else is under way."""
        return not (self._writes.is_busy or self._unapplied) and self.core.is_alone_and_idle

    def _follow(self, index: Index) -> None:
        self._writes.follow(self._log.edge)
        self.core.wrote_alone(index)

    def restore(self, token: Token, frame: Frame) -> None:
        try:
            known = self._proposal_queue().admit_restored(token, frame)
        except QuiverError as error:
            self._answer(token, error)
        else:
            if known is not None:
                self._answer(token, known)

    def change_settings(self, token: Token, settings: TopicSettings, now_ms: int) -> None:
        try:
            frame = Frame.of(FrameKind.COMMAND, settings_command(settings))
            self._proposal_queue().admit_command(token, frame, now_ms)
        except QuiverError as error:
            self._answer(token, error)

    def change_catalog(
        self, token: Token, base: int, put: Mapping[str, Json], delete: Iterable[str], now_ms: int
    ) -> None:
        try:
            frame = Frame.of(FrameKind.COMMAND, catalog_command(base, put, delete))
            self._proposal_queue().admit_catalog(token, base, frame, now_ms, puts=bool(put))
        except QuiverError as error:
            self._answer(token, error)

    def with_leases(
        self, act: Callable[[LeaseManager], T], token: Token | None, now_ms: int, steady_ms: int
    ) -> T:
        proposals = self._proposal_queue()
        refusal = self.core.refusal()
        result, is_waiting = proposals.serve(act, token, now_ms, steady_ms, refusal)
        if token is not None and not is_waiting:
            self._answer(token, Changed())
        return result

    def transfer_leader(self, target: int) -> None:
        """Hand leadership over, but first propose what was taken in: later it could not be."""
        self._watch_leadership()
        self._propose_waiting()
        self.core.transfer_leader(target)

    def change_membership(self, token: Token, change: MembershipChange) -> None:
        try:
            self._proposal_queue()
            self._propose_waiting()
            self.core.propose_membership(change)
            self._changes.propose(self.core.replica.log.last_index, token)
        except QuiverError as error:
            self._answer(token, error)

    def read(self, token: Token) -> None:
        waiting = len(self._barriers)
        if waiting >= self._settings.reads_max:
            self._answer(token, Overloaded(f"{waiting} reads wait for a quorum; try again"))
            return
        self._refuse_lost_reads()
        context = self._barriers.open(token)
        try:
            self.core.read_index(context)
        except QuiverError as error:
            self._barriers.drop(context)
            self._answer(token, error)

    def _refuse_lost_reads(self) -> None:
        """A leader forgets the reads that wait with its leadership: they are never confirmed."""
        replica = self.core.replica
        present = (replica.term, replica.leader)
        if present != self._asked:
            self._asked = present
            for token in self._barriers.take_unconfirmed():
                self._answer(token, self._not_leader())

    def persisted(self, number: int) -> None:
        """Disk work is done: its promises may leave."""
        for message in self._writes.finish(number):
            self._finish_write(message)

    def _finish_write(self, message: Message) -> None:
        if message.snapshot is not None:
            self.partition = arrived_state(message).restore().partition
        if message.entries and not message.responses:
            self._apply_waiting(NO_LIMIT)
            self._apply(self.core.stored_alone(message))
            return
        for response in message.responses:
            if response.to == self._member:
                # A leader that was removed while it wrote is a stranger to itself.
                self.step(response)
            else:
                self._out.append(Send(response.to, Consensus(response)))

    def entries_for(self, request: EntriesRequest) -> EntriesReply:
        """Committed entries for a replica that lost them."""
        kept = self._log.first_index
        end = Index(min(request.last, self.partition.applied_index) + 1)
        frames: list[Frame] = []
        if kept <= request.first < end:
            most = self._settings.message_bytes_max
            frames = self._log.read(request.first, end=end, bytes_max=most)
        return EntriesReply(request.first, tuple(frames), kept)

    def advance(self) -> None:
        """Let everything follow from the inputs that can follow without the world."""
        self._watch_leadership()
        self._propose_waiting()
        self._seal_change()
        left = self._apply_waiting(APPLIED_AT_ONCE)
        while (ready := self.core.ready()) is not None:
            self._watch_leadership()
            self._carry(ready)
            left = self._apply_waiting(left)
            self._seal_change()
        self._watch_leadership()
        self._refuse_lost_reads()
        for token in self._barriers.take_passed(self.partition.applied_index):
            self._answer(token, ReadReady(self.partition.next_offset))

    def _propose_waiting(self) -> None:
        """Propose what was taken in since the last time, all that fits one message at a time."""
        replica = self.core.replica
        while self._proposals is not None and self._proposals.has_waiting:
            # There was room for lease operations when they were made, and consumers act on them.
            is_admitted = self._proposals.is_of_leases_only
            frames = self._proposals.stamp_waiting(replica.term, Index(replica.log.last_index + 1))
            try:
                if self.core.is_alone:
                    self._persist(self.core.append_alone(frames, forced=is_admitted))
                elif is_admitted:
                    self.core.propose_admitted(*frames)
                else:
                    self.core.propose(*frames)
            except Overloaded as error:
                for token in self._proposals.refuse_batches(frames):
                    self._answer(token, error)
            except QuiverError as error:
                for token in self._proposals.refuse(frames):
                    self._answer(token, error)

    def _seal_change(self) -> None:
        """Put a seal behind a change that is applied, as soon as it can be proposed."""
        replica = self.core.replica
        is_due = self._proposals is not None and self._changes.is_seal_due
        if is_due and replica.pending_membership <= replica.log.applied:
            # A leader that hands its leadership over cannot, and leaves it to its successor.
            with suppress(NotLeader, Overloaded):
                self.core.propose_membership(SEAL)

    def _carry(self, ready: Ready) -> None:
        for state in ready.read_states:
            self._barriers.confirm(state)
        for message in ready.messages:
            if message.kind is Said.STORE:
                self._persist(message)
            elif message.kind is Said.APPLY:
                self._unapplied.append(message)
            else:
                self._out.append(Send(message.to, Consensus(message)))

    def _persist(self, message: Message) -> None:
        work = self._writes.persist(message)
        if work is not None:
            self._out.append(work)
        elif not self._writes.is_busy:
            self._finish_write(message)

    def _proposal_queue(self) -> ProposalQueue:
        """Where proposals go while this member may stamp them; raises `NotLeader` otherwise."""
        self._watch_leadership()
        if self._proposals is None:
            raise self._not_leader()
        return self._proposals

    def _watch_leadership(self) -> None:
        """Begin to serve once everything before the own term is applied; end with the
        leadership."""
        replica = self.core.replica
        if replica.role is not Role.LEADER:
            self._lose_leadership()
        elif self._proposals is None and self.partition.term == replica.term:
            limit = min(self._log.checkpoint_bytes_max, self._settings.checkpoint_bytes_max)
            self._proposals = ProposalQueue(self.partition, self._settings, self._dice, limit)

    def _lose_leadership(self) -> None:
        if self._proposals is None:
            return
        tokens = [*self._proposals.tokens(), *self._changes.give_up()]
        self._proposals = None
        for token in tokens:
            self._answer(token, Timeout("leadership was lost: the outcome is unknown; try again"))

    @property
    def is_behind(self) -> bool:
        """Whether more could be applied at once: it is, each time that effects are taken."""
        return bool(self._unapplied)

    def _apply_waiting(self, limit: int) -> int:
        """Apply committed entries in portions: other requests wait meanwhile. Returns what is left
        of the limit; one portion may exceed it."""
        while self._unapplied and limit > 0:
            message = self._unapplied[0]
            first = last = self._applied_of_first
            while last < len(message.entries) and limit > 0:
                limit -= _cost_of(message.entries[last])
                last += 1
            self._applied_of_first = last
            self._apply(message.entries[first:last])
            if last == len(message.entries):
                self._unapplied.popleft()
                self._applied_of_first = 0
                for response in message.responses:
                    self.core.step(response)
        return limit

    def _apply(self, entries: Sequence[Entry]) -> None:
        before = self.partition.next_offset
        for entry in entries:
            self._save_checkpoint_if_due(Index(entry.index))
            frame = self._frame_of(entry)
            try:
                has_effect = self.partition.apply(frame)
                if entry.kind is EntryKind.MEMBERSHIP:
                    self._apply_membership(entry)
            except (UnsupportedFormat, MembershipRefused) as error:
                raise UnsupportedFormat(
                    f"entry {entry.index} cannot be applied: {error}"
                ) from error
            self._answer_applied(entry, frame.header, has_effect=has_effect)
        if len(self._recent):
            self._recent.forget([entry.index for entry in entries])
        if self.partition.next_offset > before:
            self._out.append(Wake(self.partition.next_offset))

    def _frame_of(self, entry: Entry) -> Frame:
        # What is stored was checked when it was written: only the edge would cost something.
        return entry.data if isinstance(entry.data, Frame) else frame_of(entry, self.state.edge)

    def _save_checkpoint_if_due(self, index: Index) -> None:
        """Before the first entry of a segment is applied, the state belongs beside it."""
        if self._log.starts_segment(index) and index not in self._log.checkpoints():
            self._out.append(SaveCheckpoint(index, self.state.snapshot()))

    def _apply_membership(self, entry: Entry) -> None:
        change = MembershipChange.decode(entry.data)
        configuration = self.core.apply_membership(change)
        for token in self._changes.apply(entry.index, change, configuration):
            self._answer(token, Changed())

    def _answer_applied(self, entry: Entry, header: Header, *, has_effect: bool) -> None:
        token = self._changes.take_displaced(entry.index)
        if token is not None:
            self._answer(token, Overloaded("another membership change is under way; try again"))
        self._answer_proposal(header, has_effect=has_effect)

    def _answer_proposal(self, header: Header, *, has_effect: bool) -> None:
        if self._proposals is None:
            return
        result: Result = Changed() if has_effect else catalog_changed()
        if header.kind == FrameKind.DATA:
            offset, count, time = header.base_offset, header.count, header.timestamp_ms
            result = Produced(offset, count, time, is_repeat=False)
        for waiting in self._proposals.finish(header):
            self._answer(waiting, result)

    def _not_leader(self) -> NotLeader:
        replica = self.core.replica
        if replica.role is Role.LEADER:
            return NotLeader(f"member {self._member} was just elected and is not ready yet")
        known = f"{replica.leader} leads" if replica.leader else "no leader is known"
        return NotLeader(f"member {self._member} does not lead: {known}", leader=replica.leader)

    def _answer(self, token: Token, result: Result) -> None:
        self._out.append(Answer(token, result))

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        self.core.validate()
        self.partition.validate()
        log = self.core.replica.log
        if not self.partition.applied_index <= log.committed:
            raise BrokenInvariant(f"{self.partition.applied_index} is applied, uncommitted")
        if self._proposals is not None and self._proposals.next_offset < self.partition.next_offset:
            raise BrokenInvariant(f"offset {self._proposals.next_offset} would be used again")


def _cost_of(entry: Entry) -> int:
    frame = entry.data
    if isinstance(frame, Frame) and frame.header.kind != FrameKind.COMMAND:
        return 1
    return 1 + len(entry.data) // _OPERATION_BYTES
