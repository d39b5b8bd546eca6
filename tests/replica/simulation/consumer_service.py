"""Serves the consumers of a simulated node, as a broker does for a leading replica.

A poll is answered once a quorum has confirmed that the node still leads; settlements are answered
once they are committed. An alarm ends leases, and a new leader looks at its leases once by itself.
Dead letters are moved while there are any, to a simulated topic.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from quivermq.errors import Fenced, NotEnoughReplicas, OutOfSequence, QuiverError, Timeout
from quivermq.queue import DyingMessages, GrantedLease, LeaseManager, LeaseRequest
from quivermq.replica import Changed, ReadReady, Result, Token
from quivermq.testing import Violation
from tests.replica.simulation.requests import (
    Consuming,
    Poll,
    PollReply,
    Settle,
    SettleReply,
    Verb,
)

if TYPE_CHECKING:
    from tests.replica.simulation.host import Host

T = TypeVar("T")

STEADY_APART_MS: Final = 1_000_000
FORGOTTEN_LETTERS: Final = 0.2
"""How often the node forgets, after dead letters are stored, to note it."""
LOST_ANSWERS: Final = 0.1
"""The share of answers of the dead-letter topic that are lost."""


@dataclass(slots=True)
class ConsumerService:
    """The consumers' requests to one process: gone when it dies."""

    host: "Host"
    polls: dict[Token, Poll] = field(default_factory=dict)
    """Polls that wait for the confirmation of a quorum."""
    waiting: dict[Token, tuple[Consuming, PollReply | SettleReply]] = field(default_factory=dict)
    """Answers that wait until their request is committed."""
    term: int = 0
    """The last term in which this node looked at its leases."""
    alarm_ms: int | None = None
    """When to look again, by the steady clock."""
    carrying: bool = False
    """Whether there may be dead letters to move."""

    @property
    def steady_ms(self) -> int:
        # Every node counts from another moment: one that believed another's times would show.
        return self.host.environment.time.now_ms + self.host.member * STEADY_APART_MS

    def ask(self, token: Token, request: Consuming) -> PollReply | QuiverError | None:
        """Take a consumer's request; None if the answer comes later."""
        if isinstance(request, Poll):
            self.polls[token] = request
            self.host.replica.read(token)
            return None
        try:
            lost = self._with_leases(lambda leases: self._settle(leases, request), token)
        except QuiverError as error:
            return error
        self.waiting[token] = (request, SettleReply(tuple(lost)))
        return None

    def _with_leases(self, act: Callable[[LeaseManager], T], token: Token | None = None) -> T:
        """Change the leases, and note when to look at them again."""
        host = self.host

        def act_and_look(leases: LeaseManager) -> T:
            result = act(leases)
            wait_ms = leases.alarm_ms(host.clock.now_ms, self.steady_ms)
            self.alarm_ms = None if wait_ms is None else self.steady_ms + wait_ms
            self.carrying = any(
                group.dying for group in leases.working_copy.groups.by_name.values()
            )
            return result

        return host.replica.with_leases(act_and_look, token, host.clock.now_ms, self.steady_ms)

    def _settle(self, leases: LeaseManager, said: Settle) -> list[tuple[int, int]]:
        group, lease, intervals = said.group, said.lease, list(said.intervals)
        now_ms, consumer = self.host.clock.now_ms, said.consumer
        if not leases.working_copy.has_group(group):
            return intervals
        if said.verb is Verb.ACK:
            return leases.acknowledge(group, lease, intervals, consumer)
        if said.verb is Verb.FAIL:
            return leases.fail(group, lease, intervals, said.delay_ms, now_ms, consumer)
        if said.verb is Verb.REJECT:
            return leases.reject(group, lease, intervals, "it is bad", now_ms, consumer)
        if said.verb is Verb.RELEASE:
            return leases.release(group, lease, intervals, consumer)
        is_held = leases.extend(group, lease, said.delay_ms or 1, self.steady_ms, consumer)
        return [] if is_held else intervals

    def translate(self, token: Token, result: Result) -> Result | PollReply | SettleReply | None:
        """Turn a replica's answer into the client's; None if that comes later."""
        poll = self.polls.pop(token, None)
        if poll is not None:
            return self._grant(token, poll) if isinstance(result, ReadReady) else result
        request, answer = self.waiting.pop(token, (None, None))
        if answer is None or not isinstance(result, Changed):
            return result
        auditor = self.host.environment.auditor
        if isinstance(request, Settle) and isinstance(answer, SettleReply):
            auditor.note_settlement(request, answer)
        elif isinstance(request, Poll) and isinstance(answer, PollReply) and answer.leased:
            auditor.note_grant(self.host, request, answer.leased)
        return answer

    def _grant(self, token: Token, poll: Poll) -> PollReply | QuiverError | None:
        """Lease messages at once, or, if acknowledged in advance, once that is committed."""
        host = self.host
        ask = LeaseRequest(
            poll.group, poll.consumer, poll.messages_max, poll.visibility_ms, poll.auto_ack
        )

        def lease(leases: LeaseManager) -> GrantedLease | None:
            leases.working_copy.open_group(poll.group, 0)
            return leases.lease(ask, host.replica.edge.next_offset, host.clock.now_ms, steady_ms)

        steady_ms = self.steady_ms
        try:
            leased = self._with_leases(lease, token if poll.auto_ack else None)
        except QuiverError as error:
            return error
        if not poll.auto_ack:
            if leased is not None:
                host.environment.auditor.note_grant(host, poll, leased)
            return PollReply(leased)
        if leased is not None:
            host.environment.auditor.note_attempt(poll.group, leased.pieces)
        self.waiting[token] = (poll, PollReply(leased))
        return None

    def tick(self) -> None:
        """Look at the leases if there is a reason: a sleeping replica is not woken for nothing."""
        replica = self.host.replica
        if not replica.is_serving:
            self.alarm_ms, self.carrying = None, False
            return
        is_due = self.alarm_ms is not None and self.steady_ms >= self.alarm_ms
        if not (is_due or self.carrying or self.term != replica.term):
            return
        try:
            self._with_leases(lambda leases: leases.expire(self.host.clock.now_ms, self.steady_ms))
            self.term = replica.term
            if self.carrying:
                self._carry()
        except QuiverError:
            # It has no room, or does not lead any more: the next tick knows.
            return

    def _carry(self) -> None:
        """Store the next dead letters, and note that they are stored."""
        for group, record in self._with_leases(lambda leases: leases.dead_letters.dying()):
            if not self._with_leases(partial(self._carry_record, group, record)):
                return

    def _carry_record(self, group: str, record: DyingMessages, leases: LeaseManager) -> bool:
        """False: try again later."""
        topic = self.host.environment.dead_letters
        offsets = range(record.start, record.end)
        try:
            topic.store(group, leases.dead_letters.dead_epoch(group), record.number, offsets)
        except OutOfSequence:
            leases.dead_letters.restart_numbers(group)
            return False
        except QuiverError:
            # It is unavailable, or another leader has begun the next epoch.
            return False
        if self.host.dice.random() < FORGOTTEN_LETTERS:
            return False
        leases.dead_letters.bury(group, record.number)
        return True


