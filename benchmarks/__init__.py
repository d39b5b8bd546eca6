"""Measurements, each figure beside its reference from the same run. `python -m benchmarks`."""
