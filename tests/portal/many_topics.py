"""Data directories of brokers with thousands of topics, made within seconds.

A topic that is created costs a broker time in proportion to the topics that it has. Here brokers of
one process each write hundreds of topics into the catalog at once, make their logs as any broker
does, and end. A `Cluster` that starts with the folder finds topics like any others.
"""

import asyncio
import multiprocessing
import secrets
import socket
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from quivermq.cluster import Edit, Topic, View, load_of, place
from quivermq.errors import QuiverError
from quivermq.queue import TopicSettings
from quivermq.settings import BrokerSettings
from quivermq.transports import Server

_AT_ONCE: Final = 500


def name_of(number: int) -> str:
    """Forty teams, with as many topics each as it takes."""
    return f"team-{number % 40:02}.stream-{number:05}"


def make_topics(folder: Path, count: int, nodes: int = 1) -> None:
    """The folder of a `Cluster` with so many topics of one partition and one replica."""
    listens = {node: _free() for node in range(1, nodes + 1)}
    processes = multiprocessing.get_context("spawn")
    are_all_done = processes.Barrier(nodes)
    makers = [
        processes.Process(target=_make, args=(folder, count, node, listens, are_all_done))
        for node in listens
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
        assert maker.exitcode == 0


def _make(folder: Path, count: int, node: int, listens: dict[int, str], are_all_done: Any) -> None:
    data_dir = folder / f"node-{node}" / "data"
    data_dir.mkdir(parents=True)
    settings = BrokerSettings(
        node_id=node,
        data_dir=str(data_dir),
        listen=_free(),
        peer_listen=listens[node],
        peers={other: address for other, address in listens.items() if other != node},
        http="",
        grpc="",
        fsync="never",
    )
    asyncio.run(_run(settings, count, len(listens), are_all_done))


async def _run(settings: BrokerSettings, count: int, nodes: int, are_all_done: Any) -> None:
    server = Server(settings)
    await server.start()
    metadata, replicas = server.broker.metadata, server.broker.scheduler.replicas
    try:
        while True:
            view = metadata.view
            # Brokers have topics of their own.
            have = sum(not name.startswith("_") for name in view.topics)
            mine = len(list(view.hosted(settings.node_id)))
            is_caught_up = len(replicas) > mine
            if have >= count and is_caught_up:
                break
            if metadata.is_leader and len(view.serving) == nodes and have < count and is_caught_up:
                numbers = range(have, min(count, have + _AT_ONCE))
                with suppress(QuiverError):
                    await metadata.edit(partial(_topics, numbers))
            await asyncio.sleep(0.05)
        await asyncio.to_thread(are_all_done.wait)
    finally:
        await server.stop()


def _topics(numbers: range, view: View) -> Edit:
    # Placed together: one by one, each would be placed by a look at all others.
    placements = place(view.serving, load_of(view), partitions=len(numbers), replication=1)
    settings = asdict(TopicSettings())
    topics = [
        Topic(name_of(number), secrets.token_hex(12), 1, settings, (placement,))
        for number, placement in zip(numbers, placements, strict=True)
    ]
    return Edit({topic.key: topic.to_json() for topic in topics})


def _free() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"
