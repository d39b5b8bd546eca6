"""Consuming through groups, every message acknowledged; beside Redis Streams and NATS JetStream.

    python -m benchmarks.consuming [--only rates,latency,backlog,priorities,limits] [--rounds 5]
                                   [--seconds 0.5] [--singles 400] [--json]

Rates and latencies are measured in turns, as in `benchmarks.peers`, in the same two classes of
durability. Redis and NATS take as many messages at a time as they are best at, which is found out
first. Latency is from before a produce to when the message is in a consumer's hands.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import backlog, deliveries
from benchmarks.group_systems import (
    GroupNats,
    GroupQuiver,
    GroupRedis,
    GroupRival,
    run_push_asyncio,
)
from benchmarks.peers import MESSAGE_BYTES, machine
from benchmarks.quiver import CALL_MESSAGES, random_values
from benchmarks.systems import NotInstalled

REDIS, NATS = GroupRedis.name, GroupNats.name
CALIBRATION_SECONDS = 0.2
LATENCY_TURNS = 4
PARTS = ("rates", "latency", "backlog", "priorities", "limits")

Times = dict[str, dict[str, list[float]]]
"""By phase and system: one figure of each round."""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure of ours beside those of the others; the targets are factors."""

    durability: str
    title: str
    counters: dict[str, float]
    targets: dict[str, float]
    is_latency: bool

    def ratio(self, rival: str) -> float:
        return self.counters[GroupQuiver.name] / self.counters[rival]

    @property
    def settlement(self) -> str:
        wanted = {rival: target for rival, target in self.targets.items() if rival in self.counters}
        if not wanted:
            return ""
        met = all(
            self.ratio(rival) <= target if self.is_latency else self.ratio(rival) >= target
            for rival, target in wanted.items()
        )
        return "met" if met else "MISSED"


WAYS: dict[str, tuple[Callable[[GroupQuiver, float], Any], dict[str, float]]] = {
    "poll_arrow": (GroupQuiver.poll_arrow, {REDIS: 20}),
    "poll": (GroupQuiver.poll, {REDIS: 4, NATS: 20}),
    "subscribe, lists": (GroupQuiver.subscribe, {REDIS: 4, NATS: 20}),
    "subscribe, handler": (GroupQuiver.handler, {REDIS: 4, NATS: 20}),
}
PUSHES: dict[str, Callable[[Any, int], list[float]]] = {
    "push, threads": lambda system, count: system.push(count),  # type: ignore[no-any-return]
    "push, asyncio": run_push_asyncio,
}


def measure_rates(
    ours: GroupQuiver, rivals: Sequence[GroupRival], options: Any, found: Times
) -> None:
    """One round."""
    for rival in rivals:
        rival.open_topic()
        # Longer than it is consumed, so that there is enough.
        rival.produce(1.5 * options.seconds)
        found["theirs"][rival.name].append(rival.take_all(options.seconds).per_second)
        rival.drop_topic()
    ours.open_topic()
    ours.fill()
    for title, (way, _) in WAYS.items():
        found[title][ours.name].append(way(ours, options.seconds).per_second)
    ours.drop_topic()


