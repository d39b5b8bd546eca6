"""Transfers a checkpoint to a replica that is behind the kept log: in parts, checked, resumable.

The receiver asks for one part at a time, so it sets the pace and any part may be lost. Checkpoints
at the same index are the same bytes on every replica: a transfer that began with one leader goes
on with the next. Nothing is stored before all of it has arrived and its checksum holds, so a crash
in the middle leaves nothing behind.
"""

from dataclasses import dataclass, field, replace

from crc32c import crc32c

from quivermq.batches import Index
from quivermq.errors import Corrupt, StorageFailed, UnsupportedFormat
from quivermq.log import CheckpointSummary, Log
from quivermq.raft import Message
from quivermq.replica.effects import Chunk, ChunkRequest, Offer, TransferEnded
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.state import ArrivedState


class Sending:
    """The leader's side: transfers under way, one a follower."""

    def __init__(self, log: Log, settings: ReplicaSettings) -> None:
        self._log = log
        self._settings = settings
        self._silent_ticks: dict[int, int] = {}
        # By member, the checkpoint that did not arrive whole, and how long not to send it again.
        self._failed: dict[int, tuple[Index, int]] = {}
        # The last checkpoint that did not.
        self._arrived_never = Index(0)

    @property
    def is_busy(self) -> bool:
        """Whether a transfer is under way."""
        return bool(self._silent_ticks)

    def offer(self, message: Message) -> Offer | None:
        """The offer to send instead of the core's snapshot message; None if it cannot be read."""
        if message.snapshot is None:
            return None
        index = Index(message.snapshot.index + 1)
        kept = self._summary(index)
        if kept is None or self._failed.get(message.to, (0, 0))[0] == index:
            return None
        self._silent_ticks[message.to] = 0
        return Offer(message, kept.size, kept.checksum)

    def part(self, member: int, request: ChunkRequest) -> Chunk:
        """A part that was asked for; empty if that checkpoint is not kept any more."""
        part = b""
        if member in self._silent_ticks:
            self._silent_ticks[member] = 0
        kept = self._summary(request.index)
        if kept is not None and kept.checksum == request.checksum:
            most = self._settings.message_bytes_max
            try:
                part = self._log.checkpoint_part(request.index, request.at, most)
            except (Corrupt, StorageFailed):
                self._log.distrusted.add(request.index)
        return Chunk(request.index, request.checksum, request.at, part)

    def end(self, member: int, report: TransferEnded) -> None:
        """A member has the checkpoint, or will not have it: the file may be damaged, and to send it
        over and over would not help."""
        self._silent_ticks.pop(member, None)
        if report.arrived:
            return
        if self._arrived_never == report.index:
            # Twice is no accident of the way: the next one is tried.
            self._log.distrusted.add(report.index)
        self._arrived_never = report.index
        self._failed[member] = (report.index, self._settings.election_ticks)

    def tick(self) -> list[int]:
        """Members that have been silent for too long: their transfer has failed."""
        for member in self._silent_ticks:
            self._silent_ticks[member] += 1
        limit = self._settings.transfer_ticks
        failed = [m for m, ticks in self._silent_ticks.items() if ticks > limit]
        for member in failed:
            del self._silent_ticks[member]
        resting = self._failed.items()
        self._failed = {m: (index, left - 1) for m, (index, left) in resting if left > 1}
        return failed

    def _summary(self, index: Index) -> CheckpointSummary | None:
        """Of a checkpoint, if it is kept. Its content is not checked here: it is never all in
        memory, and the receiver checks it."""
        try:
            return self._log.checkpoint_summary(index)
        except (Corrupt, StorageFailed, UnsupportedFormat):
            return None


@dataclass(slots=True)
class Receiving:
    """The follower's side: a checkpoint that is coming in."""

    offer: Offer
    sender: int
    data: bytearray = field(default_factory=bytearray)
    idle_ticks: int = 0

    @property
    def index(self) -> Index:
        snapshot = self.offer.message.snapshot
        return Index(snapshot.index + 1 if snapshot else 0)

    @property
    def is_complete(self) -> bool:
        return len(self.data) >= self.offer.size

    def is_same(self, offer: Offer) -> bool:
        """Whether another offer is of the very bytes that are coming in."""
        mine, other = self.offer.message.snapshot, offer.message.snapshot
        return (
            mine is not None
            and other is not None
            and (mine.index, self.offer.size, self.offer.checksum)
            == (other.index, offer.size, offer.checksum)
        )

    def request(self) -> ChunkRequest:
        """The next part."""
        return ChunkRequest(self.index, self.offer.checksum, len(self.data))

    def take(self, chunk: Chunk) -> bool:
        """Add a part if it is the one that comes next."""
        if (chunk.index, chunk.checksum) != (self.index, self.offer.checksum):
            return False
        if chunk.at != len(self.data) or not chunk.data:
            return False
        self.data += chunk.data
        self.idle_ticks = 0
        return True

    def finish(self) -> Message:
        """The core's message with the checkpoint in it; `Corrupt` unless all of it is right."""
        data = bytes(self.data)
        if len(data) != self.offer.size or crc32c(data) != self.offer.checksum:
            raise Corrupt("a checkpoint arrived with another checksum than was offered")
        arrived = ArrivedState(data)
        message = self.offer.message
        if message.snapshot is None or arrived.edge.next_index != self.index:
            raise Corrupt(f"a checkpoint of {arrived.edge} arrived as {self.index}")
        if arrived.configuration != message.snapshot.configuration:
            raise Corrupt("a checkpoint arrived with other members than were offered")
        return message._replace(snapshot=replace(message.snapshot, data=arrived))
