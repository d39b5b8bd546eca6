"""Tracks disk work that is under way, and the messages that may be sent once it is done."""

from collections import deque
from typing import Final

from quivermq.batches import Frame, Index
from quivermq.errors import BrokenInvariant
from quivermq.log import Edge, Log
from quivermq.raft import Message
from quivermq.replica.effects import Persist
from quivermq.replica.entries import follow, frame_of
from quivermq.replica.recent import Recent
from quivermq.replica.state import ArrivedState

_PRUNE_AT_LEAST: Final = 64


class Writes:
    """The storage messages of the Raft core as `Persist` effects, in order."""

    def __init__(self, log: Log, recent: Recent) -> None:
        self._log = log
        self._recent = recent
        self._number = 0
        # Term and vote as of the last work that was handed out.
        self._vote = (log.term, log.vote)
        self._commit_index = log.commit_index
        # By number, the messages that may be sent once the work is done.
        self._open: deque[tuple[int, list[Message]]] = deque()
        # Behind the last entry that was handed out to be written.
        self._end = log.edge
        # Before each entry that was handed out and may not be in the log yet.
        self._before: dict[int, Edge] = {}
        self._prune_at = _PRUNE_AT_LEAST

    @property
    def is_busy(self) -> bool:
        """Whether any work was handed out and is not reported done."""
        return bool(self._open)

    def persist(self, message: Message) -> Persist | None:
        """The work that a STORE message asks for; None if there is nothing to write.

        A commit index alone is no work: it is written with the next entries. What is said without
        work of its own waits for the last work that is under way, if there is any.
        """
        self._commit_index = max(self._commit_index, Index(message.commit))
        arrived = self._arrived(message)
        checkpoint = None if arrived is None else arrived.checkpoint()
        frames = self._frames(message)
        term, vote = message.term, message.vote
        if not term or (term, vote) == self._vote:
            term, vote = 0, 0
        else:
            self._vote = (term, vote)
        if not (term or checkpoint or frames):
            if self._open:
                self._open[-1][1].append(message)
            return None
        self._number += 1
        self._open.append((self._number, [message]))
        return Persist(
            number=self._number,
            term=term,
            vote=vote,
            commit_index=self._commit_index,
            checkpoint=checkpoint,
            frames=frames,
            arrived=arrived,
        )

    def follow(self, end: Edge) -> None:
        """Entries up to `end` were written at once, while nothing was handed out."""
        self._end = end
        self._commit_index = Index(end.next_index - 1)

    def finish(self, number: int) -> list[Message]:
        """The messages whose work is done, in order."""
        expected, messages = self._open.popleft() if self._open else (0, [])
        if number != expected:
            raise BrokenInvariant(f"write {number} is reported done, {expected} comes next")
        if len(self._before) >= self._prune_at:
            self._prune()
        return messages

    def _prune(self) -> None:
        """Forget what the log knows by itself, at a cost that is spread over many writes.

        What later work may yet replace must stay known from here, not from the log.
        """
        later = (message for _, messages in self._open for message in messages)
        firsts = [message.entries[0].index for message in later if message.entries]
        least = min(firsts, default=self._end.next_index)
        for index in [index for index in self._before if index < least]:
            del self._before[index]
        self._prune_at = 2 * len(self._before) + _PRUNE_AT_LEAST

    def _arrived(self, message: Message) -> ArrivedState | None:
        if message.snapshot is None:
            return None
        arrived = arrived_state(message)
        self._end = arrived.edge
        self._before.clear()
        self._recent.clear()
        return arrived

    def _frames(self, message: Message) -> tuple[Frame, ...]:
        if not message.entries:
            return ()
        first = message.entries[0].index
        before = self._edge_before(Index(first))
        if before is not self._end:
            for index in [index for index in self._before if index >= first]:
                del self._before[index]
        frames = []
        for entry in message.entries:
            frame = frame_of(entry, before)
            self._before[entry.index] = before
            before = follow(before, frame)
            frames.append(frame)
        self._end = before
        if message.responses:
            # Otherwise they are given back when they are written: `RawNode.stored_alone`.
            self._recent.add(message.entries)
        return tuple(frames)

    def _edge_before(self, index: Index) -> Edge:
        if index == self._end.next_index:
            return self._end
        known = self._before.get(index)
        return known if known is not None else self._log.edge_before(index)


def arrived_state(message: Message) -> ArrivedState:
    """The state in a snapshot that came in whole."""
    if message.snapshot is None or not isinstance(message.snapshot.data, ArrivedState):
        raise BrokenInvariant("a snapshot without its content cannot be stored")
    return message.snapshot.data
