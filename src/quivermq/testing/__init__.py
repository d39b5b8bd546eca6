"""Test tools for users and for the brokers themselves.

    from quivermq.testing import Cluster, Simulation

    with Cluster(nodes=3) as cluster: ...
    Simulation(seed=7).run()

- `cluster`: real brokers in processes, with faults.
- `disks`: disks for them that fail and lose power.
- `simulation`: a whole cluster in one thread on virtual time, from a seed.
- `virtual`: the machines, network and time that it runs on.
- `soak`: real clusters under a random mix of faults, for hours: `python -m quivermq.testing.soak`.
- `trials`: real clusters under load and faults, and checkers of what clients were told.

`simulated_disk`, `memory_storage` and `memory_transport` stand in for a disk, Raft's storage and
TCP. Modules to run with `python -m`: `quivermq.testing --seeds 1000` (simulations), and
the processes `broker_process` and `consumer_process`. `fork_server` forks brokers. `pytest_plugin`
has fixtures for all who install the package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quivermq.testing.cluster import Cluster, ClusterError, Node
    from quivermq.testing.simulation import Outcome, Simulation, run_seed

__all__ = [
    "Cluster",
    "ClusterError",
    "Node",
    "Outcome",
    "Simulation",
    "Violation",
    "run_seed",
]

_ROOMS = {
    "Cluster": "cluster",
    "ClusterError": "cluster",
    "Node": "cluster",
    "Outcome": "simulation",
    "Simulation": "simulation",
    "run_seed": "simulation",
}


class Violation(AssertionError):
    """A broker broke a guarantee; the message names the guarantee and the evidence."""


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: broker processes import this package and use none."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
