"""The effects of a replica, for its broker to carry out, and the mail between replicas.

All frozen and slotted: a replica's whole conversation is data that a test can read, a simulator
can delay and a node can put on a wire or a disk.
"""

from dataclasses import dataclass

from quivermq.batches import Frame, Index, Offset
from quivermq.errors import QuiverError
from quivermq.log import Checkpoint
from quivermq.raft import Message
from quivermq.replica.state import ArrivedState, StateSnapshot

Token = int
"""Names a request for its maker, which chooses it and gets it back in the answer."""


@dataclass(frozen=True, slots=True)
class Persist:
    """Write this, make it durable, then call `Replica.persisted`. In the order they were given.

    `storage.carry_out(log, persist)` is the one way to do it.
    """

    number: int
    """Counts up by one; given back to `persisted`."""
    term: int
    vote: int
    """Term and vote to save; term 0 if they did not change."""
    commit_index: Index
    checkpoint: Checkpoint | None
    """Replaces the whole log, before the frames are written."""
    frames: tuple[Frame, ...]
    """Entries; where they overlap the log, its tail is cut first."""
    arrived: ArrivedState | None = None
    """The state in the checkpoint: restored with the write, since that may take long."""


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Keep this state beside the segment that starts at `index`; no request waits for it.

    Packing it may take long: do it in a thread.
    """

    index: Index
    state: StateSnapshot


@dataclass(frozen=True, slots=True)
class Repair:
    """Put these entries, fetched from a peer, where the log lost its own; then `repaired`."""

    frames: tuple[Frame, ...]
    drop_before: Index = Index(0)
    """Not 0: peers no longer keep what is damaged, so the log is dropped up to here instead."""


@dataclass(frozen=True, slots=True)
class Send:
    """Give `mail` to the replica of the same partition on another node. May be lost."""

    to: int
    mail: "Mail"


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch is committed."""

    base_offset: Offset
    count: int
    timestamp_ms: int
    is_repeat: bool
    """The batch was stored before; these are its first offsets."""


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Everything acknowledged before the question was asked is applied here."""

    end: Offset


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of membership, settings, catalog or offsets is committed and applied."""


Result = Produced | ReadReady | Changed | QuiverError


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the request with `token`. Every token gets exactly one."""

    token: Token
    result: Result


@dataclass(frozen=True, slots=True)
class Wake:
    """Messages up to `end` may be delivered: wake the polls that wait for them."""

    end: Offset


Effect = Persist | SaveCheckpoint | Repair | Send | Answer | Wake


@dataclass(frozen=True, slots=True)
class Consensus:
    """A message of the Raft core. Snapshots travel as offers and chunks instead."""

    message: Message


@dataclass(frozen=True, slots=True)
class Offer:
    """The leader has a checkpoint for a follower that is behind the kept log."""

    message: Message
    """The core's snapshot message, its data left out."""
    size: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """A follower asks for a part of an offered checkpoint."""

    index: Index
    checksum: int
    at: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a checkpoint; empty if the checkpoint is no longer kept."""

    index: Index
    checksum: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A follower has the whole checkpoint, or gave up: the leader's core is told."""

    index: Index
    arrived: bool


@dataclass(frozen=True, slots=True)
class EntriesRequest:
    """A damaged replica asks for committed entries from `first` to `last`."""

    first: Index
    last: Index


@dataclass(frozen=True, slots=True)
class EntriesReply:
    """Committed entries from `first` on, as many as fit into one message; none if not kept."""

    first: Index
    frames: tuple[Frame, ...]
    first_kept: Index
    """Where the log of the peer that answers starts."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """The leader of `term` falls asleep, with everything up to `index` applied and nothing else.

    A member that is as far and has nothing to do sleeps too.
    """

    term: int
    index: Index


@dataclass(frozen=True, slots=True)
class Rouse:
    """A sleeper wakes up: the sender needs a leader and cannot stand for election itself."""


Mail = (
    Consensus
    | Offer
    | ChunkRequest
    | Chunk
    | TransferEnded
    | EntriesRequest
    | EntriesReply
    | Sleep
    | Rouse
)
