"""What users test with: a whole cluster in one thread, on virtual time, with faults.

    from quivermq.testing import Simulation
    Simulation(seed=7).run()

`python -m quivermq.testing --seeds 1000` runs many.
"""

from quivermq.testing.simulation import Outcome, Simulation, run_seed
from quivermq.testing.story import Violation

__all__ = ["Outcome", "Simulation", "Violation", "run_seed"]
