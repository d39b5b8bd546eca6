"""What a scrape costs a broker with many partitions: its time, and how long the loop stands still.

Processor time of the loop's thread, so that it does not matter what else runs on the machine. The
reference is the same text made in one go, without a breath.
"""

import argparse
import asyncio
import gc
import json
import tempfile
import time

from prometheus_client import generate_latest
from rich.console import Console
from rich.table import Table

from quivermq.settings import BrokerSettings
from quivermq.transports import Server
from quivermq.transports.metrics import Metrics
from quivermq.wire import proto

SCRAPES = 20
TARGET_MS = 100.0


async def stillness(stop: asyncio.Event) -> float:
    """The longest time for which nobody else could run, in milliseconds."""
    longest, before = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest * 1000


async def measure(partitions: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(
            BrokerSettings(
                data_dir=folder,
                listen="127.0.0.1:0",
                peer_listen="127.0.0.1:0",
                http="",
                grpc="",
                fsync="never",
            )
        )
        await server.start()
        try:
            while not server.broker.is_ready:  # noqa: ASYNC110  (a benchmark)
                await asyncio.sleep(0.01)
            creation = proto.CreateTopic(name="orders", partitions=partitions)
            request = proto.Request(create_topic=creation, timeout_ms=60_000)
            await server.broker.service.call(request, [])
            while not server.broker.is_ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for number in range(partitions):
                server.broker.counters.traffic["orders", number].messages_in += 1
            return await scrapes(Metrics(server.broker, lambda: 0))
        finally:
            await server.stop()


async def scrapes(metrics: Metrics) -> dict[str, float]:
    took, still, at_once = [], [], []
    size = 0
    gc.collect()
    for _ in range(SCRAPES):
        began = time.thread_time()
        generate_latest(metrics.registry)
        at_once.append((time.thread_time() - began) * 1000)
        stop = asyncio.Event()
        watching = asyncio.create_task(stillness(stop))
        await asyncio.sleep(0)
        began = time.thread_time()
        size = len(await metrics.text())
        took.append((time.thread_time() - began) * 1000)
        stop.set()
        still.append(await watching)
    return {
        "text_bytes": size,
        "scrape_ms": min(took),
        "longest_pause_ms": min(still),
        "at_once_ms": min(at_once),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--partitions", type=int, nargs="*", default=[10, 1_000])
    chosen, _ = parser.parse_known_args()
    rows = {count: asyncio.run(measure(count)) for count in chosen.partitions}
    if chosen.json:
        print(json.dumps({"metrics": rows}))
        return
    table = Table(title="a scrape of one broker", caption=f"processor time, best of {SCRAPES}")
    for head in ("partitions", "text", "scrape", "target", "longest pause", "at once"):
        table.add_column(head, justify="right")
    for count, row in rows.items():
        table.add_row(
            f"{count:,}",
            f"{row['text_bytes'] / 1000:,.0f} kB",
            f"{row['scrape_ms']:.1f} ms",
            f"{TARGET_MS:.0f} ms" if count == 1_000 else "",
            f"{row['longest_pause_ms']:.1f} ms",
            f"{row['at_once_ms']:.1f} ms",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
