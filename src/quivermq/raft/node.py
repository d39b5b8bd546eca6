"""The facade: one member, driven from outside, doing no I/O and reading no clock.

    node.tick() · node.step(message) · node.propose(data)      something happened
    while (ready := node.ready()) is not None:                 what follows from it
        persist, send, apply                                   the world's part
        node.advance()                                         not with asynchronous storage

With asynchronous storage there is no `advance`: `ready.messages` holds work for the append and the
apply thread. Each thread does its work in the order it was given, and each piece lists the
responses to deliver once it is done; those to the member itself must arrive once and in order.
"""

from collections.abc import Collection, Sequence, Sized

from quivermq.errors import InvalidRequest, QuiverError
from quivermq.raft import candidate, follower, invariants, leader, replication
from quivermq.raft.membership import MembershipChange, changed, check
from quivermq.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NOBODY,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Ready,
    Role,
    SoftState,
    entries_bytes,
)
from quivermq.raft.options import Options
from quivermq.raft.replica import Dice, Replica
from quivermq.raft.status import Status, has_quorum_without, is_settled, status_of
from quivermq.raft.step import step
from quivermq.raft.storage import Storage

REPLIES = frozenset(
    {
        MessageKind.APPEND_REPLY,
        MessageKind.VOTE_REPLY,
        MessageKind.PREVOTE_REPLY,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.READ_REPLY,
    }
)
FROM_STORAGE = frozenset({MessageKind.STORED, MessageKind.APPLIED})
TO_STORAGE = frozenset({MessageKind.STORE, MessageKind.APPLY})


class PeerNonsense(InvalidRequest):
    """A message that no member in its right mind would send; it changed nothing."""


class UnknownPeer(PeerNonsense):
    """An answer came from a peer that is not a member; it means nothing here."""


