"""What users test with: real brokers in processes, or a whole cluster on virtual time, with faults.

    from quivermq.testing import Cluster, Simulation

    with Cluster(nodes=3) as cluster: ...
    Simulation(seed=7).run()

`python -m quivermq.testing --seeds 1000` runs many simulations.
"""

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
