"""A deterministic simulator: a whole cluster in one thread on virtual time, from one seed.

The replicas, logs and state machines are the real ones; time, network, disks and processes are
simulated. Nothing here may read a clock, sleep, or iterate a set where the order can show.
"""

from tests.replica.simulation.simulation import Outcome, Simulation, run_seed

__all__ = ["Outcome", "Simulation", "run_seed"]
