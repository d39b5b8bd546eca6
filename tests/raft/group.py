"""A small group for tests of single rules: no faults but those the test makes.

Messages move only when the test says so, and every step is validated.
"""

from collections.abc import Callable
from random import Random

from quivermq.raft import (
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipChange,
    Message,
    MessageKind,
    Options,
    RawNode,
    ReadState,
    Role,
    Snapshot,
    Transition,
    parse_changes,
)
from quivermq.testing.memory_storage import MemoryStorage

CALM = Options(prevote=False, check_quorum=False)
"""Plain Raft, so that a test of one rule is not about two others."""


def storage_with(
    *terms: int,
    voters: tuple[int, ...] = (1, 2, 3),
    term: int | None = None,
    vote: int = 0,
    commit: int = 0,
) -> MemoryStorage:
    """A disk whose log has entries of these terms from index 1 on."""
    storage = MemoryStorage(Configuration(voters))
    entries = [Entry(at, index, data=b"e%d" % index) for index, at in enumerate(terms, 1)]
    storage.append(entries)
    current = term if term is not None else max(terms, default=0)
    storage.hard_state = HardState(current, vote, commit)
    return storage


def node_with(
    *terms: int,
    member: int = 1,
    options: Options = CALM,
    voters: tuple[int, ...] = (1, 2, 3),
    term: int | None = None,
    vote: int = 0,
    commit: int = 0,
    applied: int = 0,
) -> RawNode:
    storage = storage_with(*terms, voters=voters, term=term, vote=vote, commit=commit)
    return RawNode(member, storage, options, Random(member), applied=applied)


def settle(node: RawNode) -> list[Message]:
    """Do what the node's Readys ask for; returns all messages that left it."""
    sent: list[Message] = []
    while (ready := node.ready()) is not None:
        storage = node.replica.log.storage
        assert isinstance(storage, MemoryStorage)
        if ready.hard_state:
            storage.hard_state = ready.hard_state
        if ready.snapshot:
            storage.install(ready.snapshot)
        storage.append(ready.entries)
        for entry in ready.committed:
            if entry.kind is EntryKind.MEMBERSHIP:
                node.apply_membership(MembershipChange.decode(entry.data))
        sent += ready.messages
        node.advance()
        node.validate()
    return sent


def of_kind(messages: list[Message], kind: MessageKind) -> list[Message]:
    return [message for message in messages if message.kind is kind]


def step(node: RawNode, message: Message) -> list[Message]:
    """Step a message and return what the node says to it."""
    node.step(message)
    node.validate()
    return settle(node)


def elected(node: RawNode, *voters: int) -> RawNode:
    """Make a leader of `node` with the votes of `voters`; its first appends are not answered."""
    node.campaign()
    settle(node)
    for voter in voters:
        step(node, Message(MessageKind.VOTE_REPLY, node.id, voter, node.replica.term))
    assert node.replica.role is Role.LEADER
    return node


def acked(node: RawNode, member: int, index: int) -> list[Message]:
    """Let `member` acknowledge everything up to `index`."""
    return step(
        node, Message(MessageKind.APPEND_REPLY, node.id, member, node.replica.term, index=index)
    )


def change(text: str, transition: Transition = Transition.AUTO) -> MembershipChange:
    return MembershipChange(parse_changes(text), transition)


class Group:
    """Members of one group, founded by a snapshot at index 1; each remembers what it applied."""

    def __init__(
        self,
        count: int = 3,
        *,
        options: Options = CALM,
        configuration: Configuration | None = None,
        spare: int = 0,
    ) -> None:
        self.options = options
        start = configuration or Configuration(tuple(range(1, count + 1)))
        self.storages: dict[int, MemoryStorage] = {}
        self.nodes: dict[int, RawNode] = {}
        self.applied: dict[int, list[Entry]] = {}
        self.reads: dict[int, list[ReadState]] = {}
        self.network: list[Message] = []
        self.cut_off: set[int] = set()
        self.lose: Callable[[Message], bool] = lambda _: False
        for member in range(1, count + spare + 1):
            self.storages[member] = MemoryStorage()
            if member in start.members:
                self.storages[member].install(Snapshot(1, 1, start))
            self.restart(member)

    def restart(self, member: int) -> None:
        """Start from what is on disk, applying from the last snapshot on."""
        storage = self.storages[member]
        applied = storage.base_index
        self.applied[member] = []
        self.reads[member] = []
        self.nodes[member] = RawNode(member, storage, self.options, Random(member), applied=applied)

    def work(self, member: int) -> None:
        """Handle all Readys of one member; its messages go out."""
        node, storage = self.nodes[member], self.storages[member]
        while (ready := node.ready()) is not None:
            if ready.hard_state:
                storage.hard_state = ready.hard_state
            if ready.snapshot:
                storage.install(ready.snapshot)
            storage.append(ready.entries)
            for entry in ready.committed:
                if entry.kind is EntryKind.MEMBERSHIP:
                    decoded = MembershipChange.decode(entry.data)
                    storage.configuration = node.apply_membership(decoded)
            self.applied[member] += ready.committed
            self.reads[member] += ready.read_states
            self.network += ready.messages
            node.advance()
            node.validate()

    def pump(self) -> None:
        """Let everyone work and everything arrive, until nothing is left to do."""
        while True:
            for member in self.nodes:
                self.work(member)
            if not self.network:
                return
            taken, self.network = self.network, []
            for message in taken:
                if not self._is_lost(message):
                    node = self.nodes[message.to]
                    if message.sender in node.replica.progress or message.kind in (
                        MessageKind.APPEND,
                        MessageKind.HEARTBEAT,
                        MessageKind.SNAPSHOT,
                        MessageKind.VOTE,
                        MessageKind.PREVOTE,
                    ):
                        node.step(message)
                        node.validate()

    def elect(self, member: int) -> RawNode:
        self.nodes[member].campaign()
        self.pump()
        assert self.nodes[member].replica.role is Role.LEADER
        return self.nodes[member]

    def propose(self, member: int, *payloads: bytes) -> None:
        self.nodes[member].propose(*payloads)
        self.pump()

    def tick(self, member: int, count: int = 1) -> None:
        for _ in range(count):
            self.nodes[member].tick()
            self.pump()

    def payloads(self, member: int) -> list[bytes]:
        """What the member applied, without empty entries and membership."""
        return [
            bytes(entry.data)
            for entry in self.applied[member]
            if entry.kind is EntryKind.NORMAL and len(entry.data)
        ]

    def compact(self, member: int) -> Snapshot:
        """Replace everything that the member applied by a snapshot."""
        replica = self.nodes[member].replica
        storage = self.storages[member]
        index = replica.log.applied
        term = storage.term(index)
        assert term is not None
        storage.snapshot_taken = Snapshot(index, term, replica.configuration, b"state")
        storage.compact(index)
        return storage.snapshot_taken

    def _is_lost(self, message: Message) -> bool:
        crossing = (message.sender in self.cut_off) != (message.to in self.cut_off)
        return crossing or message.to not in self.nodes or self.lose(message)
