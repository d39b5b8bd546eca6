"""Linearizable reads without the log (ReadIndex, thesis §6.4).

A leader that has committed in its own term knows every committed index. It may be deposed without
knowing, so a read waits until a quorum has answered a heartbeat sent after the read arrived. The
heartbeats are numbered in *rounds*: an answer to a round confirms all rounds before it, so what a
quorum has confirmed is the same computation as what a quorum has stored.
"""

from collections import deque
from typing import NamedTuple

from quivermq.raft.messages import Configuration
from quivermq.raft.quorum import agreed_index


class ReadRequest(NamedTuple):
    """A read that waits: the member that asked, and its name for it."""

    asker: int
    context: bytes


class PendingRead(NamedTuple):
    """A read that waits for its round; `index` was committed when the read arrived."""

    round: int
    index: int  # type: ignore[assignment]
    request: ReadRequest


class ReadQueue:
    """The reads of one leadership; a new one starts empty."""

    __slots__ = ("confirmed", "early", "open", "pending", "round")

    def __init__(self) -> None:
        # Arrived before the leader committed an entry of its own term.
        self.early: list[ReadRequest] = []
        self.pending: deque[PendingRead] = deque()
        self.round = 0
        # The heartbeats of the last round have not left yet, so that later reads may join it.
        self.open = False
        # Highest round that each member has answered.
        self.confirmed: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.early) + len(self.pending)

    @property
    def wanted_round(self) -> int:
        """The round that heartbeats should carry, 0 for none; repeats heal lost heartbeats."""
        return self.round if self.pending else 0

    def add(self, request: ReadRequest, index: int) -> bool:
        """Queue a read; True if it starts a round, whose heartbeats the caller must send."""
        starts = not self.open
        if starts:
            self.round += 1
            self.open = True
        self.pending.append(PendingRead(self.round, index, request))
        return starts

    def confirm(self, member: int, round_: int) -> None:
        self.confirmed[member] = max(round_, self.confirmed.get(member, 0))

    def release(self, configuration: Configuration) -> list[PendingRead]:
        """Take out the reads whose round a quorum has confirmed."""
        if not self.pending:
            return []
        agreed = agreed_index(configuration, lambda member: self.confirmed.get(member, 0))
        released = []
        while self.pending and self.pending[0].round <= agreed:
            released.append(self.pending.popleft())
        return released
