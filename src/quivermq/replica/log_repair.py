"""Repairs a damaged log: the replica takes no part in consensus, and asks its peers for entries.

Entries that were durable here may have been counted towards a majority. Until they are back, a
vote or a word of this replica could help to choose a leader, or to commit an entry, without them.
So there is no Raft core at all: to its peers this replica is down.

Peers give only what is committed, and the log checks that what it gets is what it lost. What peers
have dropped for good is dropped here as well.
"""

from quivermq.batches import Frame, Index
from quivermq.errors import Corrupt
from quivermq.log import Log
from quivermq.replica.effects import EntriesReply, EntriesRequest, Repair, Rouse, Send
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.storage import newest_state


class LogRepair:
    """The repair of one log, file by file."""

    def __init__(self, member: int, log: Log, settings: ReplicaSettings) -> None:
        self._log = log
        self._settings = settings
        self.reason = str(log.damage[0])
        """The first damage, for people."""
        self._member = member
        self._peers = [peer for peer in _members(log) if peer != member]
        self._asked = 0
        self._ticks = 0
        self._idle_ticks = settings.retry_ticks
        self._found: dict[Index, Frame] = {}
        self._next = Index(0)
        self._is_repairing = False

    @property
    def can_end(self) -> bool:
        """Whether it is known what is missing; otherwise the replica has to be replaced."""
        return all(damage.last_index is not None for damage in self._log.damage)

    @property
    def members(self) -> tuple[int, ...]:
        """All that are known."""
        return (self._member, *self._peers)

    @property
    def is_alone(self) -> bool:
        """Whether no peer is known that could have what is missing."""
        return not self._peers

    def meet(self, peer: int) -> None:
        """A peer wrote, so it can be asked too: members may have changed since the checkpoint."""
        if peer not in self._peers:
            self._peers.append(peer)

    def tick(self) -> list[Send]:
        """The requests to peers, when it is time to ask again; and now and then a call to all.

        Peers that sleep may believe that this replica leads them, though it cannot.
        """
        self._ticks += 1
        self._idle_ticks += 1
        sends = []
        if self._ticks % self._settings.election_ticks == 0:
            sends = [Send(peer, Rouse()) for peer in self._peers]
        if self._idle_ticks >= self._settings.retry_ticks:
            question = self._ask()
            sends += [Send(*question)] if question else []
        return sends

    def take(self, reply: EntriesReply) -> Repair | tuple[int, EntriesRequest] | None:
        """Entries of a peer: a file is complete, or there is more to ask for."""
        wanted = self._wanted()
        if wanted is None or reply.first != wanted.first:
            return None
        if not reply.frames:
            return self._forget(reply.first_kept)
        for number, frame in enumerate(reply.frames):
            index = Index(reply.first + number)
            if frame.header.index == index and index <= wanted.last:
                self._found[index] = frame
        if self._wanted() is not None:
            return self._ask()
        self._is_repairing = True
        runs = self._missing()
        return Repair(
            tuple(self._found[Index(i)] for first, last in runs for i in range(first, last + 1))
        )

    def _forget(self, first_kept: Index) -> Repair | None:
        """A peer has dropped what is missing here: then this log need not keep it either.

        Whole segments can be dropped only, and only with a checkpoint behind them. Where the peer
        still keeps a part of the damaged segment, its retention will get there too.
        """
        damaged = self._missing()[-1][1]
        behind = next((start for start in self._log.segment_starts if start > damaged), None)
        if behind is None or behind > first_kept or behind not in self._log.checkpoints():
            return None
        self._is_repairing = True
        return Repair((), drop_before=behind)

    def repaired(self) -> bool:
        """The log put the entries back; True if nothing is damaged any more."""
        self._found.clear()
        self._next = Index(0)
        self._is_repairing = False
        return not self._log.damage

    def _ask(self) -> tuple[int, EntriesRequest] | None:
        wanted = self._wanted()
        if wanted is None or not self._peers:
            return None
        self._idle_ticks = 0
        self._asked += 1
        return self._peers[self._asked % len(self._peers)], wanted

    def _wanted(self) -> EntriesRequest | None:
        """The first run of entries of the damaged file that no peer has given yet."""
        if self._is_repairing or not self.can_end:
            # While a repair is carried out the log knows no damage any more, or still all of it.
            return None
        for first, last in self._missing():
            index = max(first, self._next)
            while index <= last and index in self._found:
                index = Index(index + 1)
            if index <= last:
                # What is before was given: there is no need to look there again.
                self._next = index
                return EntriesRequest(index, last)
        return None

    def _missing(self) -> list[tuple[Index, Index]]:
        """The damaged entries of the first damaged file: runs in order, apart from each other."""
        damage = self._log.damage
        runs = sorted(
            (d.first_index, d.last_index)
            for d in damage
            if d.path == damage[0].path and d.last_index is not None
        )
        apart: list[tuple[Index, Index]] = []
        for first, last in runs:
            if apart and first <= apart[-1][1] + 1:
                apart[-1] = (apart[-1][0], max(last, apart[-1][1]))
            else:
                apart.append((first, last))
        return apart


def is_past(member: int, log: Log) -> bool:
    """Whether a replica that is the only one can go on without what is damaged: a checkpoint holds
    all that it led to. Those entries cannot be read any more; everything else can."""
    try:
        state = newest_state(log)
    except Corrupt:
        return False
    ends = [damage.last_index for damage in log.damage]
    newest = state.partition.applied_index
    is_alone = state.configuration.members == (member,)
    return is_alone and all(last is not None and last <= newest for last in ends)


def _members(log: Log) -> tuple[int, ...]:
    try:
        return newest_state(log).configuration.members
    except Corrupt:
        return ()
