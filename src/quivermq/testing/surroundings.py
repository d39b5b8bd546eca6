"""What all hosts of a simulation share, and who watches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quivermq.batches import Index
from quivermq.log import LogSettings
from quivermq.queue import Leased
from quivermq.replica import ReplicaSettings
from quivermq.replica.effects import Mail, Token
from quivermq.testing.dead_letter_topic import DeadLetterTopic
from quivermq.testing.network import Network
from quivermq.testing.requests import Poll, Settle, Settled
from quivermq.testing.story import Story
from quivermq.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from quivermq.testing.host import Host
    from quivermq.testing.process import HostWork


class Observer(Protocol):
    """Sees what a host does, and may raise `Violation`."""

    def stepped(self, host: "Host") -> None: ...
    def started(self, host: "Host") -> None: ...
    def writes(self, host: "Host", work: "HostWork") -> None: ...
    def wrote(self, host: "Host", work: "HostWork") -> None: ...
    def drops(self, host: "Host", end: Index) -> None: ...
    def ask(self, host: "Host", token: Token) -> None: ...
    def answer(self, host: "Host", token: Token) -> None: ...
    def sends(self, host: "Host", to: int, mail: Mail) -> None: ...
    def granted(self, host: "Host", poll: Poll, leased: Leased) -> None: ...
    def settled(self, said: Settle, answer: Settled) -> None: ...
    def tries(self, group: str, parts: Sequence[Sequence[int]]) -> None: ...


@dataclass(slots=True)
class Surroundings:
    """What all hosts of a simulation share."""

    time: VirtualTime
    network: Network
    story: Story
    log_settings: LogSettings
    replica_settings: ReplicaSettings
    observer: Observer
    nodes: Callable[[], Sequence[int]]
    """Every node that was not switched off for good."""
    dead_letters: DeadLetterTopic
