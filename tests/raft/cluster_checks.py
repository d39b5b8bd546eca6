"""What must hold in any run: the properties of figure 3, linearizable reads, nothing going back.

The checker sees everything that every member does, which no member can.
"""

from dataclasses import dataclass, field

from quivermq.raft import Entry, HardState, Ready, Role
from tests.raft.cluster_member import Member


class Violation(AssertionError):
    """A promise of Raft was broken."""


@dataclass
class Checker:
    """All that was ever seen, by index and by term."""

    leaders: dict[int, int] = field(default_factory=dict)
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    written: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    applied: dict[int, tuple[Entry, bytes]] = field(default_factory=dict)
    committed_by_term: dict[int, int] = field(default_factory=dict)
    commit_seen: int = 0
    hard_states: dict[int, HardState] = field(default_factory=dict)
    reads_asked: dict[bytes, int] = field(default_factory=dict)
    reads_answered: int = 0

    def after_step(self, member: Member) -> None:
        """Look at one member after anything happened to it."""
        if member.node is None:
            return
        member.node.validate()
        replica = member.node.replica
        state = replica.hard_state
        if replica.role is Role.LEADER:
            self._leader(member)
        if state.commit > self.commit_seen:
            self.commit_seen = state.commit
            self.committed_by_term[state.commit] = state.term
        before = self.hard_states.get(member.id, HardState())
        if state.term < before.term:
            raise Violation(f"member {member.id} went back from {before} to {state}")
        self.hard_states[member.id] = state

    def after_crash(self, member: Member) -> None:
        """What was not synced may be gone; the rest may not."""
        self.hard_states[member.id] = member.disk.synced

    def ready(self, member: Member, ready: Ready) -> None:
        """Log matching, by induction: an entry fixes its payload and the term before it."""
        log = member.node.replica.log if member.node else None
        for entry in ready.entries:
            before = log.term(entry.index - 1) if log else None
            seen = (bytes(entry.data), before or 0)
            known = self.written.setdefault((entry.index, entry.term), seen)
            if before is not None and known != seen:
                raise Violation(f"log matching: {entry} follows {before}, elsewhere {known}")
        for state in ready.read_states:
            floor = self.reads_asked.pop(state.context, None)
            if floor is not None:
                self.reads_answered += 1
                if state.index < floor:
                    raise Violation(
                        f"stale read {state} at member {member.id}: {floor} was committed before"
                    )

    def vote(self, voter: int, term: int, candidate: int) -> None:
        known = self.votes.setdefault((voter, term), candidate)
        if known != candidate:
            raise Violation(f"member {voter} votes for {known} and {candidate} in term {term}")

    def apply(self, member: Member, entry: Entry) -> None:
        """State machine safety: the same entry, after the same history, at each index."""
        known, digest = self.applied.setdefault(entry.index, (entry, member.digest))
        if known != entry or digest != member.digest:
            raise Violation(f"member {member.id} applies {entry} where another applied {known}")

    def ask_read(self, context: bytes) -> None:
        self.reads_asked[context] = self.commit_seen

    def _leader(self, member: Member) -> None:
        assert member.node is not None
        replica = member.node.replica
        known = self.leaders.setdefault(replica.term, member.id)
        if known != member.id:
            raise Violation(f"{known} and {member.id} both lead term {replica.term}")
        log = replica.log
        for index, term in self.committed_by_term.items():
            if term < replica.term and index > log.last_index:
                raise Violation(
                    f"leader {member.id} of term {replica.term} ends at {log.last_index}, "
                    f"but {index} was committed by term {term}"
                )
        for index in range(max(log.first_index, log.committed + 1), log.last_index + 1):
            known_entry = self.applied.get(index)
            known_term = self.committed_by_term.get(index, replica.term)
            is_due = known_entry and known_term < replica.term
            if is_due and log.term(index) != known_entry[0].term:
                raise Violation(f"leader {member.id} lacks committed {known_entry[0]}")
