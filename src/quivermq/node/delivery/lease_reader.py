"""Reads the batches of leased messages, from the log or from memory, for the answer to a poll."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quivermq.batches import Flag, Frame, FrameKind, Index, Offset, cut, expired_offsets
from quivermq.errors import Corrupt, QuiverError, StorageFailed
from quivermq.intervals import Interval, IntervalSet, intervals_of, join, without
from quivermq.log import STORED_LIMITS, Log
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.frame_cache import FrameCache
from quivermq.queue import GrantedLease, Piece

_READ_BYTES_MIN: Final = 8 << 20
"""Batches that are cut are larger on disk than in the answer."""
_READ_SLACK: Final = 64 << 10
_HEADERS: Final = int(Flag.HEADERS)
_CUTS_MAX: Final = 8
"""A batch with more gaps than this is sent from its first leased message to its last."""


class Packed(NamedTuple):
    """The batches of one partition that a response carries."""

    frames: list[Frame]
    end: int
    """Leased messages from this offset on did not fit."""


def runs_of(pieces: Iterable[Piece]) -> list[Interval]:
    """The offsets of pieces, neighbours joined."""
    runs: list[Interval] = []
    for piece in pieces:
        if runs and runs[-1][1] == piece.start:
            runs[-1] = (runs[-1][0], piece.end)
        else:
            runs.append((piece.start, piece.end))
    return runs


def read_runs(
    log: Log, runs: Sequence[Interval], end: Index, bytes_max: int, message_bytes: float
) -> list[Frame]:
    """The batches that hold these messages, before entry `end`; from some point on none, if they
    are too many, or some cannot be read. `message_bytes` is what a message is thought to take."""
    found: list[Frame] = []
    left = max(bytes_max, _READ_BYTES_MIN)
    for start, stop in runs:
        at = max(start, found[-1].header.next_offset) if found else start
        while at < stop and left > 0:
            guess = int((stop - at) * message_bytes) + _READ_SLACK
            try:
                index = log.index_of_offset(Offset(at))
                frames = log.read(index, end=end, bytes_max=min(left, guess))
            except (Corrupt, StorageFailed):
                if not found:
                    raise
                return found
            wanted: list[Frame] = []
            for frame in frames:
                header = frame.header
                if header.kind == FrameKind.DATA and at < stop and at < header.next_offset:
                    wanted.append(frame)
                    left -= len(frame)
                    at = header.next_offset
            found += _apart(wanted, sum(map(len, frames)))
    return found


def _apart(wanted: list[Frame], read_bytes: int) -> list[Frame]:
    """Batches that are read together share one piece of memory, as long as any of it is kept: a few
    batches of many are copied out of it."""
    if 2 * sum(map(len, wanted)) >= read_bytes:
        return wanted
    return [Frame(frame.header, bytes(frame.body)) for frame in wanted]


def pack(
    frames: Sequence[Frame], runs: Sequence[Interval], bytes_max: int, *, at_least_one: bool
) -> Packed:
    """The parts of batches to send for these messages, or for the first of them."""
    sent: list[Frame] = []
    end, at = 0, 0
    for frame in frames:
        wanted: list[Interval] = []
        while at < len(runs) and runs[at][0] < frame.header.next_offset:
            start, stop = runs[at]
            wanted.append(
                (max(start, frame.header.base_offset), min(stop, frame.header.next_offset))
            )
            if stop > frame.header.next_offset:
                break
            at += 1
        if not wanted:
            continue
        parts = _leased_parts(frame, wanted)
        size = sum(map(len, parts))
        if size <= bytes_max:
            sent += parts
            bytes_max -= size
            end = wanted[-1][1]
            continue
        if at_least_one and not sent:
            start, stop = wanted[0]
            fitting = max(1, (stop - start) * bytes_max // size)
            end = start + fitting
            whole = fitting == frame.header.count
            sent.append(frame if whole else cut(frame, start, end, STORED_LIMITS))
        break
    return Packed(sent, end)


def expired_intervals(
    frames: Iterable[Frame], pieces: Sequence[Piece], now_ms: int, lasting: Sequence[Interval]
) -> list[Interval]:
    """The expired part of these pieces. A message that failed was taken in time: it is delivered
    again as often as the topic says."""
    found: list[int] = []
    for frame in frames:
        if frame.header.flags & _HEADERS:
            start, stop = pieces[0].start, pieces[-1].end
            found += expired_offsets(frame, start, stop, now_ms, STORED_LIMITS)
    if not found:
        return []
    expired = IntervalSet(intervals_of(found))
    for start, stop in lasting:
        expired.remove(start, stop)
    untried = (piece for piece in pieces if not piece.failures)
    return join([part for piece in untried for part in expired.within(piece.start, piece.end)])


def _leased_parts(frame: Frame, wanted: Sequence[Interval]) -> list[Frame]:
    leased = sum(stop - start for start, stop in wanted)
    if 2 * leased >= frame.header.count:
        return [frame]
    if len(wanted) > _CUTS_MAX:
        return [cut(frame, wanted[0][0], wanted[-1][1], STORED_LIMITS)]
    return [cut(frame, start, stop, STORED_LIMITS) for start, stop in wanted]


def beyond(pieces: Iterable[Piece], end: int) -> list[Interval]:
    """The parts of these pieces from an offset on."""
    return runs_of(
        piece._replace(start=max(piece.start, end)) for piece in pieces if piece.end > end
    )


def before(pieces: Iterable[Piece], end: int) -> list[Piece]:
    """The parts of these pieces before an offset."""
    return [piece._replace(end=min(piece.end, end)) for piece in pieces if piece.start < end]


@dataclass(eq=False, slots=True)
class PendingLease:
    """Messages leased from one partition for a response that is being made."""

    dispatcher: DeliveryDispatcher
    leased: GrantedLease
    tokens: int
    """Taken of the rate limit for it."""
    lasting: Sequence[Interval] = ()
    """Messages that do not expire, since the group was given them again."""
    sent: Packed = field(default_factory=lambda: Packed([], 0))

    @property
    def pieces(self) -> list[Piece]:
        return before(self.leased.pieces, self.sent.end)

    def lose(self, lost: list[Interval]) -> bool:
        """Another consumer has some of it; returns whether anything is left."""
        pieces = [
            piece.part(low, high)
            for piece in self.leased.pieces
            for low, high in IntervalSet(lost).gaps(piece.start, piece.end)
        ]
        self.leased = self.leased._replace(pieces=pieces)
        return bool(pieces)


class LeaseRead:
    """Finds the batches of one pending lease, in memory or in the log."""

    def __init__(self, pending: PendingLease, cache: FrameCache) -> None:
        hosted = pending.dispatcher.hosted
        self.pending = pending
        self.runs = runs_of(pending.leased.pieces)
        self.known = cache.covering(hosted.id, self.runs)
        self.read: list[Frame] = []
        self.expired: list[Interval] = []
        """Leased, and not to be delivered: their time to live is over."""
        self.trouble: QuiverError | None = None
        self._log: Log = hosted.log
        self._end = Index(hosted.replica.applied_index + 1)
        self._message_bytes = pending.dispatcher.message_bytes
        self._now_ms = pending.dispatcher.now_ms()

    @property
    def leased_bytes(self) -> int:
        """More or less: what is cut is copied, and the rest of a batch only to decompress it."""
        headers = [frame.header for frame in self.known or ()]
        packed = sum(
            each.decoded_bytes for each in headers if each.decoded_bytes != each.body_bytes
        )
        return packed + int(sum(end - start for start, end in self.runs) * self._message_bytes)

    def run(self, bytes_max: int, *, at_least_one: bool) -> None:
        frames = self.known
        if frames is None:
            frames = self.read = read_runs(
                self._log, self.runs, self._end, bytes_max, self._message_bytes
            )
        pending = self.pending
        self.expired = expired_intervals(
            frames, pending.leased.pieces, self._now_ms, pending.lasting
        )
        runs = without(self.runs, self.expired) if self.expired else self.runs
        pending.sent = pack(frames, runs, bytes_max, at_least_one=at_least_one)


def read_all(reads: list[LeaseRead], bytes_max: int) -> None:
    """Read and cut the batches of all reads; in a thread, unless there is nothing to wait for."""
    left, is_empty = bytes_max, True
    for read in reads:
        try:
            read.run(left, at_least_one=is_empty)
        except QuiverError as error:
            read.trouble = error
        sent = read.pending.sent.frames
        left -= sum(map(len, sent))
        is_empty = is_empty and not sent
