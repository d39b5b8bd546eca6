"""One member of the random cluster: a node, a disk that can forget, a state machine that counts.

The state machine is a chain of digests, so that two members that applied different things at any
index differ at every index after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random

from quivermq.raft import (
    APPEND_THREAD,
    NOBODY,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipChange,
    Message,
    Options,
    RawNode,
    Ready,
    Snapshot,
)
from quivermq.testing.memory_storage import MemoryStorage


class Crashed(Exception):
    """The member's process is gone in the middle of something."""


def digest_after(digest: bytes, entry: Entry) -> bytes:
    text = b"%d %d %d %s" % (entry.term, entry.index, entry.kind, bytes(entry.data))
    return blake2b(digest + text, digest_size=16).digest()


class ForgetfulDisk(MemoryStorage):
    """A disk that loses, on a crash, a commit index that nobody asked to be synced."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = HardState()
        self.checkpoint = Snapshot(0, 0, Configuration(), b"")

    def snapshot(self) -> Snapshot:
        return self.checkpoint

    def install(self, snapshot: Snapshot) -> None:
        super().install(snapshot)
        self.checkpoint = snapshot

    def initial_state(self) -> tuple[HardState, Configuration]:
        return self.hard_state, self.checkpoint.configuration


@dataclass
class Member:
    """One member; `node` is None while it is down."""

    id: int
    options: Options
    dice: Random
    observe_ready: Callable[["Member", Ready], None]
    observe_apply: Callable[["Member", Entry], None]
    disk: ForgetfulDisk = field(default_factory=ForgetfulDisk)
    node: RawNode | None = None
    digest: bytes = b""
    applied: int = 0
    configuration: Configuration = field(default_factory=Configuration)
    append_work: list[Message] = field(default_factory=list)
    apply_work: list[Message] = field(default_factory=list)
    # Chance of a crash at each point where one would matter.
    crash_rate: float = 0.0

    def start(self) -> None:
        """Come up from what the disk holds."""
        checkpoint = self.disk.checkpoint
        self.applied, self.configuration = checkpoint.index, checkpoint.configuration
        self.digest = bytes(checkpoint.data)
        self.node = RawNode(self.id, self.disk, self.options, self.dice, applied=self.applied)

    def crash(self) -> None:
        self.node = None
        self.append_work, self.apply_work = [], []
        if self.dice.random() < 0.5:
            # A commit index that was never synced is gone; term and vote always were.
            self.disk.hard_state = self.disk.synced

    def handle_ready(self) -> list[Message]:
        """Do what the next Ready asks for; returns the messages that leave this member."""
        node = self._running()
        ready = node.ready()
        if ready is None:
            return []
        self.observe_ready(self, ready)
        self._maybe_crash()
        if self.options.async_storage:
            return self._queue_storage_work(ready)
        self._persist(ready.hard_state, ready.entries, ready.snapshot)
        self._apply(ready.committed)
        self._maybe_crash()
        node.advance()
        node.validate()
        return list(ready.messages)

    def run_append_thread(self) -> list[Message]:
        work = self.append_work.pop(0)
        hard_state = HardState(work.term, work.vote, work.commit)
        told = hard_state if hard_state != HardState() else None
        self._persist(told, work.entries, work.snapshot)
        self._maybe_crash()
        return list(work.responses)

    def run_apply_thread(self) -> list[Message]:
        work = self.apply_work.pop(0)
        self._apply(work.entries)
        self._maybe_crash()
        return list(work.responses)

    def take_checkpoint(self, *, compact: bool) -> None:
        """Remember the applied state on disk, and perhaps drop the entries before it."""
        term = self.disk.term(self.applied)
        if self.node is None or term is None or self.applied <= self.disk.checkpoint.index:
            return
        self.disk.checkpoint = Snapshot(self.applied, term, self.configuration, self.digest)
        if compact:
            self.disk.compact(self.applied)

    def _running(self) -> RawNode:
        if self.node is None:
            raise Crashed(self.id)
        return self.node

    def _maybe_crash(self) -> None:
        if self.crash_rate and self.dice.random() < self.crash_rate:
            self.crash()
            raise Crashed(self.id)

    def _queue_storage_work(self, ready: Ready) -> list[Message]:
        leaving = []
        for message in ready.messages:
            if message.to > NOBODY:
                leaving.append(message)
            elif message.to == APPEND_THREAD:
                self.append_work.append(message)
            else:
                self.apply_work.append(message)
        return leaving

    def _persist(
        self,
        hard_state: HardState | None,
        entries: Sequence[Entry],
        snapshot: Snapshot | None,
    ) -> None:
        """Write in the order that a Ready demands, with a crash possible between any two writes."""
        disk = self.disk
        if hard_state:
            disk.hard_state = disk.synced = hard_state._replace(commit=disk.hard_state.commit)
            self._maybe_crash()
        if snapshot:
            self.disk.install(snapshot)
            self.applied, self.digest = snapshot.index, bytes(snapshot.data)
            self.configuration = snapshot.configuration
            self._maybe_crash()
        if entries:
            # A torn write keeps a prefix.
            if self.crash_rate and self.dice.random() < self.crash_rate:
                self.disk.append(entries[: self.dice.randrange(len(entries) + 1)])
                self.crash()
                raise Crashed(self.id)
            self.disk.append(entries)
            self._maybe_crash()
        if hard_state:
            disk.hard_state = hard_state
            if self.dice.random() < 0.3:
                disk.synced = hard_state
            self._maybe_crash()

    def _apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.index != self.applied + 1:
                raise AssertionError(f"member {self.id} applies {entry.index} after {self.applied}")
            if self.disk.term(entry.index) != entry.term:
                raise AssertionError(f"member {self.id} applies {entry}, which is not on its disk")
            if entry.kind is EntryKind.MEMBERSHIP:
                change = MembershipChange.decode(entry.data)
                self.configuration = self._running().apply_membership(change)
            self.digest = digest_after(self.digest, entry)
            self.applied = entry.index
            self.observe_apply(self, entry)