class RawNode:
    """One member of a partition's replicas."""

    def __init__(
        self,
        member: int,
        storage: Storage,
        options: Options,
        dice: Dice,
        *,
        applied: int = 0,
    ) -> None:
        if member <= NOBODY:
            raise InvalidRequest(f"member id {member}: ids start at 1")
        _, configuration = storage.initial_state()
        check(configuration)
        self.replica = Replica(member, storage, options, dice, applied=applied)
        self._is_async = options.async_storage
        # What the world was last told.
        self._soft_state = self.replica.soft_state
        self._hard_state = self.replica.hard_state
        # Messages to this member itself, due when the world has done its part.
        self._on_advance: list[Message] = []

    @property
    def id(self) -> int:
        return self.replica.id

    def tick(self) -> None:
        """Let one unit of time pass."""
        if self.replica.role is Role.LEADER:
            leader.tick(self.replica)
        else:
            candidate.tick(self.replica)

    def step(self, message: Message) -> None:
        """Take in a message of a peer or of a storage thread; raises `PeerNonsense`."""
        self._check(message)
        step(self.replica, message)

    def propose(self, *payloads: Sized) -> None:
        """Append payloads to the log as one proposal, all or nothing; raises if refused."""
        if not payloads:
            raise InvalidRequest("a proposal needs at least one payload")
        self._propose([Entry(0, 0, EntryKind.NORMAL, data) for data in payloads])

    def propose_admitted(self, *payloads: Sized) -> None:
        """Propose what there was room for when it was promised (`refusal`); the limit of bytes
        refuses it no more."""
        entries = [Entry(0, 0, EntryKind.NORMAL, data) for data in payloads]
        leader.propose(self.replica, entries, forced=True)

    def refusal(self) -> QuiverError | None:
        """Why this leader takes no proposals now; None if it does."""
        return leader.refusal(self.replica)

    def propose_membership(self, change: MembershipChange) -> None:
        """Propose a change of membership.

        Raises `MembershipRefused` if the change can never be made from here. While another change
        is under way it becomes an empty entry instead: apply tells which of the two it was.
        """
        self._propose([Entry(0, 0, EntryKind.MEMBERSHIP, change.encode())])

    def apply_membership(self, change: MembershipChange) -> Configuration:
        """Put a committed change into force; the caller applies it in its place in the log."""
        replica = self.replica
        if not replica.configuration.voters:
            # On its own the change could make this member the only voter, of a log of its own.
            replica.fail("a change of a configuration that was never learnt")
        configuration = changed(replica.configuration, change)
        replica.adopt(configuration)
        if replica.role is Role.LEADER:
            leader.configuration_adopted(replica)
        return configuration

    @property
    def is_alone(self) -> bool:
        """Whether this member leads, is the only member, and has handed all its writes out.

        What it stores is then committed, so proposals can take a shorter way: `append_alone`.
        """
        replica = self.replica
        return (
            replica.role is Role.LEADER
            and replica.is_only_member
            and not replica.after_write
            and replica.log.handed > replica.log.last_index
        )

    def append_alone(self, payloads: Sequence[Sized], *, forced: bool = False) -> Message:
        """Propose while `is_alone`: a write to hand out, for `stored_alone` when it is done.

        It is what `propose` and `ready` come to, without what a leader tells others.
        """
        replica, log = self.replica, self.replica.log
        first, term = log.last_index + 1, replica.term
        entries = [
            Entry(term, index, EntryKind.NORMAL, data) for index, data in enumerate(payloads, first)
        ]
        if not leader.append(replica, entries, forced=forced):
            raise leader.overloaded(replica)
        log.hand_out()
        return Message(
            MessageKind.STORE, APPEND_THREAD, replica.id, entries=entries, commit=log.committed
        )

    def stored_alone(self, write: Message) -> Sequence[Entry]:
        """A write of `append_alone` is durable: entries to apply at once, which counts as done.

        None of them if the group has changed meanwhile: then they go the longer way.
        """
        replica, entries = self.replica, write.entries
        log, last = replica.log, entries[-1]
        is_still_so = (
            replica.is_only_member
            and replica.role is Role.LEADER
            and replica.term == last.term
            and log.applied == log.applying == log.committed == entries[0].index - 1
        )
        if not is_still_so:
            self._stored_in_company(last)
            return ()
        log.entries_stored(last.index, last.term)
        replica.progress[replica.id].acknowledged(last.index)
        log.commit_to(last.index)
        log.applied_to(last.index)
        self._hard_state = replica.hard_state
        leader.applied(replica, entries_bytes(entries))
        return entries

    def _stored_in_company(self, last: Entry) -> None:
        """Take the steps that would have followed the write if the member had not been alone."""
        me = self.replica.id
        step(self.replica, Message(MessageKind.APPEND_REPLY, me, me, last.term, index=last.index))
        stored = Message(
            MessageKind.STORED, me, APPEND_THREAD, last.term, log_term=last.term, index=last.index
        )
        step(self.replica, stored)

    @property
    def is_alone_and_idle(self) -> bool:
        """Whether, beside `is_alone`, all that there is was written and applied.

        What is written next is then committed and applied in one step: `wrote_alone`.
        """
        log = self.replica.log
        return log.applied == log.last_index and self.is_alone

    def wrote_alone(self, index: int) -> None:
        """The entries up to `index` were written while `is_alone_and_idle`, and are applied: what
        `append_alone` and `stored_alone` come to, in one step."""
        replica = self.replica
        replica.log.extend_applied(index)
        replica.progress[replica.id].acknowledged(index)
        self._hard_state = replica.hard_state

    def campaign(self) -> None:
        """Stand for election now, without waiting for a timeout."""
        candidate.campaign(self.replica)

    def read_index(self, context: bytes) -> None:
        """Ask for a linearizable read. The answer comes as a `ReadState` with the same context.

        It may never come: leadership can be lost and messages too. Ask again after a timeout.
        """
        replica = self.replica
        step(replica, Message(MessageKind.READ, replica.id, replica.id, context=context))

    def transfer_leader(self, target: int) -> None:
        """Hand leadership to `target`; given up after an election timeout."""
        step(self.replica, Message(MessageKind.TRANSFER, self.replica.id, target))

    def forget_leader(self) -> None:
        """Stop believing in the leader without leaving the term."""
        if self.replica.role is Role.FOLLOWER:
            follower.forget_leader(self.replica)

    def report_unreachable(self, member: int) -> None:
        """Tell that a message to `member` could not be sent."""
        if self.replica.role is Role.LEADER:
            replication.unreachable(self.replica, member)

    def report_snapshot(self, member: int, *, arrived: bool) -> None:
        """Tell how the transfer of a snapshot ended. Always tell, or the member stays cut off."""
        if self.replica.role is Role.LEADER:
            replication.snapshot_reported(self.replica, member, arrived=arrived)

    def restart_timers(self) -> None:
        """Time went by without ticks: let every interval begin afresh."""
        self.replica.restart_timers()

    def is_settled(self, away: Collection[int] = ()) -> bool:
        """Whether this member leads, and no member needs anything from it, but for those `away`."""
        return is_settled(self.replica, away)

    def has_quorum_without(self, away: Collection[int]) -> bool:
        """Whether the members that are not `away` can decide alone."""
        return has_quorum_without(self.replica, away)

    def status(self) -> Status:
        return status_of(self.replica)

    def validate(self) -> None:
        """Re-check every invariant; raises `BrokenInvariant`."""
        invariants.validate(self.replica)

    @property
    def has_ready(self) -> bool:
        replica = self.replica
        log = replica.log
        term, vote, committed = self._hard_state
        leader, role = self._soft_state
        # Field by field: this is asked after every single input.
        return bool(
            replica.outbox
            or replica.after_write
            or replica.read_states
            or log.committed != committed
            or replica.term != term
            or replica.vote != vote
            or replica.leader != leader
            or replica.role is not role
            or log.handed <= log.last_index
            or (log.applying < log.committed and log.has_appliable(unstable_too=not self._is_async))
            or log.unhanded_snapshot
        )

    def ready(self) -> Ready | None:
        """All that there is to do, handed out once; None if there is nothing."""
        if self._on_advance:
            self.replica.fail("ready() was called again before advance()")
        if not self.has_ready:
            return None
        replica = self.replica
        log = replica.log
        soft_state, hard_state = replica.soft_state, replica.hard_state
        known = self._hard_state
        entries = log.unhanded()
        ready = Ready(
            soft_state=soft_state if soft_state != self._soft_state else None,
            hard_state=hard_state if hard_state != known else None,
            entries=entries,
            snapshot=log.unhanded_snapshot,
            committed=log.appliable(unstable_too=not self._is_async),
            messages=tuple(replica.outbox),
            read_states=tuple(replica.read_states),
            must_sync=bool(entries) or hard_state[:2] != known[:2],
        )
        ready = self._with_storage_messages(ready) if self._is_async else self._deferred(ready)
        self._accept(ready, soft_state, hard_state)
        return ready

    def advance(self) -> None:
        """The world did what the last `Ready` asked for (synchronous storage only)."""
        due, self._on_advance = self._on_advance, []
        for message in due:
            step(self.replica, message)

    def _check(self, message: Message) -> None:
        """Refuse what would break the log of a member that trusts its peers."""
        kind, sender = message.kind, message.sender
        if kind in REPLIES:
            if sender not in self.replica.progress:
                raise UnknownPeer(f"{kind.name} of {sender}, who is not a member")
        elif kind is MessageKind.APPEND:
            entries, before = message.entries, message.index
            if entries and (entries[0].index, entries[-1].index) != (
                before + 1,
                before + len(entries),
            ):
                raise PeerNonsense(f"{kind.name} of {sender} with a hole after {before}")
        elif kind is MessageKind.SNAPSHOT and message.snapshot is None:
            raise PeerNonsense(f"{kind.name} of {sender} without a snapshot")
        elif kind is MessageKind.PROPOSE and not self.replica.options.forward_proposals:
            raise PeerNonsense(f"{kind.name} of {sender}, but proposals are not forwarded here")
        if kind in TO_STORAGE or (kind in FROM_STORAGE) != (sender < NOBODY):
            raise PeerNonsense(f"{kind.name} of {sender} is no message between members")
        if message.to != self.replica.id:
            raise PeerNonsense(f"{kind.name} of {sender} is for {message.to}")

    def _propose(self, entries: Sequence[Entry]) -> None:
        replica = self.replica
        step(replica, Message(MessageKind.PROPOSE, replica.id, replica.id, entries=entries))

    def _accept(self, ready: Ready, soft_state: SoftState, hard_state: HardState) -> None:
        replica = self.replica
        log = replica.log
        self._soft_state, self._hard_state = soft_state, hard_state
        replica.outbox = []
        replica.after_write = []
        replica.read_states = []
        replica.reads.open = False
        log.hand_out()
        if ready.committed:
            log.hand_out_applying(ready.committed, unstable_too=not self._is_async)

    def _deferred(self, ready: Ready) -> Ready:
        """Synchronous: promises to others follow the messages, those to itself wait for advance."""
        replica = self.replica
        promises = [message for message in replica.after_write if message.to != replica.id]
        self._on_advance = [message for message in replica.after_write if message.to == replica.id]
        stored = self._stored_message(ready)
        if stored:
            self._on_advance.append(stored)
        if ready.committed:
            self._on_advance.append(self._applied_message(ready))
        return ready._replace(messages=(*ready.messages, *promises)) if promises else ready

    def _with_storage_messages(self, ready: Ready) -> Ready:
        """Asynchronous: disk work is a message, and what may follow it is in its responses."""
        replica = self.replica
        work = []
        if ready.entries or ready.hard_state or ready.snapshot or replica.after_write:
            stored = self._stored_message(ready)
            term, vote, commit = ready.hard_state or (0, NOBODY, 0)
            store = Message(
                MessageKind.STORE,
                APPEND_THREAD,
                replica.id,
                term,
                entries=ready.entries,
                commit=commit,
                vote=vote,
                snapshot=ready.snapshot,
                responses=(*replica.after_write, *([stored] if stored else ())),
            )
            work.append(store)
        if ready.committed:
            responses = (self._applied_message(ready),)
            apply = Message(
                MessageKind.APPLY,
                APPLY_THREAD,
                replica.id,
                entries=ready.committed,
                responses=responses,
            )
            work.append(apply)
        return ready._replace(messages=(*ready.messages, *work))

    def _stored_message(self, ready: Ready) -> Message | None:
        """The confirmation that belongs to this write.

        It names the end of the log whenever any write is open, not only when this one has entries:
        a confirmation from an earlier term is ignored, so the next must speak for all before it.
        """
        log = self.replica.log
        if not log.has_writes_open and not ready.snapshot:
            return None
        return Message(
            MessageKind.STORED,
            self.replica.id,
            APPEND_THREAD,
            self.replica.term,
            log_term=log.last_term if log.has_writes_open else 0,
            index=log.last_index if log.has_writes_open else 0,
            snapshot=ready.snapshot,
        )

    def _applied_message(self, ready: Ready) -> Message:
        return Message(MessageKind.APPLIED, self.replica.id, APPLY_THREAD, entries=ready.committed)
