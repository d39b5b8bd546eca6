"""Brokers in processes of their own, for measurements through the public client."""

import os
import time
from pathlib import Path

import psutil

import quivermq
from quivermq.cli.local_brokers import LocalBroker, LocalBrokers, plan

CALL_MESSAGES = 100_000
START_SECONDS_MAX = 120.0


class Brokers:
    """Brokers of this machine, each a `quiver serve`."""

    def __init__(self, folder: Path, nodes: int, *flags: str) -> None:
        self._flags = ("--log-level", "warning", *flags)
        self._places = plan(nodes, folder, any_ports=True)
        self.local = LocalBrokers(self._places, folder, self._flags)

    def __enter__(self) -> "Brokers":
        self.local.__enter__()
        try:
            self.local.wait_until_serving(START_SECONDS_MAX)
        except BaseException:
            self.local.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.local.stop()

    def start_again(self, broker: LocalBroker) -> None:
        """One that ended."""
        broker.start(self._places, self._flags)

    @property
    def servers(self) -> str:
        return self.local.servers

    @property
    def each(self) -> list[LocalBroker]:
        return self.local.brokers


def resident(broker: LocalBroker) -> int:
    """Its bytes in memory."""
    return psutil.Process(broker.process.pid).memory_info().rss


def cpu_seconds(broker: LocalBroker) -> float:
    times = psutil.Process(broker.process.pid).cpu_times()
    return times.user + times.system


def wait_for_brokers(client: quivermq.Client, count: int) -> None:
    """Until so many are members of the cluster: they serve a moment before."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while sum(node.alive for node in client.cluster().nodes) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no cluster of {count} within {START_SECONDS_MAX:.0f} s")
        time.sleep(0.05)


def random_values(count: int, size: int) -> list[bytes]:
    """Messages that nobody gains by compressing."""
    noise = os.urandom(count * size)
    return [noise[at : at + size] for at in range(0, len(noise), size)]
