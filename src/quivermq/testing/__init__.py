"""What users test with: real brokers in processes, or a whole cluster on virtual time, with faults.

    from quivermq.testing import Cluster, Simulation

    with Cluster(nodes=3) as cluster: ...
    Simulation(seed=7).run()

`python -m quivermq.testing --seeds 1000` runs many simulations.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.testing.cluster import Cluster
    from quivermq.testing.cluster_node import ClusterError, Node
    from quivermq.testing.simulation import Outcome, Simulation, run_seed
    from quivermq.testing.story import Violation

__all__ = [
    "Cluster",
    "ClusterError",
    "Node",
    "Outcome",
    "Simulation",
    "Violation",
    "run_seed",
]

_HOMES = {
    "Cluster": "cluster",
    "ClusterError": "cluster_node",
    "Node": "cluster_node",
    "Outcome": "simulation",
    "Simulation": "simulation",
    "Violation": "story",
    "run_seed": "simulation",
}


def __getattr__(name: str) -> Any:
    """Loaded when a name is first used: every broker process imports this room, and needs none."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
