"""A loop that polls and acknowledges, with the default size beside sizes that are named.

    python -m benchmarks.default_poll [--rounds 3] [--seconds 1.0] [--json]

Sizes take turns in every round, so that all of them meet the same machine. The last line is the
same loop with a job of 1 ms a message: the default must stay small there.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import quivermq
import quivermq.aio
from benchmarks.quiver import CALL_MESSAGES, Brokers, random_values

MESSAGE_BYTES = 100
FILLED_MESSAGES = 3_000_000
SIZES: dict[str, int | None] = {"100": 100, "10,000": 10_000, "default": None}
SLOW_JOB_SECONDS = 0.001


def run_blocking(client: quivermq.Client, group: str, size: int | None, seconds: float) -> float:
    """Messages a second."""
    taken, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        messages = client.poll("polled", group=group, max_messages=size, wait=0.0)
        client.ack(messages)
        taken += len(messages)
    return taken / (time.perf_counter() - began)


async def run_asyncio(servers: str, group: str, size: int | None, seconds: float) -> float:
    async with quivermq.aio.connect(servers) as client:
        taken, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            messages = await client.poll("polled", group=group, max_messages=size, wait=0.0)
            await client.ack(messages)
            taken += len(messages)
        return taken / (time.perf_counter() - began)


def find_largest_of_slow_loop(client: quivermq.Client, seconds: float) -> int:
    """The most messages that a poll of a slow loop got."""
    largest, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        messages = client.poll("polled", group="slow")
        largest = max(largest, len(messages))
        for _ in messages:
            time.sleep(SLOW_JOB_SECONDS)
        client.ack(messages)
    return largest


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=1.0, help="of one measurement")
    options, _ = arguments.parse_known_args()
    found: dict[str, list[float]] = defaultdict(list)
    with (
        tempfile.TemporaryDirectory(prefix="bench-poll-") as folder,
        Brokers(Path(folder), 1, "--fsync", "never") as brokers,
        quivermq.connect(brokers.servers) as client,
    ):
        client.create_topic("polled")
        values = list(random_values(CALL_MESSAGES, MESSAGE_BYTES))
        for _ in range(FILLED_MESSAGES // len(values)):
            client.produce_many("polled", values)
        for turn in range(options.rounds):
            for title, size in SIZES.items():
                group = f"{title.replace(',', '')}-{turn}"
                rate = run_blocking(client, f"b-{group}", size, options.seconds)
                found[f"blocking, {title}"].append(rate)
                rate = asyncio.run(
                    run_asyncio(brokers.servers, f"a-{group}", size, options.seconds)
                )
                found[f"asyncio, {title}"].append(rate)
        largest = find_largest_of_slow_loop(client, options.seconds)
    medians = {title: round(statistics.median(rates)) for title, rates in found.items()}
    if options.json:
        print(json.dumps({"benchmark": "default_poll", "rates": medians, "slow": largest}))
        return
    for title, rate in sorted(medians.items()):
        print(f"{title:20} {rate:>12,} messages/s")
    print(f"a job of 1 ms a message: at most {largest} messages a poll")


if __name__ == "__main__":
    main()