def measure_latency(
    ours: GroupQuiver, rivals: Sequence[GroupRival], options: Any, found: Times
) -> None:
    """One round."""
    systems = [ours, *rivals]
    for system in systems:
        system.open_topic()
    for title, push in PUSHES.items():
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(LATENCY_TURNS):
            for system in systems:
                times[system.name] += push(system, options.singles // LATENCY_TURNS)
        for name, all_of_it in times.items():
            ascending = sorted(all_of_it)
            found[f"{title}, p50"][name].append(ascending[len(ascending) // 2] * 1e6)
            found[f"{title}, p99"][name].append(ascending[len(ascending) * 99 // 100] * 1e6)
    for system in systems:
        system.drop_topic()


def run_class(durability: str, *, fsync: bool, options: Any) -> list[Line]:
    """Start everybody, measure in turns, stop."""
    values = random_values(CALL_MESSAGES, MESSAGE_BYTES)
    rates: Times = defaultdict(lambda: defaultdict(list))
    latencies: Times = defaultdict(lambda: defaultdict(list))
    with ExitStack() as started:
        there: list[GroupRival] = []
        for rival in (GroupRedis(values, fsync=fsync), GroupNats(values, fsync=fsync)):
            try:
                started.enter_context(rival)
                there.append(rival)
            except NotInstalled as error:
                print(f"{rival.name} is left out: {error}", file=sys.stderr)
        ours = GroupQuiver(values, fsync=fsync)
        started.enter_context(ours)
        if "rates" in options.parts:
            for rival in there:
                rival.calibrate(CALIBRATION_SECONDS)
                print(f"{durability}: {rival.name} takes {rival.at_once:,} messages at a time",
                      file=sys.stderr)  # fmt: skip
        for _ in range(options.rounds):
            if "rates" in options.parts:
                measure_rates(ours, there, options, rates)
            if "latency" in options.parts:
                measure_latency(ours, there, options, latencies)
    return [*rate_lines(durability, rates), *latency_lines(durability, latencies)]


def rate_lines(durability: str, rates: Times) -> list[Line]:
    theirs = _medians(rates.pop("theirs", {}))
    return [
        Line(durability, title, _medians(found) | theirs, WAYS[title][1], is_latency=False)
        for title, found in rates.items()
    ]


def latency_lines(durability: str, latencies: Times) -> list[Line]:
    return [
        Line(durability, title, _medians(found), {REDIS: 1, NATS: 1}, is_latency=True)
        for title, found in latencies.items()
    ]


def _medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {system: statistics.median(each) for system, each in found.items()}


def table_of(durability: str, lines: Sequence[Line]) -> Table:
    rivals = [name for name in (REDIS, NATS) if any(name in line.counters for line in lines)]
    table = Table(title=durability, title_justify="left")
    table.add_column("what")
    table.add_column("QuiverMQ", justify="right")
    for name in rivals:
        table.add_column(name, justify="right")
        table.add_column("ratio", justify="right")
        table.add_column("target", justify="right")
    table.add_column("")
    for line in lines:
        cells = [line.title, f"{line.counters[GroupQuiver.name]:,.0f}"]
        for name in rivals:
            target = line.targets.get(name)
            sign = "≤" if line.is_latency else "≥"
            cells += [
                f"{line.counters[name]:,.0f}",
                f"{line.ratio(name):.2f}",
                "" if target is None else f"{sign} {target:g}",
            ]
        table.add_row(*cells, line.settlement)
    return table


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true", help="one JSON line for programs")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=0.4, help="of one measurement")
    arguments.add_argument("--singles", type=int, default=200, help="single messages a round")
    arguments.add_argument("--only", default=",".join(PARTS), help="which parts")
    options, _ = arguments.parse_known_args()
    # Arguments go to all benchmarks; parts of others are none of these.
    options.parts = {part for part in options.only.split(",") if part in PARTS}
    console = Console(width=None if sys.stdout.isatty() else 130)
    report: dict[str, Any] = {"benchmark": "consuming", "machine": machine()}
    if options.parts & {"rates", "latency"}:
        lines = []
        for durability, fsync in (("without fsync", False), ("with fsync", True)):
            some = run_class(durability, fsync=fsync, options=options)
            lines += some
            if not options.json:
                console.print(table_of(durability, some))
        report["peers"] = [asdict(line) | {"verdict": line.settlement} for line in lines]
        if not options.json:
            console.print(
                f"messages of {MESSAGE_BYTES} B, from one Python process, all acknowledged; "
                "messages/s, or µs where it says p50 or p99; medians of "
                f"{options.rounds} interleaved rounds; {machine()}"
            )
    for part, measure in (
        ("backlog", backlog.measure),
        ("priorities", deliveries.measure_priorities),
        ("limits", deliveries.measure_limits),
    ):
        if part in options.parts:
            found = measure()
            report[part] = asdict(found)
            if not options.json:
                console.print(found.table())
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
