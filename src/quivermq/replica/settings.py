"""Every limit and interval of a replica, by name."""

from dataclasses import dataclass, field

from quivermq.batches import DEFAULT_LIMITS, MIB, Limits
from quivermq.raft import Options


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """How a replica of a partition behaves. Intervals are in ticks of `tick_ms`."""

    tick_ms: int = 100
    election_ticks: int = 10
    """A follower stands for election after one to two of these without a leader."""
    heartbeat_ticks: int = 1

    proposals_max: int = 1024
    """Requests that may wait for a commit; past it producers get `Overloaded`."""
    uncommitted_bytes_max: int = 64 * MIB
    """The same in bytes."""
    groups_max: int = 10_000
    """Groups whose committed offsets a partition keeps; new ones are refused past it."""
    catalog_bytes_max: int = 64 * MIB
    """The size that the catalog may have."""
    reads_max: int = 10_000
    """Linearizable reads that may wait."""
    read_ticks: int = 30
    """A read that is not answered by then ends in `Timeout`."""
    sleep_ticks: int = 20
    """A partition that had nothing to do for so long falls asleep; 0: never."""

    forgetful_disk: bool = False
    """Whether disk work is called done before it is durable, so that the power may take it."""

    message_bytes_max: int = 1 * MIB
    """Entries, and parts of a checkpoint, in one message to a peer; one entry may exceed it."""
    behind_bytes_max: int = 2 * MIB
    """On their way to a member that lacks what is committed; one message may exceed it."""
    recent_bytes_max: int = 8 * MIB
    """Entries kept in memory from their write until they are applied; others are read again."""
    retry_ticks: int = 5
    """After this long a part of a checkpoint, or an entry to repair, is asked for again."""
    checkpoint_bytes_max: int = 256 * MIB
    """The largest checkpoint that is taken in."""
    transfer_ticks: int = 100
    """A checkpoint transfer that made no progress for so long has failed."""

    limits: Limits = field(default=DEFAULT_LIMITS)

    def consensus(self) -> Options:
        """The same for the Raft core."""
        return Options(
            async_storage=True,
            forgetful_disk=self.forgetful_disk,
            election_ticks=self.election_ticks,
            heartbeat_ticks=self.heartbeat_ticks,
            message_bytes_max=self.message_bytes_max,
            behind_bytes_max=self.behind_bytes_max,
            uncommitted_bytes_max=self.uncommitted_bytes_max,
            reads_pending_max=self.reads_max,
        )
