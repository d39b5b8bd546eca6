"""Messages that came back to a group: ready to be delivered again, or parked until they are due.

Each piece is replicated with its due time. Which of them are ready is a view that the leader keeps
up to date: `promote` compares due times with its clock.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from quivermq.errors import BrokenInvariant
from quivermq.intervals import Interval
from quivermq.queue.pieces import Piece

PROMOTED_AT_ONCE: Final = 10_000
"""Pieces that are made ready in one go: a leader has other requests to serve."""


class Parked(NamedTuple):
    """A piece and when it may be delivered; 0: at any time."""

    piece: Piece
    due_ms: int


class RedeliveryQueue:
    """Pieces by their first offset."""

    def __init__(self) -> None:
        self._parked: dict[int, Parked] = {}
        self._starts: list[int] = []
        self.messages = 0
        self.ready_messages = 0
        self.delayed_pieces = 0
        """Those that wait since their producer delayed them, due or not."""
        self._ready: set[int] = set()
        # Both with leftovers of pieces that were taken, which are passed over when they come up.
        # Only for levels that had something: there may be very many groups that wait for nothing.
        self._by_level: dict[int, list[int]] = {}
        self._by_due: list[tuple[int, int]] = []
        self._latest_ready_ms = 0
        """The latest time for which something was made ready."""

    @classmethod
    def of(cls, everything: Iterable[Parked]) -> "RedeliveryQueue":
        """These pieces, each for itself, in order of offsets."""
        waiting = cls()
        parked = waiting._parked = {one.piece.start: one for one in everything}
        waiting._starts = list(parked)
        waiting.messages = sum(one.piece.end - one.piece.start for one in parked.values())
        waiting.delayed_pieces = sum(map(_is_delayed, parked.values()))
        ready = [one.piece for one in parked.values() if not one.due_ms]
        waiting._ready = {piece.start for piece in ready}
        waiting.ready_messages = sum(piece.end - piece.start for piece in ready)
        for piece in ready:
            # In order of offsets, which is a heap.
            waiting._by_level.setdefault(piece.priority, []).append(piece.start)
        waiting._by_due = [(one.due_ms, start) for start, one in parked.items() if one.due_ms]
        heapify(waiting._by_due)
        return waiting

    def copy(self) -> "RedeliveryQueue":
        """The same, to be changed apart: pieces are shared, since they never change."""
        made = RedeliveryQueue()
        made._parked, made._starts = self._parked.copy(), self._starts.copy()
        made.messages, made.ready_messages = self.messages, self.ready_messages
        made.delayed_pieces = self.delayed_pieces
        made._ready = self._ready.copy()
        made._by_level = {level: heap.copy() for level, heap in self._by_level.items() if heap}
        made._by_due = self._by_due.copy()
        made._latest_ready_ms = self._latest_ready_ms
        return made

    def __len__(self) -> int:
        """How many pieces."""
        return len(self._starts)

    def put(self, piece: Piece, due_ms: int) -> None:
        """A piece comes back; it joins the one before it if they have everything in common."""
        at = bisect_right(self._starts, piece.start) - 1
        before = self._parked[self._starts[at]] if at >= 0 else None
        if before is not None and before.piece.end > piece.start:
            raise BrokenInvariant(f"{piece} comes back, but {before} waits")
        self.messages += piece.end - piece.start
        if before is not None and _fits(before, piece, due_ms):
            start = before.piece.start
            self._parked[start] = Parked(before.piece._replace(end=piece.end), due_ms)
            if start in self._ready:
                self.ready_messages += piece.end - piece.start
            return
        self._insert(Parked(piece, due_ms), is_ready=not due_ms)

    def _insert(self, parked: Parked, *, is_ready: bool) -> None:
        piece = parked.piece
        self._parked[piece.start] = parked
        insort(self._starts, piece.start)
        self.delayed_pieces += _is_delayed(parked)
        if is_ready:
            self._make_ready(piece)
        else:
            heappush(self._by_due, (parked.due_ms, piece.start))
            if len(self._by_due) > _leftovers_max(len(self._starts)):
                self._by_due = [
                    (due_ms, start)
                    for start, (_, due_ms) in self._parked.items()
                    if due_ms and start not in self._ready
                ]
                heapify(self._by_due)

    def _make_ready(self, piece: Piece) -> None:
        self._ready.add(piece.start)
        self.ready_messages += piece.end - piece.start
        heap = self._by_level.setdefault(piece.priority, [])
        heappush(heap, piece.start)
        if len(heap) > _leftovers_max(len(self._starts)):
            ready = [self._parked[start].piece for start in self._ready]
            heap[:] = sorted(each.start for each in ready if each.priority == piece.priority)

    def promote(self, now_ms: int) -> None:
        """Make ready what is due by now, and nothing else. The rest of very many comes next time:
        `next_due_ms` tells that it is overdue."""
        if now_ms < self._latest_ready_ms:
            self._demote(now_ms)
        for _ in range(PROMOTED_AT_ONCE):
            if not self._by_due or self._by_due[0][0] > now_ms:
                break
            due_ms, start = heappop(self._by_due)
            parked = self._parked.get(start)
            if parked is not None and parked.due_ms == due_ms and start not in self._ready:
                self._make_ready(parked.piece)
                self._latest_ready_ms = max(self._latest_ready_ms, due_ms)

    def _demote(self, now_ms: int) -> None:
        """The clock went back: what was due by its time has to wait again."""
        self._latest_ready_ms = now_ms
        early = [start for start in self._ready if self._parked[start].due_ms > now_ms]
        for start in early:
            piece, due_ms = self._parked[start]
            self.ready_messages -= piece.end - piece.start
            self._by_due.append((due_ms, start))
        self._ready.difference_update(early)
        heapify(self._by_due)

    @property
    def next_due_ms(self) -> int | None:
        """When the next one is due that is not ready."""
        while self._by_due:
            due_ms, start = self._by_due[0]
            parked = self._parked.get(start)
            if parked is not None and parked.due_ms == due_ms and start not in self._ready:
                return due_ms
            heappop(self._by_due)
        return None

    def first_ready(self, level: int) -> Piece | None:
        """The ready piece of a level with the lowest offset."""
        heap = self._by_level.get(level)
        while heap:
            start = heap[0]
            parked = self._parked.get(start)
            if parked is not None and start in self._ready and parked.piece.priority == level:
                return parked.piece
            heappop(heap)
        return None

    def take(self, start: int, end: int) -> list[Piece]:
        """Remove [start, end); returns what was in there, in order."""
        found: list[Piece] = []
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self._starts) and self._starts[at] < end:
            parked = self._parked[self._starts[at]]
            if parked.piece.end <= start:
                at += 1
                continue
            is_ready = self._remove(at)
            piece = parked.piece
            found.append(piece.part(start, end))
            for low, high in ((piece.start, start), (end, piece.end)):
                if low < high:
                    self._insert(Parked(piece.part(low, high), parked.due_ms), is_ready=is_ready)
            if piece.start < start:
                at += 1
        self.messages -= sum(piece.end - piece.start for piece in found)
        return found

    def _remove(self, at: int) -> bool:
        """Returns whether it was ready."""
        start = self._starts.pop(at)
        parked = self._parked.pop(start)
        piece = parked.piece
        self.delayed_pieces -= _is_delayed(parked)
        if start not in self._ready:
            return False
        self._ready.discard(start)
        self.ready_messages -= piece.end - piece.start
        return True

    def within(self, start: int, end: int) -> list[Interval]:
        """The parts of [start, end) that wait here."""
        found: list[Interval] = []
        at = max(bisect_right(self._starts, start) - 1, 0)
        while at < len(self._starts) and self._starts[at] < end:
            piece = self._parked[self._starts[at]].piece
            if piece.end > start:
                found.append((max(start, piece.start), min(end, piece.end)))
            at += 1
        return found

    def parked(self) -> list[Parked]:
        """All of it, in order of offsets."""
        return [self._parked[start] for start in self._starts]

    def validate(self) -> None:
        """Raise `BrokenInvariant` unless everything is in order and counted."""
        before = -1
        messages = ready = 0
        for parked in self.parked():
            piece = parked.piece
            if not before <= piece.start < piece.end:
                raise BrokenInvariant(f"{piece} waits behind {before}")
            before = piece.end
            messages += piece.end - piece.start
            ready += (piece.end - piece.start) * (piece.start in self._ready)
        if (messages, ready) != (self.messages, self.ready_messages):
            raise BrokenInvariant(f"{messages} messages wait, {self.messages} are counted")
        if self.delayed_pieces != sum(map(_is_delayed, self._parked.values())):
            raise BrokenInvariant(f"{self.delayed_pieces} delayed pieces are counted")
        if not self._ready <= self._parked.keys():
            raise BrokenInvariant("something is ready that does not wait")


def _leftovers_max(pieces: int) -> int:
    """A heap that is larger is made anew. A follower takes pieces, and never looks up which come
    next: leftovers would pile up there for ever."""
    return 2 * pieces + 64


def _is_delayed(parked: Parked) -> bool:
    return parked.due_ms > 0 and not parked.piece.failures


def _fits(before: Parked, piece: Piece, due_ms: int) -> bool:
    """Whether the pieces are one: side by side, and equal in everything."""
    other = before.piece
    return (other.end, other.priority, other.failures, before.due_ms) == (
        piece.start,
        piece.priority,
        piece.failures,
        due_ms,
    )
