"""QuiverMQ beside Redis Streams and NATS JetStream: the same work, in turns, in one run.

    python -m benchmarks.peers [--rounds 5] [--seconds 0.5] [--only plain,fsync,three] [--json]

Messages of 100 bytes from one Python process, all of them acknowledged. Every round measures each
system in each phase, one right after the other, because a shared machine changes its speed from
second to second; compared are the medians over the rounds. Two classes of durability: without
fsync (Redis appendfsync=everysec, NATS as it comes, QuiverMQ fsync=interval, all three syncing in
the background), and with it before every acknowledgement (appendfsync=always,
sync_interval=always, fsync=always). Three nodes are on one machine, and share its disk.
"""

import argparse
import json
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.nats_jetstream import Nats, NatsCluster
from benchmarks.quiver import CALL_MESSAGES, Quiver, QuiverCluster, random_values
from benchmarks.redis_streams import Redis
from benchmarks.systems import NotInstalled, Rival, System

MESSAGE_BYTES = 100
SINGLE_LAPS = 4
"""How often the systems take turns within a round at single messages: the slower a disk is after
a burst, the shorter the turns should be."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure of ours is compared with; more than one is better, except for latencies."""

    title: str
    ours: str
    theirs: str
    target: float | None
    is_latency: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of ours beside the best of the others."""

    durability: str
    title: str
    ours: float
    best: float
    peer: str
    ratio: float
    target: float | None
    is_latency: bool
    every: dict[str, float]

    @property
    def settlement(self) -> str:
        if self.target is None:
            return ""
        met = self.ratio <= self.target if self.is_latency else self.ratio >= self.target
        return "met" if met else "MISSED"


ONE_NODE = (
    Goal("produce_many", "produce_many", "produce", 30),
    Goal("producer.send", "producer_send", "produce", 8),
    Goal("read, Arrow", "read_arrow", "consume", 30),
    Goal("read, messages", "read_messages", "consume", 5),
    Goal("one at a time, p50", "single p50", "single p50", 1, is_latency=True),
    Goal("one at a time, p99", "single p99", "single p99", None, is_latency=True),
    Goal("asyncio, one at a time, p50", "asyncio p50", "asyncio p50", 1, is_latency=True),
    Goal("asyncio, one at a time, p99", "asyncio p99", "asyncio p99", None, is_latency=True),
)
THREE_NODES = (
    Goal("produce_many", "produce_many", "produce", 10),
    Goal("producer.send", "producer_send", "produce", None),
    Goal("read, Arrow", "read_arrow", "consume", None),
    Goal("one at a time, p50", "single p50", "single p50", None, is_latency=True),
    Goal("one at a time, p99", "single p99", "single p99", None, is_latency=True),
)

Figures = dict[str, dict[str, list[float]]]
"""By system and phase, one of each round."""


def measure(ours: Quiver, rivals: Sequence[Rival], options: Any) -> Figures:
    counters: Figures = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        systems: list[System] = [ours, *rivals]
        # Who comes first after a pause must not always be the same.
        order = systems[number % len(systems) :] + systems[: number % len(systems)]
        for phase in (_produce, _consume, _single):
            if phase is _produce:
                for system in order:
                    system.open_topic()
            phase(order, counters, options)
        for system in order:
            system.drop_topic()
    return counters


def _produce(order: list[System], counters: Figures, options: Any) -> None:
    for system in order:
        found = counters[system.name]
        if isinstance(system, Quiver):
            found["produce_many"].append(system.produce_many(options.seconds).per_second)
            found["producer_send"].append(system.producer_send(options.seconds).per_second)
        elif isinstance(system, Rival):
            found["produce"].append(system.produce(options.seconds).per_second)


def _consume(order: list[System], counters: Figures, options: Any) -> None:
    for system in order:
        found = counters[system.name]
        if isinstance(system, Quiver):
            found["read_arrow"].append(system.read_arrow(options.seconds).per_second)
            found["read_messages"].append(system.read_messages(options.seconds).per_second)
        elif isinstance(system, Rival):
            found["consume"].append(system.consume(options.seconds).per_second)


def _single(order: list[System], counters: Figures, options: Any) -> None:
    for name, call in (("single", System.single), ("asyncio", System.single_asyncio)):
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(SINGLE_LAPS):
            for system in order:
                times[system.name] += call_on(system, call, options.singles // SINGLE_LAPS)
        for system in order:
            ascending = sorted(times[system.name])
            found = counters[system.name]
            found[f"{name} p50"].append(ascending[len(ascending) // 2] * 1e6)
            found[f"{name} p99"].append(ascending[len(ascending) * 99 // 100] * 1e6)


def call_on(system: System, call: Callable[[System, int], list[float]], count: int) -> list[float]:
    """The named method of the system's own class."""
    found: list[float] = getattr(system, call.__name__)(count)
    return found


