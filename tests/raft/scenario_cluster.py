"""The small cluster that scenario files drive: members, their disks, and one ordered network."""

from dataclasses import dataclass, field

from quivermq.raft import (
    APPEND_THREAD,
    NOBODY,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    Options,
    RawNode,
    Snapshot,
    UnknownPeer,
)
from quivermq.testing.memory_storage import MemoryStorage
from quivermq.testing.raft_text import entry_text, message_text, ready_text


class LongestTimeout:
    """Dice that keep everyone from campaigning on their own for as long as possible."""

    def randrange(self, stop: int, /) -> int:
        return stop - 1


class AppliedStorage(MemoryStorage):
    """A disk whose snapshot is always of the latest applied state; payloads are appended to it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Snapshot(0, 0, Configuration())

    def snapshot(self) -> Snapshot:
        return self.state

    def install(self, snapshot: Snapshot) -> None:
        super().install(snapshot)
        self.state = snapshot

    def apply(self, entry: Entry, configuration: Configuration | None) -> None:
        data = bytes(self.state.data)
        if entry.kind is EntryKind.NORMAL:
            data += bytes(entry.data)
        self.configuration = configuration or self.state.configuration
        self.state = Snapshot(entry.index, entry.term, self.configuration, data)


@dataclass
class Member:
    """One member: its node unless it is down, its disk, and the work of its storage threads."""

    node: RawNode
    storage: AppliedStorage
    options: Options
    is_up: bool = True
    append_work: list[Message] = field(default_factory=list)
    apply_work: list[Message] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.node.id

    def persist(
        self, hard_state: HardState | None, entries: list[Entry], snapshot: Snapshot | None
    ) -> None:
        if hard_state:
            self.storage.hard_state = hard_state
        if snapshot:
            self.storage.install(snapshot)
        self.storage.append(entries)

    def apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            configuration = None
            if entry.kind is EntryKind.MEMBERSHIP:
                change = MembershipChange.decode(entry.data)
                configuration = self.node.apply_membership(change)
            self.storage.apply(entry, configuration)


class Cluster:
    """Members by id, messages in flight, and who cannot hear whom."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.network: list[Message] = []
        self.cut_off: frozenset[int] = frozenset()

    def add(self, options: Options, start: Snapshot | None) -> None:
        storage = AppliedStorage()
        if start:
            storage.install(start)
        member = len(self.members) + 1
        applied = start.index if start else 0
        node = RawNode(member, storage, options, LongestTimeout(), applied=applied)
        self.members[member] = Member(node, storage, options)

    def crash(self, member: int) -> None:
        """Lose everything that was not on disk, messages in flight excepted."""
        down = self.members[member]
        down.is_up = False
        down.append_work, down.apply_work = [], []

    def restart(self, member: int) -> None:
        back = self.members[member]
        applied = back.storage.state.index
        back.node = RawNode(member, back.storage, back.options, LongestTimeout(), applied=applied)
        back.is_up = True

    def live(self, ids: list[int]) -> list[Member]:
        chosen = [self.members[member] for member in ids] if ids else [*self.members.values()]
        return [member for member in chosen if member.is_up]

    def handle_ready(self, member: Member) -> str:
        node = member.node
        ready = node.ready()
        text = ready_text(ready)
        if ready is None:
            return text
        if not member.options.async_storage:
            member.persist(ready.hard_state, ready.entries, ready.snapshot)
            member.apply(ready.committed)
        for message in ready.messages:
            if message.to > NOBODY:
                self.network.append(message)
            elif message.to == APPEND_THREAD:
                member.append_work.append(message)
            else:
                member.apply_work.append(message)
        if not member.options.async_storage:
            node.advance()
        node.validate()
        return text

    def run_append_thread(self, member: Member) -> str:
        if not member.append_work:
            return "no append work to perform"
        work = member.append_work.pop(0)
        hard_state = HardState(work.term, work.vote, work.commit)
        changed = hard_state != HardState()
        member.persist(hard_state if changed else None, work.entries, work.snapshot)
        return self._worked(work)

    def run_apply_thread(self, member: Member) -> str:
        if not member.apply_work:
            return "no apply work to perform"
        work = member.apply_work.pop(0)
        member.apply(work.entries)
        return self._worked(work)

    def mail(
        self, member: int, kind: MessageKind | None = None, *, drop: bool = False
    ) -> list[Message]:
        """Messages in flight to `member`; what it says to itself cannot be lost."""
        return [
            message
            for message in self.network
            if message.to == member
            and (kind is None or message.kind is kind)
            and not (drop and message.sender in (member, *range(-2, 1)))
        ]

    def deliver(
        self, member: int, kind: MessageKind | None = None, *, drop: bool = False
    ) -> list[str]:
        lines = []
        taken = self.mail(member, kind, drop=drop)
        identities = {id(message) for message in taken}
        self.network = [message for message in self.network if id(message) not in identities]
        for message in taken:
            text = message_text(message)
            if drop or self._is_lost(message):
                lines.append(f"dropped: {text}")
                continue
            lines.append(text)
            node = self.members[member].node
            try:
                node.step(message)
            except UnknownPeer:
                lines.append("raft: cannot step as peer not found")
            node.validate()
        return lines

    def log_text(self, member: Member) -> str:
        storage = member.storage
        first, last = storage.first_index(), storage.last_index()
        if last < first:
            return f"log is empty: first index={first}, last index={last}"
        return "\n".join(map(entry_text, storage.kept))

    def _is_lost(self, message: Message) -> bool:
        ends = [message.sender, message.to]
        crosses = sum(1 for end in ends if end in self.cut_off) == 1 and min(ends) > NOBODY
        return crosses or not self.members[message.to].is_up

    def _worked(self, work: Message) -> str:
        self.network += work.responses
        lines = ["Processing:", message_text(work._replace(responses=())), "Responses:"]
        return "\n".join([*lines, *map(message_text, work.responses)])
