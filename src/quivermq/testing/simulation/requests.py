"""What clients and nodes of a simulation say to each other."""

from dataclasses import dataclass
from enum import Enum

from quivermq.batches import Frame
from quivermq.queue import Interval, Leased
from quivermq.raft import MembershipChange
from quivermq.replica.effects import Result, Token


@dataclass(frozen=True, slots=True)
class Produce:
    """Store this batch."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Read:
    """Say up to where everything acknowledged so far reaches."""


@dataclass(frozen=True, slots=True)
class ChangeMembership:
    """Change who takes part."""

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
    """When it was sent, by the one clock that is right; for the checkers alone."""


class Verb(Enum):
    """What a consumer says of messages that it has."""

    ACK = "acked"
    FAIL = "nacked"
    REJECT = "rejected"
    RELEASE = "released"
    EXTEND = "extended"


@dataclass(frozen=True, slots=True)
class Settle:
    """What became of leased messages."""

    verb: Verb
    group: str
    lease: int
    intervals: tuple[Interval, ...]
    delay_ms: int | None = None
    """Of a nack; and of an extension, how long from then on."""
    consumer: int = 0


@dataclass(frozen=True, slots=True)
class PollReply:
    """What a consumer is given; None: nothing."""

    leased: Leased | None


@dataclass(frozen=True, slots=True)
class SettleReply:
    """It is so, but for what was lost."""

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
    """A sign of life between nodes that have nothing else to say."""

    boot: int
    """Which start of the sender's process this is."""
