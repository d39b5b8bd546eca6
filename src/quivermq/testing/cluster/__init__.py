"""Real brokers in processes of their own, and faults for them.

Knows how brokers are started, reached and disturbed; must never judge what they do: see `trials`.
"""

from quivermq.testing.cluster.cluster import Cluster
from quivermq.testing.cluster.direct_connection import DirectAnswer, DirectConnection
from quivermq.testing.cluster.faults import ClusterFaults, Undo
from quivermq.testing.cluster.namespaces import HostLinks, Namespaces, why_not
from quivermq.testing.cluster.node import ClusterError, Node
from quivermq.testing.cluster.proxies import ProxiedLink, Proxies
from quivermq.testing.cluster.stall_budget import StallBudget
from quivermq.testing.cluster.wiring import Wiring
from quivermq.testing.disks import why_no_fuse

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterFaults",
    "DirectAnswer",
    "DirectConnection",
    "HostLinks",
    "Namespaces",
    "Node",
    "ProxiedLink",
    "Proxies",
    "StallBudget",
    "Undo",
    "Wiring",
    "why_no_fuse",
    "why_not",
]
