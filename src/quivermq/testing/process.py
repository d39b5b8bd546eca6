"""A simulated process: what is in its memory, what its disk is to do, and how well it is."""

from collections import deque
from dataclasses import dataclass, field

from quivermq.batches import Index
from quivermq.log import Log
from quivermq.replica import DiskWork, Replica
from quivermq.replica.effects import Token
from quivermq.testing.lookout import Lookout
from quivermq.testing.serving import Serving


@dataclass(frozen=True, slots=True)
class DropBefore:
    """Disk work of the node itself: retention."""

    index: Index


HostWork = DiskWork | DropBefore


@dataclass(slots=True)
class Condition:
    """How well a machine is; healing makes a new one."""

    disk_ms_min: float = 0.1
    disk_ms_max: float = 3.0
    lag_ms: float = 0.0
    """How much later than others it gets to anything."""
    paused_until_us: int = 0


@dataclass(slots=True)
class Process:
    """The memory of a running process: gone when it dies."""

    log: Log
    replica: Replica
    lookout: Lookout
    serving: Serving
    disk_queue: deque[HostWork] = field(default_factory=deque)
    is_writing: bool = False
    askers: dict[Token, int] = field(default_factory=dict)