class DeadLetterTopic:
    """The dead letters of all groups: another topic, as the simulated one sees it.

    It keeps the rules of an idempotent producer. Now and then it cannot be reached, and an answer
    may be lost though the letters are stored.
    """

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.is_available = True
        self.letters: dict[str, list[int]] = {}
        """By group, the offsets of the messages."""
        self._producers: dict[str, tuple[int, list[int]]] = {}
        """By group, the epoch and what is stored in it, by number."""

    def store(self, group: str, epoch: int, number: int, offsets: Sequence[int]) -> None:
        """Store letters that are not here yet; raises what a broker would answer."""
        if not self.is_available:
            raise NotEnoughReplicas("the dead-letter topic has no leader")
        known_epoch, stored = self._producers.get(group, (epoch, []))
        if epoch < known_epoch:
            raise Fenced(f"epoch {known_epoch} of {group} is known, this is {epoch}")
        if epoch > known_epoch:
            stored = []
        if number > len(stored):
            raise OutOfSequence(f"{len(stored)} comes next", expected=len(stored))
        self._producers[group] = (epoch, stored)
        for position, offset in enumerate(offsets, number):
            if position == len(stored):
                self._add(group, offset)
                stored.append(offset)
            elif stored[position] != offset:
                raise Violation(
                    f"dead letter {position} of {group} is message {stored[position]}, so that "
                    f"message {offset} is taken for a repeat"
                )
        if self._dice.random() < LOST_ANSWERS:
            raise Timeout("no answer came")

    def _add(self, group: str, offset: int) -> None:
        letters = self.letters.setdefault(group, [])
        if offset in letters:
            raise Violation(f"message {offset} of {group} is a dead letter twice")
        letters.append(offset)
