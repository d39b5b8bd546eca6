"""The messages between the clients and nodes of a simulation."""

from dataclasses import dataclass
from enum import Enum

from quivermq.batches import Frame
from quivermq.queue import GrantedLease, Interval
from quivermq.raft import MembershipChange
from quivermq.replica import Result, Token


@dataclass(frozen=True, slots=True)
class Produce:
    """Store this batch."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Read:
    """Ask for the end of everything acknowledged so far (a linearizable read)."""


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Change the members."""

    change: MembershipChange


@dataclass(frozen=True, slots=True)
class Poll:
    """Lease messages to a consumer."""

    group: str
    consumer: int
    messages_max: int
    visibility_ms: int
    auto_ack: bool
    sent_us: int
    """When it was sent, in virtual time; for the checkers alone."""


class Verb(Enum):
    """The ways to settle leased messages."""

    ACK = "acked"
    FAIL = "nacked"
    REJECT = "rejected"
    RELEASE = "released"
    EXTEND = "extended"


@dataclass(frozen=True, slots=True)
class Settle:
    """Settle leased messages."""

    verb: Verb
    group: str
    lease: int
    intervals: tuple[Interval, ...]
    delay_ms: int | None = None
    """Of a nack; and of an extension, how long from then on."""
    consumer: int = 0


@dataclass(frozen=True, slots=True)
class PollReply:
    """The lease that a poll got; None: no messages."""

    leased: GrantedLease | None


@dataclass(frozen=True, slots=True)
class SettleReply:
    """The answer to `Settle`, with the messages whose lease was lost."""

    lost: tuple[Interval, ...]


Consuming = Poll | Settle


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A client's request on its way to a node."""

    token: Token
    request: Produce | Read | ChangeMembership | Consuming


@dataclass(frozen=True, slots=True)
class NodeReply:
    """A node's answer on its way to the client."""

    token: Token
    result: Result | PollReply | SettleReply


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat between nodes that have nothing else to send."""

    boot: int
    """Which start of the sender's process this is."""
