"""Whole clusters from a seed: brokers, transports and clients as in production."""

from quivermq.testing.simulation.simulation import Outcome, Simulation, run_seed

__all__ = ["Outcome", "Simulation", "run_seed"]
