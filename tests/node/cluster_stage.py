"""Several brokers in the test's own process."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any

from quivermq.addresses import split_address
from quivermq.transports import Server
from tests.transports.stage import settings, until

ELECTION = {"tick_ms": 30, "election_ticks": 6}


def free_addresses(count: int) -> list[str]:
    """Addresses at which nothing listens, all different. No connection out of another test gets
    one while its broker is down: those have higher ports."""
    found: list[str] = []
    while len(found) < count:
        address = f"127.0.0.1:{SystemRandom().randrange(20_000, 32_000)}"
        with socket.socket() as place, suppress(OSError):
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            place.bind(split_address(address))
            found = list(dict.fromkeys([*found, address]))
    return found


class Brokers:
    """A static cluster: each may be stopped, emptied and started again."""

    def __init__(self, folder: Path, count: int, **changes: Any) -> None:
        self._folder = folder
        self._changes = {**ELECTION, **changes}
        self.addresses = dict(enumerate(free_addresses(count), 1))
        self.running: dict[int, Server] = {}

    def folder(self, node: int) -> Path:
        return self._folder / str(node)

    async def start(self, *nodes: int) -> None:
        for node in nodes:
            others = {other: place for other, place in self.addresses.items() if other != node}
            self.running[node] = Server(
                settings(
                    self.folder(node),
                    node_id=node,
                    peer_listen=self.addresses[node],
                    peers=others,
                    **self._changes,
                )
            )
        await asyncio.gather(*(self.running[node].start() for node in nodes))

    async def until_ready(self, *nodes: int) -> None:
        await until(lambda: all(self.running[node].broker.is_ready for node in nodes))

    async def stop(self, *nodes: int) -> None:
        await asyncio.gather(*(self.running.pop(node).stop() for node in nodes))

    def empty(self, node: int) -> None:
        shutil.rmtree(self.folder(node))


@asynccontextmanager
async def cluster(folder: Path, count: int = 3, **changes: Any) -> AsyncIterator[Brokers]:
    """A static cluster that is ready."""
    brokers = Brokers(folder, count, **changes)
    nodes: Sequence[int] = range(1, count + 1)
    try:
        await brokers.start(*nodes)
        await brokers.until_ready(*nodes)
        yield brokers
    finally:
        await brokers.stop(*brokers.running)
