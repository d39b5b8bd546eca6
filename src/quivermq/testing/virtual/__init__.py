"""Processes, machines and a network on virtual time, in one thread, from a seed.

Whatever runs on asyncio runs here unchanged: brokers, transports and clients. `sandbox` gives it
virtual clocks and seeded chance; `process` machines with disks that fail; `network` connections
that are slow, cut and wrong.
"""

from quivermq.testing.virtual.network import Link, VirtualNetwork, Weather
from quivermq.testing.virtual.process import Process, SimulatedMachine, World
from quivermq.testing.virtual.sandbox import sandbox, silently, without_collection

__all__ = [
    "Link",
    "Process",
    "SimulatedMachine",
    "VirtualNetwork",
    "Weather",
    "World",
    "sandbox",
    "silently",
    "without_collection",
]
