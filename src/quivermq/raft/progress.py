"""The progress of one member, as its leader knows it, and how much the leader may send there.

A member is *probed* while its log is unknown (one append at a time, to find where the logs agree),
*replicated* to optimistically once they agree (appends are pipelined), and *fed a snapshot* when
the entries it needs are no longer kept.

    PROBE --accepted--> REPLICATE --rejected, unreachable--> PROBE
    PROBE --entries compacted--> SNAPSHOT --reported, or caught up--> PROBE
"""

from collections import deque
from enum import Enum


class Pace(Enum):
    """How a leader sends to one member."""

    PROBE = "StateProbe"
    REPLICATE = "StateReplicate"
    SNAPSHOT = "StateSnapshot"


class Inflight:
    """The window of appends sent and not yet acknowledged, bounded in messages and in bytes."""

    __slots__ = ("bytes", "bytes_max", "messages_max", "window")

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.bytes = 0
        self.window: deque[tuple[int, int]] = deque()  # (last index, bytes), indexes ascending

    def __len__(self) -> int:
        return len(self.window)

    @property
    def full(self) -> bool:
        return len(self.window) >= self.messages_max or self.bytes >= self.bytes_max

    def add(self, last_index: int, size: int) -> None:
        self.window.append((last_index, size))
        self.bytes += size

    def free_to(self, index: int) -> None:
        """Forget every message whose entries are all acknowledged by `index`."""
        window = self.window
        while window and window[0][0] <= index:
            self.bytes -= window.popleft()[1]

    def clear(self) -> None:
        self.window.clear()
        self.bytes = 0


class Progress:
    """One member, seen from the leader.

    `match` is the highest index known to be in the member's durable log: it counts towards commit,
    and goes back within a term only if the member says that its disk forgets. `next` is the next
    index to send, always above `match`.
    """

    __slots__ = (
        "active",
        "inflight",
        "is_learner",
        "match",
        "next",
        "pace",
        "paused",
        "pending_snapshot",
        "sent_commit",
    )

    def __init__(self, *, next_index: int, inflight: Inflight, is_learner: bool = False) -> None:
        self.match = 0
        self.next = next_index
        self.pace = Pace.PROBE
        self.inflight = inflight
        self.is_learner = is_learner
        # Heard from since the last quorum check.
        self.active = False
        # No appends until an answer comes: a probe is out, or the window is full.
        self.paused = False
        # Index of the snapshot on its way, while the pace is SNAPSHOT.
        self.pending_snapshot = 0
        # Highest commit index sent; tells whether another message could teach the member anything.
        self.sent_commit = 0

    @property
    def is_paused(self) -> bool:
        return self.paused or self.pace is Pace.SNAPSHOT

    def probe(self) -> None:
        """Go back to one append at a time, from what is known to match."""
        self.next = max(self.match, self.pending_snapshot) + 1
        self._change_pace(Pace.PROBE)
        self.sent_commit = min(self.sent_commit, self.next - 1)

    def replicate(self) -> None:
        self._change_pace(Pace.REPLICATE)
        self.next = self.match + 1

    def await_snapshot(self, index: int) -> None:
        self._change_pace(Pace.SNAPSHOT)
        self.pending_snapshot = index
        self.next = index + 1
        self.sent_commit = index

    def sent(self, count: int, size: int, commit: int) -> None:
        """Account for an append of `count` entries that carried `commit`."""
        if self.pace is Pace.REPLICATE:
            if count:
                self.next += count
                self.inflight.add(self.next - 1, size)
            # An append sent into a full window is a probe: if all before it were lost, its answer
            # reopens the flow.
            self.paused = self.inflight.full
        elif count:
            self.paused = True
        self.sent_commit = commit

    def can_learn_commit(self, commit: int) -> bool:
        """Whether sending `commit` could move the member's own commit index."""
        return commit > self.sent_commit and self.sent_commit < self.next - 1

    def acknowledged(self, index: int) -> bool:
        """Take an acknowledgement; False if it says nothing that was not known."""
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        self.paused = False
        return True

    def rejected(self, index: int, hint: int) -> bool:
        """Take a rejection of the append after `index`; False if it is stale.

        Delayed rejections must not pull a follower back that has since answered: when replicating,
        anything at or below `match` is stale; when probing, anything but the one probe out is.
        """
        if self.pace is Pace.REPLICATE:
            if index <= self.match:
                return False
            self.next = self.match + 1
        else:
            if index != self.next - 1:
                return False
            self.next = max(min(index, hint + 1), self.match + 1)
            self.paused = False
        self.sent_commit = min(self.sent_commit, self.next - 1)
        return True

    def distrust(self, index: int, hint: int) -> None:
        """Probe from what may agree: the member no longer vouches for its log up to `index`."""
        self.match = 0
        self._change_pace(Pace.PROBE)
        self.next = max(min(index, hint + 1), 1)
        self.sent_commit = 0

    def _change_pace(self, pace: Pace) -> None:
        self.pace = pace
        self.paused = False
        self.pending_snapshot = 0
        self.inflight.clear()
