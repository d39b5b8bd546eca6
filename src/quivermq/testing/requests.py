"""What clients and nodes of a simulation say to each other."""

from dataclasses import dataclass

from quivermq.batches import Frame
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
class Ask:
    """A client's request on its way to a node."""

    token: Token
    request: Produce | Read | ChangeMembership


@dataclass(frozen=True, slots=True)
class Reply:
    """A node's answer on its way to the client."""

    token: Token
    result: Result


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life between nodes that have nothing else to say."""

    boot: int
    """Which start of the sender's process this is."""
