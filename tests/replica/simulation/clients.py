"""Simulated clients: idempotent producers that retry, fenced ones among them, and a reader.

Clients know only the addresses of the cluster. A producer sends its batches in order, several at a
time. After an error or a timeout it sends all unacknowledged batches again, with the same sequence
numbers, perhaps to another node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Final, Protocol

from quivermq.batches import Frame, Origin, encode_batch
from quivermq.errors import Fenced, QuiverError
from quivermq.replica import Produced, ReadReady
from quivermq.testing import Violation
from quivermq.testing.virtual.story import Story
from quivermq.testing.virtual.virtual_time import VirtualTime
from tests.replica.simulation.auditor import Auditor
from tests.replica.simulation.network import Network
from tests.replica.simulation.node_clock import EPOCH_MS
from tests.replica.simulation.requests import ClientRequest, NodeReply, Produce, Read

TIMEOUT_MS: Final = 3_000
BACKOFF_MS: Final = 150
TOKENS_PER_CLIENT: Final = 1_000_000
VALUE_BYTES_MAX: Final = 400


class SimulatedClient(Protocol):
    """Sends requests to nodes and takes their replies."""

    address: int

    def take(self, sender: int, reply: NodeReply) -> None: ...


@dataclass(slots=True)
class ClientEnvironment:
    """The parts of the world that every client uses."""

    time: VirtualTime
    network: Network
    story: Story
    auditor: Auditor
    nodes: Callable[[], Sequence[int]]
    """The addresses of all nodes."""
    is_quiet: Callable[[], bool]
    """Whether clients send no new requests at present."""


@dataclass(slots=True, eq=False)
class UnackedBatch:
    """A batch that is not acknowledged yet."""

    frame: Frame
    made_at_ms: int


class SimulatedProducer:
    """One idempotent producer: an id, an epoch, and batches in order."""

    def __init__(
        self,
        address: int,
        environment: ClientEnvironment,
        dice: Random,
        producer_id: int,
        epoch: int,
    ) -> None:
        self.address = address
        self.producer_id = producer_id
        self.epoch = epoch
        self.is_stopped = False
        """Makes no more batches, but still retries those it made."""
        self.is_fenced = False
        self.acked_made_at_ms = -1
        """When the youngest acknowledged batch was made."""
        self._environment = environment
        self._dice = dice
        self._tokens = count(-address * TOKENS_PER_CLIENT)
        self._sequence = 0
        self._waiting: list[UnackedBatch] = []
        self._asked: dict[int, tuple[UnackedBatch, int]] = {}
        """By token, what was sent and in which round."""
        self._round = 0
        self._is_backing_off = False
        self._window = dice.choice((1, 2, 5, 8))
        self._pause_ms = dice.choice((40.0, 100.0, 300.0))
        self._target = dice.choice(environment.nodes())
        environment.auditor.newest_epoch.begin(producer_id, epoch)
        environment.time.after_ms(dice.uniform(0, 500), self._produce)

    @property
    def is_done(self) -> bool:
        return self.is_fenced or not self._waiting

    def _produce(self) -> None:
        """Make the next batch if the window allows, and come back later."""
        if self.is_stopped or self.is_fenced:
            return
        if len(self._waiting) < self._window and not self._environment.is_quiet():
            batch = self._next_batch()
            self._waiting.append(batch)
            if not self._is_backing_off:
                self._send(batch)
        self._environment.time.after_ms(self._dice.expovariate(1 / self._pause_ms), self._produce)

    def _next_batch(self) -> UnackedBatch:
        dice = self._dice
        values = [
            b"%d.%d.%d " % (self.producer_id, self.epoch, self._sequence + number)
            + b"." * dice.randrange(VALUE_BYTES_MAX)
            for number in range(dice.choice((1, 1, 2, 5)))
        ]
        priority = dice.choice((0, 0, 0, 3, 7))
        delay_ms = dice.choice((0, 0, 0, 0, 0, 10, 1_000, 4_000))
        not_before_ms = EPOCH_MS + self._environment.time.now_ms + delay_ms if delay_ms else 0
        origin = Origin(self.producer_id, self.epoch, self._sequence, priority, not_before_ms)
        self._sequence += len(values)
        frame = encode_batch(values, origin=origin)
        self._environment.auditor.note_produce(frame, values)
        return UnackedBatch(frame, self._environment.time.now_ms)

    def _send(self, batch: UnackedBatch) -> None:
        token = next(self._tokens)
        self._asked[token] = (batch, self._round)
        environment = self._environment
        environment.network.send(
            self.address, self._target, ClientRequest(token, Produce(batch.frame))
        )
        environment.time.after_ms(TIMEOUT_MS, lambda: self._time_out(token))

    def _time_out(self, token: int) -> None:
        # A reply that comes after all is still taken: the outcome was unknown, not lost.
        if token in self._asked:
            self._fail(self._asked[token][1], "timeout")

    def take(self, sender: int, reply: NodeReply) -> None:
        batch, sent_in = self._asked.pop(reply.token, (None, 0))
        if batch is None:
            return
        result = reply.result
        if isinstance(result, Produced):
            self._environment.auditor.note_ack(batch.frame, result)
            self.acked_made_at_ms = max(self.acked_made_at_ms, batch.made_at_ms)
            if batch in self._waiting:
                self._waiting.remove(batch)
        elif isinstance(result, Fenced):
            self._fence(sender, result)
        elif isinstance(result, QuiverError):
            self._environment.story.counts[f"refused {result.code}"] += 1
            self._fail(sent_in, result.code, getattr(result, "leader", 0))
        else:
            raise Violation(f"producer {self.producer_id} asked to store and got {result}")

    def _fence(self, sender: int, error: Fenced) -> None:
        self._environment.auditor.newest_epoch.fence(self.producer_id, self.epoch, str(error))
        self._environment.story.tell(f"producer {self.producer_id} is fenced by node {sender}")
        self.is_fenced = True

    def _fail(self, sent_in: int, why: str, leader: int = 0) -> None:
        """Begin the next round after a backoff, perhaps with another node."""
        if sent_in != self._round or self.is_fenced:
            return
        self._round += 1
        self._is_backing_off = True
        self._environment.story.trace(f"producer {self.address} retries: {why}")
        nodes = self._environment.nodes()
        # Now and then not to the leader it was told of: a retry elsewhere must be as good.
        follows = leader in nodes and self._dice.random() < 0.9
        self._target = leader if follows else self._dice.choice(nodes)
        self._environment.time.after_ms(self._dice.uniform(0, 2 * BACKOFF_MS), self._resend)

    def _resend(self) -> None:
        self._is_backing_off = False
        for batch in list(self._waiting):
            self._send(batch)


class SimulatedReader:
    """Reads the end of the log now and then."""

    def __init__(self, address: int, environment: ClientEnvironment, dice: Random) -> None:
        self.address = address
        self.is_stopped = False
        self._environment = environment
        self._dice = dice
        self._tokens = count(-address * TOKENS_PER_CLIENT)
        self._asked: dict[int, int] = {}
        """By token, the end that was known when the read began."""
        environment.time.after_ms(dice.uniform(0, 500), self._read)

    def _read(self) -> None:
        if self.is_stopped:
            return
        if not self._environment.is_quiet():
            token = next(self._tokens)
            self._asked[token] = self._environment.auditor.fresh_reads.end
            target = self._dice.choice(self._environment.nodes())
            self._environment.network.send(self.address, target, ClientRequest(token, Read()))
        self._environment.time.after_ms(self._dice.uniform(50, 500), self._read)

    def take(self, sender: int, reply: NodeReply) -> None:
        self._environment.story.trace(f"node {sender} answers the reader")
        known = self._asked.pop(reply.token, None)
        if known is not None and isinstance(reply.result, ReadReady):
            self._environment.auditor.note_read(known, reply.result)
