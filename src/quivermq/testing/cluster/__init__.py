"""Real brokers in processes of their own, and faults for them.

Knows how brokers are started, reached and disturbed; must never judge what they do: see `trials`.
"""

from quivermq.testing.cluster.cluster import Cluster
from quivermq.testing.cluster.direct_connection import Answer, Direct
from quivermq.testing.cluster.faults import ClusterFaults, Undo
from quivermq.testing.cluster.namespaces import Namespaces, why_not
from quivermq.testing.cluster.node import ClusterError, Node
from quivermq.testing.cluster.proxies import Link, Proxies
from quivermq.testing.cluster.stall_budget import StallBudget
from quivermq.testing.cluster.wiring import Wiring

__all__ = [
    "Answer",
    "Cluster",
    "ClusterError",
    "ClusterFaults",
    "Direct",
    "Link",
    "Namespaces",
    "Node",
    "Proxies",
    "StallBudget",
    "Undo",
    "Wiring",
    "why_not",
]
