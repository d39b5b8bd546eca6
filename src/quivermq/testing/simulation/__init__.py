"""Whole clusters from a seed: brokers, transports and clients as in production.

Machines, clocks, disks and the network are those of `testing.virtual`. Users work with the public
client and record what it tells them; faults strike; checkers compare.
"""

from quivermq.testing.simulation.http_users import speaks_http
from quivermq.testing.simulation.shrink import shrink
from quivermq.testing.simulation.simulation import (
    LeftOut,
    Outcome,
    Simulation,
    run_last_seed,
    run_seed,
)

__all__ = ["LeftOut", "Outcome", "Simulation", "run_last_seed", "run_seed", "shrink", "speaks_http"]
