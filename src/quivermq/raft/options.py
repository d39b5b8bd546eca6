"""Every option of one replica, by name, with its unit last.

A limit of 0 is refused: one reader takes it for "no limit", another for "nothing at all".
"""

from dataclasses import dataclass, fields

from quivermq.errors import InvalidRequest

NO_LIMIT = (1 << 63) - 1
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a replica behaves; the same for all its life."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1

    # Ask whether an election could be won before disturbing the term (thesis §9.6).
    prevote: bool = True
    # A leader that hears no quorum for an election timeout steps down, and members that hear a
    # leader refuse votes (§6.2, §4.2.3).
    check_quorum: bool = True
    # Disk work is handed out as messages instead of blocking `advance`.
    async_storage: bool = False
    # Only a leader may stamp offsets and time, so a follower refuses proposals instead of
    # forwarding them.
    forward_proposals: bool = False
    # Answer reads from the leader's lease alone. Safe only with bounded clock drift (§6.4.1).
    lease_reads: bool = False
    # What this member acknowledges may be lost with the power. It then behaves like one that is
    # behind; otherwise a member that finds its log too short stops, because that cannot happen.
    forgetful_disk: bool = False
    validate_membership: bool = True
    step_down_on_removal: bool = True

    message_bytes_max: int = 1 * MIB
    inflight_messages_max: int = 256
    inflight_bytes_max: int = 16 * MIB
    # The same for a member that is behind what is committed: nobody waits for it, and what is sent
    # there at once is in front of what others wait for.
    behind_bytes_max: int = 16 * MIB
    uncommitted_bytes_max: int = 64 * MIB
    apply_bytes_max: int = 16 * MIB
    reads_pending_max: int = 10_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_max", "_ticks")) and value < 1:
                raise InvalidRequest(f"{field.name} = {value}: it must be at least 1")
        if self.election_ticks <= self.heartbeat_ticks:
            raise InvalidRequest(
                f"election_ticks = {self.election_ticks} must be above "
                f"heartbeat_ticks = {self.heartbeat_ticks}, or leaders are deposed while alive"
            )
        if self.lease_reads and not self.check_quorum:
            raise InvalidRequest("lease_reads needs check_quorum: without it there is no lease")
