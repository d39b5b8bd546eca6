"""What is leased for the answer to a poll, and the batches that it is in."""

from dataclasses import dataclass, field

from quivermq.batches import Frame, Index
from quivermq.errors import QuiverError
from quivermq.log import Log
from quivermq.node.clerk import Clerk
from quivermq.node.frame_cache import FrameCache
from quivermq.node.leased_batches import Packed, before, pack, read_runs, runs_of
from quivermq.queue import Leased, Piece


@dataclass(eq=False, slots=True)
class Hold:
    """What is leased at one partition for an answer that is being made."""

    clerk: Clerk
    leased: Leased
    tokens: int
    """Taken of the rate limit for it."""
    sent: Packed = field(default_factory=lambda: Packed([], 0))

    @property
    def pieces(self) -> list[Piece]:
        return before(self.leased.pieces, self.sent.end)


class Job:
    """The batches of one hold, to be found in memory or in the log."""

    def __init__(self, hold: Hold, cache: FrameCache) -> None:
        group = hold.clerk.group
        self.hold = hold
        self.runs = runs_of(hold.leased.pieces)
        self.known = cache.covering(group.id, self.runs)
        self.read: list[Frame] = []
        self.trouble: QuiverError | None = None
        self._log: Log = group.log
        self._end = Index(group.replica.applied_index + 1)
        self._message_bytes = hold.clerk.message_bytes

    @property
    def leased_bytes(self) -> int:
        """More or less: what is cut is copied, and the rest of a batch only to decompress it."""
        headers = [frame.header for frame in self.known or ()]
        packed = sum(
            each.decoded_bytes for each in headers if each.decoded_bytes != each.body_bytes
        )
        return packed + int(sum(end - start for start, end in self.runs) * self._message_bytes)

    def carry_out(self, bytes_max: int, *, at_least_one: bool) -> None:
        frames = self.known
        if frames is None:
            frames = self.read = read_runs(
                self._log, self.runs, self._end, bytes_max, self._message_bytes
            )
        self.hold.sent = pack(frames, self.runs, bytes_max, at_least_one=at_least_one)


def read_all(jobs: list[Job], bytes_max: int) -> None:
    """Read and cut the batches of all jobs; in a thread, unless there is nothing to wait for."""
    left, is_empty = bytes_max, True
    for job in jobs:
        try:
            job.carry_out(left, at_least_one=is_empty)
        except QuiverError as error:
            job.trouble = error
        sent = job.hold.sent.frames
        left -= sum(map(len, sent))
        is_empty = is_empty and not sent
