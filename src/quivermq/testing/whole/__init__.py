"""Whole clusters from a seed: the brokers, transports and clients of production, on virtual time."""

from quivermq.testing.whole.simulation import Outcome, WholeSimulation, run_whole_seed

__all__ = ["Outcome", "WholeSimulation", "run_whole_seed"]
