"""The values of consensus: messages between members, entries, states, and what a `Ready` holds.

Imports nothing. Everything here is immutable. `Entry`, `Message` and `Ready` are named tuples: they
are made for every proposal, and a frozen dataclass costs four times as much to build. Payloads are
opaque: nothing in this package copies, joins or compares them, so they may be views of a frame.
`index` hides an unused method of tuples, which the type checker has to be told.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

NOBODY = 0
"""Stands for "no member": no vote cast, no leader known."""

APPEND_THREAD = -1
APPLY_THREAD = -2
"""Where storage work is addressed, when storage writes are asynchronous."""

ENTRY_OVERHEAD_BYTES = 8
"""Counted on top of each payload, so that a flood of empty entries still meets the limits."""


class MessageKind(IntEnum):
    """The kind of a message."""

    PROPOSE = 0
    APPEND = 1
    APPEND_REPLY = 2
    VOTE = 3
    VOTE_REPLY = 4
    PREVOTE = 5
    PREVOTE_REPLY = 6
    HEARTBEAT = 7
    HEARTBEAT_REPLY = 8
    SNAPSHOT = 9
    TRANSFER = 10
    TIMEOUT_NOW = 11
    READ = 12
    READ_REPLY = 13
    STORE = 14
    STORED = 15
    APPLY = 16
    APPLIED = 17


class Role(IntEnum):
    """The part that a member plays in its term."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class EntryKind(IntEnum):
    """The purpose of an entry's payload; consensus itself reads only `MEMBERSHIP`."""

    NORMAL = 0
    MEMBERSHIP = 1


class Entry(NamedTuple):
    """One position of the replicated log."""

    term: int
    index: int  # type: ignore[assignment]
    kind: EntryKind = EntryKind.NORMAL
    data: Sized = b""


class Configuration(NamedTuple):
    """The members that take part. Ids ascend in every field, so iteration order is always the same.

    While `outgoing` is not empty the configuration is joint: every decision needs a majority of
    `voters` and one of `outgoing`. `learners_next` are voters of the outgoing half that become
    learners when the joint configuration is left; a learner and a voter are never the same member.
    """

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    learners_next: tuple[int, ...] = ()
    auto_leave: bool = False

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def all_voters(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.outgoing}))

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine and the configuration as of `index`; `term` is that entry's term."""

    index: int
    term: int
    configuration: Configuration
    data: object = b""


class HardState(NamedTuple):
    """The state that must survive a crash. A vote belongs to its term, so the two are one value."""

    term: int = 0
    vote: int = NOBODY
    commit: int = 0


class SoftState(NamedTuple):
    """The state that is worth reporting, but need not survive a crash."""

    leader: int = NOBODY
    role: Role = Role.FOLLOWER


class ReadState(NamedTuple):
    """A read that asked with `context` sees everything once `index` is applied."""

    context: bytes
    index: int  # type: ignore[assignment]


class Message(NamedTuple):
    """One thing said by `sender` to `to`; each kind uses the fields it needs.

    `log_term` and `index` name a position: the entry before `entries` in an append, the last entry
    of a candidate, the last entry acknowledged in a reply. `responses` of a storage message may
    leave only after its write is durable. `term` 0 means that the message belongs to no term.
    """

    kind: MessageKind
    to: int
    sender: int
    term: int = 0
    log_term: int = 0
    index: int = 0  # type: ignore[assignment]
    entries: Sequence[Entry] = ()
    commit: int = 0
    reject: bool = False
    hint: int = 0
    vote: int = NOBODY
    snapshot: Snapshot | None = None
    responses: tuple["Message", ...] = ()
    # Read confirmation that a heartbeat asks for; echoed by its reply.
    round: int = 0
    # Names a read for the member that asked.
    context: bytes = b""
    # A vote request on behalf of the leader itself, which its lease must not block (thesis §3.10).
    by_transfer: bool = False
    # Term and index of the last entry that the sender of a vote message knows to be committed.
    known_commit: tuple[int, int] = (0, 0)


class Ready(NamedTuple):
    """All that the world must do before consensus can go on.

    Persist term and vote, then `snapshot`, then `entries`, then the commit index, or all of them as
    one; durably if `must_sync` or if there is a snapshot. Apply `committed`; send `messages`. With
    synchronous storage the messages may leave only after the writes. With asynchronous storage the
    writes are themselves messages.

    The commit index must not be on disk before the entries: where they replace others, those
    others would count as committed after a crash in between.
    """

    soft_state: SoftState | None
    hard_state: HardState | None
    entries: Sequence[Entry]
    snapshot: Snapshot | None
    committed: Sequence[Entry]
    messages: tuple[Message, ...]
    read_states: tuple[ReadState, ...]
    must_sync: bool


def entry_bytes(entry: Entry) -> int:
    """The bytes that one entry counts against every limit."""
    return len(entry.data) + ENTRY_OVERHEAD_BYTES


def entries_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries]) + ENTRY_OVERHEAD_BYTES * len(entries)


def fitting(entries: Sequence[Entry], bytes_max: int) -> Sequence[Entry]:
    """The longest prefix within `bytes_max`, but at least one entry: a lone giant must move."""
    total = 0
    for position, entry in enumerate(entries):
        total += len(entry.data) + ENTRY_OVERHEAD_BYTES
        if total > bytes_max and position:
            return entries[:position]
    return entries
