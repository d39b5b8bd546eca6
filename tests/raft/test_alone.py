"""A leader without company: the short way leads where the long way does."""

from random import Random

import pytest

from quivermq.errors import Overloaded
from quivermq.raft import (
    Configuration,
    Entry,
    HardState,
    Message,
    MessageKind,
    Options,
    RawNode,
    Ready,
    Role,
    parse_changes,
)
from quivermq.raft.membership import MembershipChange
from quivermq.testing.memory_storage import MemoryStorage

OPTIONS = Options(async_storage=True, prevote=False, check_quorum=False)


class Lonely:
    """The only member of a group, with a disk that writes when the test says so."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.storage = MemoryStorage(Configuration(voters=(1,)))
        self.node = RawNode(1, self.storage, options, Random(1))
        self.applied: list[object] = []
        self.writes: list[Message] = []

    def settle(self) -> None:
        """The long way, to its end."""
        while (ready := self.node.ready()) is not None:
            self.carry(ready)
            self.node.validate()

    def carry(self, ready: Ready) -> None:
        for message in ready.messages:
            if message.kind is MessageKind.STORE:
                self.write(message)
                for response in message.responses:
                    self.node.step(response)
            elif message.kind is MessageKind.APPLY:
                self.applied += [entry.data for entry in message.entries]
                for response in message.responses:
                    self.node.step(response)

    def write(self, message: Message) -> None:
        if message.entries:
            self.storage.append(list(message.entries))
        if message.term:
            self.storage.hard_state = HardState(message.term, message.vote, message.commit)

    def lead(self) -> "Lonely":
        self.node.campaign()
        self.settle()
        assert self.node.replica.role is Role.LEADER
        self.applied.clear()
        return self

    def append(self, *payloads: bytes) -> None:
        self.writes.append(self.node.append_alone(payloads))
        self.node.validate()

    def stored(self) -> None:
        """The oldest write of the short way is done."""
        write = self.writes.pop(0)
        self.write(write)
        self.applied += [entry.data for entry in self.node.stored_alone(write)]
        self.node.validate()


def test_the_short_way_ends_where_the_long_way_does() -> None:
    short, long = Lonely().lead(), Lonely().lead()
    assert short.node.is_alone
    short.append(b"a", b"b")
    short.stored()
    long.node.propose(b"a", b"b")
    long.settle()
    assert short.applied == long.applied == [b"a", b"b"]
    assert short.node.ready() is None
    assert short.node.status() == long.node.status()
    assert short.node.replica.uncommitted_bytes == long.node.replica.uncommitted_bytes == 0


def test_nothing_is_committed_before_it_is_durable() -> None:
    lonely = Lonely().lead()
    committed = lonely.node.replica.log.committed
    lonely.append(b"a")
    lonely.settle()
    assert lonely.node.replica.log.committed == committed
    assert lonely.applied == []
    lonely.stored()
    assert lonely.node.replica.log.committed == committed + 1
    assert lonely.applied == [b"a"]


def test_writes_of_both_ways_are_applied_in_their_order() -> None:
    lonely = Lonely().lead()
    lonely.append(b"a")
    lonely.append(b"b")
    lonely.stored()
    lonely.stored()
    lonely.node.propose(b"c")
    assert not lonely.node.is_alone
    lonely.settle()
    assert lonely.node.is_alone
    lonely.append(b"d")
    lonely.stored()
    assert lonely.applied == [b"a", b"b", b"c", b"d"]


def test_a_group_that_got_company_meanwhile_counts_votes() -> None:
    lonely = Lonely().lead()
    change = MembershipChange(tuple(parse_changes("v2")))
    lonely.append(b"a")
    lonely.node.apply_membership(change)
    assert not lonely.node.is_alone
    lonely.stored()
    lonely.settle()
    assert lonely.applied == []
    assert lonely.node.replica.log.committed < lonely.node.replica.log.last_index
    # The word of the disk counts as its own vote; the other member's makes it two.
    last = lonely.node.replica.log.last_index
    lonely.node.step(Message(MessageKind.APPEND_REPLY, 1, 2, lonely.node.replica.term, index=last))
    lonely.settle()
    assert lonely.applied == [b"a"]


def test_a_write_of_a_term_that_is_over_commits_nothing() -> None:
    lonely = Lonely().lead()
    committed = lonely.node.replica.log.committed
    lonely.append(b"a")
    term = lonely.node.replica.term + 1
    lonely.node.step(Message(MessageKind.HEARTBEAT, 1, 2, term))
    assert lonely.node.replica.role is Role.FOLLOWER
    lonely.stored()
    assert lonely.node.replica.log.committed == committed
    assert lonely.applied == []


def test_a_follower_or_a_member_with_others_is_not_alone() -> None:
    assert not Lonely().node.is_alone
    pair = MemoryStorage(Configuration(voters=(1, 2)))
    assert not RawNode(1, pair, OPTIONS, Random(1)).is_alone
    learner = Lonely().lead()
    learner.node.apply_membership(MembershipChange(tuple(parse_changes("l2"))))
    assert not learner.node.is_alone


def test_too_much_that_waits_is_refused_on_the_short_way_too() -> None:
    lonely = Lonely(Options(async_storage=True, uncommitted_bytes_max=20)).lead()
    lonely.append(b"0123456789")
    with pytest.raises(Overloaded):
        lonely.append(b"0123456789")
    lonely.stored()
    lonely.append(b"0123456789")
    lonely.stored()
    assert len(lonely.applied) == 2


def test_what_is_written_and_applied_in_one_step_leaves_the_core_as_the_short_way_does() -> None:
    stepwise, at_once = Lonely().lead(), Lonely().lead()
    for payloads in ((b"a",), (b"b", b"c")):
        stepwise.append(*payloads)
        stepwise.stored()
        assert at_once.node.is_alone_and_idle
        first = at_once.node.replica.log.last_index + 1
        term = at_once.node.replica.term
        entries = [Entry(term, first + number, data=data) for number, data in enumerate(payloads)]
        at_once.storage.append(entries)
        at_once.node.wrote_alone(entries[-1].index)
        at_once.node.validate()
    assert described(at_once.node) == described(stepwise.node)
    assert at_once.node.ready() is None
    # The other ways go on behind it.
    for lonely in (at_once, stepwise):
        lonely.append(b"d")
        lonely.stored()
        lonely.node.propose(b"e")
        lonely.settle()
    assert described(at_once.node) == described(stepwise.node)
    assert at_once.applied[-2:] == [b"d", b"e"]


def described(node: RawNode) -> tuple[object, ...]:
    log = node.replica.log
    progress = node.replica.progress[node.replica.id]
    return (
        log.committed, log.applied, log.applying, log.last_index, log.last_term, log.tail_start,
        log.tail, progress.match, progress.next, node.replica.hard_state, node.has_ready,
    )  # fmt: skip


def test_while_anything_is_under_way_it_is_not_idle() -> None:
    lonely = Lonely().lead()
    lonely.append(b"a")
    assert not lonely.node.is_alone_and_idle
    lonely.stored()
    assert lonely.node.is_alone_and_idle
    lonely.node.propose(b"b")
    assert not lonely.node.is_alone_and_idle
    lonely.settle()
    assert lonely.node.is_alone_and_idle
