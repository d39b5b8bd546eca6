"""The state of one member, and the moves between roles.

What each role does with a message lives in `follower`, `candidate` and `leader`; which of them is
asked is decided by `step`. This module knows none of these: it holds what they share.
"""

from typing import NoReturn, Protocol

from quivermq.errors import BrokenInvariant
from quivermq.raft.entry_log import EntryLog
from quivermq.raft.messages import (
    NOBODY,
    Configuration,
    HardState,
    Message,
    MessageKind,
    ReadState,
    Role,
    SoftState,
)
from quivermq.raft.options import Options
from quivermq.raft.progress import Inflight, Progress
from quivermq.raft.quorum import agreed_index
from quivermq.raft.reads import ReadQueue
from quivermq.raft.storage import Storage

# These promise something about this member's disk, so they leave after the write they promise.
PROMISES = frozenset({MessageKind.APPEND_REPLY, MessageKind.VOTE_REPLY, MessageKind.PREVOTE_REPLY})


class Dice(Protocol):
    """The part of a random generator that elections need."""

    def randrange(self, stop: int, /) -> int: ...


class Replica:
    """One member: term, vote, log, role, and what it waits to say."""

    __slots__ = (
        "after_write",
        "agreed",
        "configuration",
        "dice",
        "election_elapsed",
        "election_timeout",
        "heartbeat_elapsed",
        "id",
        "is_only_member",
        "leader",
        "log",
        "options",
        "outbox",
        "pending_membership",
        "progress",
        "read_states",
        "reads",
        "role",
        "term",
        "transferee",
        "uncommitted_bytes",
        "vote",
        "votes",
    )

    def __init__(
        self, member: int, storage: Storage, options: Options, dice: Dice, *, applied: int = 0
    ) -> None:
        self.id = member
        self.options = options
        self.dice = dice
        self.log = EntryLog(storage, options.apply_bytes_max, self.fail)
        # The term only grows. The vote belongs to the term and is forgotten only with it:
        # a member that votes twice in one term can elect two leaders (§5.2).
        hard_state, configuration = storage.initial_state()
        self.term = hard_state.term
        self.vote = hard_state.vote

        self.leader = NOBODY
        self.role = Role.FOLLOWER
        # Up to here the log is that of this term's leader, as appends to this very object showed.
        self.agreed = 0
        self.configuration = configuration
        self.progress: dict[int, Progress] = {}
        # Answers to this member's own candidacy.
        self.votes: dict[int, bool] = {}

        # The rest is of use to a leader, and reset with every change of role.
        self.reads = ReadQueue()
        # The member that leadership is being handed to; proposals are refused meanwhile.
        self.transferee = NOBODY
        # No membership change may be proposed before this index is applied, so that two changes
        # can never be under way at once (thesis §4.1).
        self.pending_membership = 0
        # Proposed here in this term and not yet applied.
        self.uncommitted_bytes = 0

        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self.election_timeout = 0

        self.outbox: list[Message] = []
        self.after_write: list[Message] = []
        self.read_states: list[ReadState] = []

        # What was applied was committed, even if the commit index on disk is older. Past the end of
        # the log neither can be, unless a part of the log was lost.
        self.log.commit_to(max(hard_state.commit, applied))
        if applied > self.log.applied:
            self.log.applied_to(applied)
        if options.validate_membership:
            self.commit_by_membership()
        self.adopt(configuration)
        self.become_follower(self.term, NOBODY)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    @property
    def soft_state(self) -> SoftState:
        return SoftState(self.leader, self.role)

    @property
    def is_voter(self) -> bool:
        """Whether this member knows itself as a voter, in either half."""
        progress = self.progress.get(self.id)
        return progress is not None and not progress.is_learner

    @property
    def has_committed_in_term(self) -> bool:
        return self.log.term(self.log.committed) == self.term

    def become_follower(self, term: int, leader: int) -> None:
        self.role = Role.FOLLOWER
        self._reset(term)
        self.leader = leader

    def become_pre_candidate(self) -> None:
        """Ask before disturbing other members: neither term nor vote changes (thesis §9.6)."""
        self.role = Role.PRE_CANDIDATE
        self.votes = {}
        self.leader = NOBODY

    def become_candidate(self) -> None:
        self.role = Role.CANDIDATE
        self._reset(self.term + 1)
        self.vote = self.id

    def become_leader(self) -> None:
        if self.role is not Role.CANDIDATE:
            self.fail("only a candidate can become leader")
        self.role = Role.LEADER
        self._reset(self.term)
        self.leader = self.id
        own = self.progress[self.id]
        own.replicate()
        own.active = True
        # Entries of earlier leaders may hold a membership change that is not applied here yet.
        self.pending_membership = self.log.last_index

    def adopt(self, configuration: Configuration) -> None:
        """Make `configuration` the one in force, keeping what is known of members that stay."""
        known = self.progress
        self.configuration = configuration
        self.is_only_member = configuration == Configuration(voters=(self.id,))
        self.progress = {}
        for member in configuration.members:
            progress = known.get(member)
            if progress is None:
                progress = self._fresh_progress(max(self.log.last_index, 1))
                # Or a quorum check could depose the leader before the newcomer can answer.
                progress.active = True
            progress.is_learner = member in configuration.learners
            self.progress[member] = progress

    def restart_timers(self) -> None:
        """Let every interval begin now, as a member does that took no ticks for a while.

        A leader then has an election timeout to hear a quorum again, and sends heartbeats with the
        next tick. What it heard before says nothing about who is there: counted, it would keep an
        isolated leader in leadership for one interval more.
        """
        self.election_elapsed = 0
        self._draw_election_timeout()
        self.heartbeat_elapsed = self.options.heartbeat_ticks - 1
        for member, progress in self.progress.items():
            progress.active = member == self.id

    def send(self, message: Message) -> None:
        (self.after_write if message.kind in PROMISES else self.outbox).append(message)

    def say(self, kind: MessageKind, to: int) -> None:
        """Send a message that has nothing to say but its kind and term."""
        self.send(Message(kind, to, self.id, self.term))

    def commit_by_counting(self) -> bool:
        """Advance the commit index by what a quorum has stored; True if it moved.

        Only entries of the leader's own term are committed by counting, and all before them with
        them: an entry of an earlier term on a majority can still be overwritten (§5.4.2, fig. 8).
        """
        progress = self.progress
        agreed = agreed_index(self.configuration, lambda member: progress[member].match)
        if agreed <= self.log.committed or self.log.term(agreed) != self.term:
            return False
        self.log.commit_to(agreed)
        return True

    def commit_by_membership(self) -> None:
        """Commit what the log itself proves to be committed, at start.

        A leader proposes a membership change only when it has applied the one before. So a log that
        holds the second proves the first committed, even if no commit index on disk says so: none
        needs to be synced, yet a member must not stand in a configuration that is history.
        """
        log = self.log
        changes = [*log.membership_indexes(log.applied + 1, log.last_index + 1)]
        if len(changes) > 1:
            log.commit_to(changes[-2])

    @property
    def known_commit(self) -> tuple[int, int]:
        """Term and index of the last entry known to be committed."""
        return self.log.term(self.log.committed) or 0, self.log.committed

    def fail(self, what: str) -> NoReturn:
        """Stop, with the story."""
        log = self.log
        raise BrokenInvariant(
            f"{what} [member {self.id}, {self.role.name} in term {self.term}, vote {self.vote}, "
            f"leader {self.leader}, log {log.first_index}..{log.last_index}, "
            f"committed {log.committed}, applied {log.applied}, {self.configuration}]"
        )

    def _reset(self, term: int) -> None:
        if term != self.term:
            self.term = term
            self.vote = NOBODY
            self.agreed = 0
        self.leader = NOBODY
        self.votes = {}
        self.election_elapsed = 0
        self.heartbeat_elapsed = 0
        self._draw_election_timeout()
        self.transferee = NOBODY
        self.pending_membership = 0
        self.uncommitted_bytes = 0
        self.reads = ReadQueue()
        last_index = self.log.last_index
        for member, known in self.progress.items():
            fresh = self._fresh_progress(last_index + 1)
            fresh.is_learner = known.is_learner
            fresh.match = last_index if member == self.id else 0
            self.progress[member] = fresh

    def _draw_election_timeout(self) -> None:
        ticks = self.options.election_ticks
        self.election_timeout = ticks + self.dice.randrange(ticks)

    def _fresh_progress(self, next_index: int) -> Progress:
        options = self.options
        window = Inflight(options.inflight_messages_max, options.inflight_bytes_max)
        return Progress(next_index=next_index, inflight=window)
