"""Simulated consumers of shared groups, which die, stall and fail.

Each polls the node that it believes to lead, works for a while, and settles the messages. It
repeats a settlement until that is answered, a limited number of times.
"""

from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final

from quivermq.errors import QuiverError
from quivermq.queue import GrantedLease
from tests.replica.simulation.clients import TIMEOUT_MS, TOKENS_PER_CLIENT, ClientEnvironment
from tests.replica.simulation.lease_checkers import offsets_of
from tests.replica.simulation.requests import (
    ClientRequest,
    NodeReply,
    Poll,
    PollReply,
    Settle,
    SettleReply,
    Verb,
)

GROUPS: Final = ("alpha", "beta")
POISON: Final = 17
"""F30: one message in so many makes its consumer fail."""
PATIENCE: Final = 6
"""Attempts at an acknowledgement."""


@dataclass(frozen=True, slots=True)
class Habits:
    """How a consumer behaves."""

    wanted: int
    visibility_ms: int
    work_ms: float
    pause_ms: float
    auto_ack: bool
    vanishes: float
    """How often it dies with its leases (F28)."""
    stalls: float
    """How often it is paused past its lease, and goes on without noticing (F28)."""
    fails: float

    @classmethod
    def draw(cls, dice: Random) -> "Habits":
        return cls(
            dice.choice((1, 3, 20)),
            dice.choice((300, 1_000, 3_000)),
            dice.choice((1.0, 50.0, 400.0)),
            dice.choice((50.0, 200.0)),
            dice.random() < 0.15,
            dice.choice((0.0, 0.1, 0.4)),
            dice.choice((0.0, 0.1, 0.3)),
            dice.choice((0.0, 0.2)),
        )


class SimulatedConsumer:
    """One consumer of a shared group."""

    def __init__(
        self, address: int, environment: ClientEnvironment, dice: Random, group: str
    ) -> None:
        self.address = address
        self.group = group
        self.is_stopped = False
        self.is_sweeping = False
        """Polls for more, works at once, and fails at nothing but poison."""
        self._environment = environment
        self._dice = dice
        self._habits = Habits.draw(dice)
        self._tokens = count(-address * TOKENS_PER_CLIENT)
        self._polling = 0
        """The token of the poll that is under way."""
        self._said: dict[int, tuple[Settle, int]] = {}
        """By token, the settlement and the attempts left."""
        self._target = dice.choice(environment.nodes())
        environment.time.after_ms(dice.uniform(0, 1_000), self._poll)

    def _poll(self) -> None:
        """Poll unless a poll is under way, and come back later."""
        if self.is_stopped:
            return
        environment, habits = self._environment, self._habits
        if not self._polling and not environment.is_quiet():
            token = self._polling = next(self._tokens)
            poll = Poll(
                self.group,
                -self.address,
                habits.wanted * (5 if self.is_sweeping else 1),
                habits.visibility_ms,
                habits.auto_ack,
                environment.time.now_us,
            )
            environment.network.send(self.address, self._target, ClientRequest(token, poll))
            environment.time.after_ms(TIMEOUT_MS, lambda: self._miss(token))
        pause_ms = 20.0 if self.is_sweeping else habits.pause_ms
        environment.time.after_ms(self._dice.expovariate(1 / pause_ms), self._poll)

    def _miss(self, token: int) -> None:
        """A request timed out."""
        if token == self._polling:
            self._polling = 0
            self._look_elsewhere(0)
        elif token in self._said:
            self._look_elsewhere(0)
            self._say_again(token)

    def _look_elsewhere(self, leader: int) -> None:
        nodes = self._environment.nodes()
        follows = leader in nodes and self._dice.random() < 0.9
        self._target = leader if follows else self._dice.choice(nodes)

    def take(self, sender: int, reply: NodeReply) -> None:
        self._environment.story.trace(f"node {sender} answers consumer {self.address}")
        result = reply.result
        if isinstance(result, QuiverError):
            self._environment.story.counts[f"refused {result.code}"] += 1
            self._look_elsewhere(getattr(result, "leader", 0))
        if reply.token == self._polling:
            self._polling = 0
            if isinstance(result, PollReply) and result.leased is not None:
                self._receive(result.leased)
        elif reply.token in self._said and isinstance(result, SettleReply):
            del self._said[reply.token]
        elif reply.token in self._said:
            self._say_again(reply.token)

    def _receive(self, leased: GrantedLease) -> None:
        """Work on messages, unless they were acknowledged in advance."""
        self._environment.story.counts["deliveries"] += 1
        dice, habits = self._dice, self._habits
        if not leased.lease:
            return
        if not self.is_sweeping:
            if dice.random() < habits.vanishes:
                self._environment.story.counts["consumers gone"] += 1
                return
            if dice.random() < 0.2:
                self._say(Verb.EXTEND, leased, offsets_of(leased.pieces), habits.visibility_ms)
        late = not self.is_sweeping and dice.random() < habits.stalls
        work_ms = 1.5 * habits.visibility_ms if late else habits.work_ms
        self._environment.time.after_ms(dice.uniform(0, 2 * work_ms), lambda: self._finish(leased))

    def _finish(self, leased: GrantedLease) -> None:
        """Settle the messages of a lease."""
        dice = self._dice
        offsets = offsets_of(leased.pieces)
        poison = [offset for offset in offsets if offset % POISON == POISON // 2]
        good = [offset for offset in offsets if offset % POISON != POISON // 2]
        if poison:
            self._say(Verb.FAIL, leased, poison, None)
        if not self.is_sweeping and dice.random() < self._habits.fails:
            cut = dice.randint(0, len(good))
            verb = dice.choice((Verb.FAIL, Verb.FAIL, Verb.RELEASE, Verb.REJECT))
            self._say(verb, leased, good[cut:], dice.choice((None, 0, 500)))
            good = good[:cut]
        self._say(Verb.ACK, leased, good)

    def _say(
        self, verb: Verb, leased: GrantedLease, offsets: list[int], delay_ms: int | None = None
    ) -> None:
        if not offsets:
            return
        if verb is Verb.ACK:
            self._environment.auditor.note_attempt(self.group, [(at, at + 1) for at in offsets])
        intervals = tuple((at, at + 1) for at in offsets)
        said = Settle(verb, self.group, leased.lease, intervals, delay_ms, -self.address)
        self._send(said, PATIENCE if verb is Verb.ACK else 1)

    def _send(self, said: Settle, patience: int) -> None:
        token = next(self._tokens)
        self._said[token] = (said, patience)
        self._environment.network.send(self.address, self._target, ClientRequest(token, said))
        self._environment.time.after_ms(TIMEOUT_MS, lambda: self._miss(token))

    def _say_again(self, token: int) -> None:
        """Repeat a settlement that was refused or not answered: it may have happened, or not."""
        said, patience = self._said.pop(token)
        if patience > 1 and not self.is_stopped:
            wait_ms = self._dice.uniform(20, 400)
            self._environment.time.after_ms(wait_ms, lambda: self._send(said, patience - 1))
