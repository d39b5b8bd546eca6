"""What is stored in the data directory of each release, and how to see that all of it is there.

One broker, with everything that a data directory can hold: sealed segments, checkpoints, batches of
a numbered producer, groups with messages that are done, leased, delayed and dead, offsets, records
of the catalog.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from quivermq.client import Client
from quivermq.testing import Cluster

EXPECTED = "expected.json"
SETTINGS = {"segment_bytes": 64 << 10, "fsync": "always", "tick_ms": 30}
TOPICS = ("orders", "orders.dlq", "empty")
PRODUCER = {"producer_id": 77_000_001, "epoch": 3}
LAST = [f"the last of a producer, {number}".encode() for number in range(20)]
_HOUR = 3600.0


def fill(cluster: Cluster, folder: Path) -> None:
    """Store all of it in a new cluster of one broker, which is killed afterwards."""
    with cluster.connect() as client:
        client.create_topic("orders", partitions=2, max_deliveries=2)
        client.create_topic("empty")
        _produce(client, 6)
        client.produce_many("orders", LAST, partition=0, sequence=0, **PRODUCER)
        client.produce("orders", b"in nine years", delay=9 * 365 * 24 * _HOUR, partition=1)
        client.commit("orders", "reader", 0, 17)
        client.poll("orders", "idle", max_messages=1, start="latest", wait=0.1)
        _use_group(client)
        _wait_buried(client, cluster)
        # A segment is sealed with a checkpoint: those that follow hold the groups too.
        _produce(client, 6)
        expected = {"level": client.cluster().level, "seen": seen(client)}
        (folder / EXPECTED).write_text(json.dumps(expected, indent=1))
        # Whoever closes its client gives its leases back.
        cluster.nodes[1].kill()


def _produce(client: Client, batches: int) -> None:
    for batch in range(batches):
        values = [f"order {batch:04d} {number:04d} {'.' * 300}".encode() for number in range(40)]
        for partition in (0, 1):
            client.produce_many("orders", values, partition=partition)


def _use_group(client: Client) -> None:
    taken = client.poll("orders", "billing", max_messages=200, visibility=_HOUR)
    while len(taken) < 200:
        taken += client.poll("orders", "billing", max_messages=200 - len(taken), visibility=_HOUR)
    client.ack(taken[:90])
    client.ack(taken[100:110])
    client.nack(taken[110:125], delay=_HOUR)
    client.reject(taken[125:131], "for the record")


def _wait_buried(client: Client, cluster: Cluster) -> None:
    def buried() -> bool:
        return any(topic.name == "orders.dlq" for topic in client.topics()) and (
            client.topic("orders.dlq").message_count == 6
        )

    cluster.wait_until(buried, "the dead letters were not carried")


def seen(client: Client) -> dict[str, Any]:
    """What a client sees of it, in numbers and checksums that do not change with time."""
    return {
        "messages": {
            f"{topic}/{info.partition}": _messages(client, topic, info.partition)
            for topic in TOPICS
            for info in client.topic(topic).partitions
        },
        "groups": {
            group: [
                {
                    "partition": part.partition,
                    "done": part.done,
                    "dead": part.dead,
                    "lost": part.lost,
                    # Leases end and delays pass.
                    "left": part.lag + part.in_flight + part.delayed,
                    "committed": part.committed,
                }
                for part in client.group("orders", group).partitions
            ]
            for group in ("billing", "reader", "idle")
        },
        "max_deliveries": client.topic("orders").max_deliveries,
    }


def _messages(client: Client, topic: str, partition: int) -> list[Any]:
    digest, count = hashlib.sha256(), 0
    for message in client.read(topic, partition):
        digest.update(b"%d %b\n" % (message.offset, message.value))
        count += 1
    return [count, digest.hexdigest()]


def check(cluster: Cluster, folder: Path) -> None:
    """All of it is there, and what must not be stored twice is not."""
    expected = json.loads((folder / EXPECTED).read_text())["seen"]
    with cluster.connect() as client:
        assert seen(client) == expected
        again = client.produce_many("orders", LAST, partition=0, sequence=0, **PRODUCER)
        assert sum(receipt.count for receipt in again) == len(LAST)
        assert seen(client)["messages"] == expected["messages"]


def level_of(folder: Path) -> int:
    """That of the cluster when it was filled."""
    return int(json.loads((folder / EXPECTED).read_text())["level"])


def logs_of(folder: Path) -> list[str]:
    """The files of the logs, by name."""
    root = folder / "node-1" / "data" / "log"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
