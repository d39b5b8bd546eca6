"""The state of a simulated process: replica, log, disk queue, failure detector, condition."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quivermq.batches import Index
from quivermq.log import Log
from quivermq.replica import DiskWork, Replica, Token
from tests.replica.simulation.consumer_service import ConsumerService


class FailureDetector:
    """Tells which peers of a process are silent, and which have restarted, by ticks of its clock.

    It watches peers in place of replicas that sleep. Any message counts as a heartbeat; where there
    is nothing to send, a ping is sent.
    """

    def __init__(self, silent_ticks: int) -> None:
        self._silent_ticks = silent_ticks
        self._ticks = 0
        self._heard: dict[int, int] = {}
        self._boots: dict[int, int] = {}
        self._told: set[int] = set()

    def tell(self, peer: int) -> None:
        """Something was sent to a peer."""
        self._told.add(peer)

    def hear(self, peer: int) -> None:
        """Something came from a peer."""
        self._heard[peer] = self._ticks

    def meet(self, peer: int, boot: int) -> bool:
        """Note the boot number of a peer; True if it is another one than before."""
        known = self._boots.get(peer, boot)
        self._boots[peer] = boot
        return known != boot

    def tick(self, peers: Sequence[int]) -> tuple[list[int], list[int]]:
        """The peers to ping, and the peers that are silent."""
        self._ticks += 1
        since = self._ticks - self._silent_ticks
        unspoken = [peer for peer in peers if peer not in self._told]
        self._told.clear()
        return unspoken, [peer for peer in peers if self._heard.get(peer, 0) < since]


@dataclass(frozen=True, slots=True)
class DropBefore:
    """Disk work of the node itself: retention."""

    index: Index


HostWork = DiskWork | DropBefore


@dataclass(slots=True)
class Condition:
    """The faults of a machine that are in force; healing makes a new one."""

    disk_ms_min: float = 0.1
    disk_ms_max: float = 3.0
    lag_ms: float = 0.0
    """The delay of everything that it does."""
    paused_until_us: int = 0


@dataclass(slots=True)
class Process:
    """The memory of a running process: gone when it dies."""

    log: Log
    replica: Replica
    detector: FailureDetector
    service: ConsumerService
    disk_queue: deque[HostWork] = field(default_factory=deque)
    is_writing: bool = False
    askers: dict[Token, int] = field(default_factory=dict)
