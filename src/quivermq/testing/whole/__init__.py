"""Whole clusters from a seed: brokers, transports and clients as in production."""

from quivermq.testing.whole.simulation import Outcome, WholeSimulation, run_whole_seed

__all__ = ["Outcome", "WholeSimulation", "run_whole_seed"]
