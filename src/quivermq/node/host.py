"""The part of a broker, or of a gateway, that transports use."""

from typing import TYPE_CHECKING, Protocol

from quivermq.batches import Limits
from quivermq.errors import QuiverError
from quivermq.node.access_control import AccessControl
from quivermq.node.counters import Counters
from quivermq.node.service import Service
from quivermq.node.time_slices import Slices
from quivermq.settings import BrokerSettings
from quivermq.tls import BrokerTls

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer


class Partitions(Protocol):
    """Topics and their leaders, as far as they are known without asking anybody."""

    @property
    def slices(self) -> Slices:
        """Shared by all work that takes long."""

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; raises `TopicNotFound` if it is not known."""

    def leader_in(self, topic: str, partition: int) -> int:
        """The node that leads a partition; 0 if that is not known."""


class Host(Protocol):
    """A process that serves clients, whatever stands behind it."""

    @property
    def settings(self) -> BrokerSettings: ...

    @property
    def node_id(self) -> int:
        """Its number in the cluster; 0: a gateway."""

    @property
    def cluster_id(self) -> str:
        """Empty until it knows its cluster."""

    @property
    def leader(self) -> int:
        """The node that leads the metadata partition; 0 if that is not known."""

    @property
    def limits(self) -> Limits: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def service(self) -> Service: ...

    @property
    def access(self) -> AccessControl: ...

    @property
    def tls(self) -> BrokerTls | None: ...

    @property
    def tracer(self) -> "BrokerTracer | None":
        """None: nothing is traced."""

    @property
    def partitions(self) -> Partitions: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def unready(self) -> QuiverError | None:
        """Why it should not be sent work; None: it is ready."""