def compared(
    durability: str, goals: Sequence[Goal], ours: str, counters: Figures
) -> Iterator[Line]:
    medians = {
        system: {phase: statistics.median(found) for phase, found in phases.items()}
        for system, phases in counters.items()
    }
    for goal in goals:
        theirs = {
            system: phases[goal.theirs]
            for system, phases in medians.items()
            if system != ours and goal.theirs in phases
        }
        own = medians[ours][goal.ours]
        pick = min if goal.is_latency else max
        best = pick(theirs, key=theirs.__getitem__) if theirs else ""
        value = theirs.get(best, float("nan"))
        yield Line(
            durability, goal.title, own, value, best, own / value, goal.target, goal.is_latency,
            theirs,
        )  # fmt: skip


def run_class(
    title: str, ours: Quiver, rivals: Sequence[Rival], goals: Sequence[Goal], options: Any
) -> list[Line]:
    """Start everybody, measure in turns, stop."""
    with ExitStack() as started:
        there = []
        for rival in rivals:
            try:
                started.enter_context(rival)
                there.append(rival)
            except NotInstalled as error:
                print(f"{rival.name} is left out: {error}", file=sys.stderr)
        if not there:
            return []
        started.enter_context(ours)
        return list(compared(title, goals, ours.name, measure(ours, there, options)))


def results(options: Any) -> list[Line]:
    values = random_values(CALL_MESSAGES, MESSAGE_BYTES)
    wanted = set(options.only.split(","))
    lines: list[Line] = []
    for name, title, fsync in (("plain", "without fsync", False), ("fsync", "with fsync", True)):
        if name in wanted:
            rivals = [Redis(values, fsync=fsync), Nats(values, fsync=fsync)]
            lines += run_class(title, Quiver(values, fsync=fsync), rivals, ONE_NODE, options)
    if "three" in wanted:
        synced = NatsCluster(values, fsync=True)
        synced.name = "NATS, 3 replicas, sync_interval=always"
        three = QuiverCluster(values, fsync=True)
        easier = [NatsCluster(values, fsync=False)]
        title = "three nodes, fsync on a majority; NATS without fsync"
        lines += run_class(title, three, easier, THREE_NODES, options)
        three = QuiverCluster(values, fsync=True)
        title = "three nodes, fsync on a majority; NATS with fsync"
        lines += run_class(title, three, [synced], THREE_NODES, options)
    return lines


def show(lines: list[Line], options: Any) -> None:
    console = Console(width=None if sys.stdout.isatty() else 130)
    for durability in dict.fromkeys(line.durability for line in lines):
        same = [line for line in lines if line.durability == durability]
        console.print(table_of(durability, same))
    console.print(
        f"messages of {MESSAGE_BYTES} B from one Python process, all acknowledged; messages/s, µs "
        f"where it says p50 or p99; medians of {options.rounds} interleaved rounds; {machine()}"
    )


def table_of(durability: str, lines: list[Line]) -> Table:
    peers = list(dict.fromkeys(peer for line in lines for peer in line.every))
    table = Table(title=durability, title_justify="left")
    table.add_column("what")
    for name in ("QuiverMQ", *peers, "ratio to the best", "target", ""):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            line.title,
            f"{line.ours:,.0f}",
            *(f"{line.every[peer]:,.0f}" for peer in peers),
            f"{line.ratio:.2f}",
            "" if line.target is None else f"{'≤' if line.is_latency else '≥'} {line.target:g}",
            line.settlement,
        )
    return table


def machine() -> str:
    return f"Python {platform.python_version()}, {platform.machine()}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=0.25, help="of one measurement")
    arguments.add_argument("--singles", type=int, default=400, help="single messages a round")
    arguments.add_argument("--only", default="plain,fsync,three", help="which comparisons")
    options, _ = arguments.parse_known_args()
    lines = results(options)
    if options.json:
        counters = [asdict(line) | {"verdict": line.settlement} for line in lines]
        print(json.dumps({"benchmark": "peers", "machine": machine(), "results": counters}))
    else:
        show(lines, options)


if __name__ == "__main__":
    main()
