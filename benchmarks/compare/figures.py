"""Figures of a run: one for each system and piece of work, and the file that keeps them.

A figure is the median of its rounds. Processor time in seconds for a million messages is the same
number as microseconds for one.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.compare.system import Sample

OURS = "QuiverMQ"
SYSTEMS = (OURS, "Redis Streams", "NATS JetStream", "RabbitMQ", "Apache Kafka")
PEERS = SYSTEMS[1:]
LATENCIES = ("lone", "push")
COUNTERPARTS = {
    "poll": ("consume", 0),
    "handler": ("consume", 1),
    "arrow": ("consume", 10_000),
    "sticky": ("consume", 0),
}
"""Work of ours alone, and what others do at the same batch size; 0: at that of ours."""


class Conditions(NamedTuple):
    """A class of the comparison: systems are compared only within one."""

    nodes: int
    fsync: bool
    """Before every acknowledgement; else in the background."""

    @property
    def title(self) -> str:
        nodes = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{nodes}, {'fsync before each acknowledgement' if self.fsync else 'without fsync'}"


class Cell(NamedTuple):
    """The place of one figure: who did what, under which conditions."""

    system: str
    nodes: int
    fsync: bool
    size: int
    work: str
    batch: int = 0
    """Messages a call; or how many clients or groups; zero where the work depends on neither."""

    @property
    def is_latency(self) -> bool:
        return self.work in LATENCIES


@dataclass(frozen=True, slots=True)
class Figure:
    per_second: float
    broker_us: float
    """Processor time of all servers together, a message."""
    client_us: float
    p50_us: float | None = None
    p99_us: float | None = None


@dataclass(frozen=True, slots=True)
class Best:
    """A figure of ours beside the best one of the others."""

    ours: float
    theirs: float
    peer: str
    is_latency: bool

    @property
    def ratio(self) -> float:
        """Ours by theirs: of rates more is better, of latencies less."""
        return self.ours / self.theirs

    @property
    def times_better(self) -> float:
        """Below one, where ours is worse."""
        return 1 / self.ratio if self.is_latency else self.ratio


@dataclass(slots=True)
class Run:
    """All that one run found, and where."""

    about: dict[str, str] = field(default_factory=dict)
    """The machine, the date, the commit, and how it was measured."""
    versions: dict[str, str] = field(default_factory=dict)
    """By system."""
    left_out: list[str] = field(default_factory=list)
    figures: dict[Cell, Figure] = field(default_factory=dict)

    def value(self, cell: Cell) -> float | None:
        """Messages a second, or the median latency in µs."""
        figure = self.figures.get(cell)
        if figure is None:
            return None
        return figure.p50_us if cell.is_latency else figure.per_second

    def best(self, ours: Cell, peers: Sequence[str] = PEERS) -> Best | None:
        """The best of the others at the same work, if both were measured."""
        own = self.value(ours)
        work, batch = COUNTERPARTS.get(ours.work, (ours.work, ours.batch))
        batch = batch or ours.batch
        theirs = {
            peer: found
            for peer in peers
            if (found := self.value(ours._replace(system=peer, work=work, batch=batch))) is not None
        }
        if own is None or not theirs:
            return None
        pick = min if ours.is_latency else max
        peer = pick(theirs, key=theirs.__getitem__)
        return Best(own, theirs[peer], peer, ours.is_latency)

    def systems(self) -> list[str]:
        found = {cell.system for cell in self.figures}
        return [system for system in SYSTEMS if system in found]

    def save(self, file: Path) -> None:
        rows = [
            cell._asdict() | {name: _rounded(value) for name, value in asdict(figure).items()}
            for cell, figure in sorted(self.figures.items())
        ]
        head = {"about": self.about, "versions": self.versions, "left_out": self.left_out}
        lines = ",\n".join(json.dumps(row) for row in rows)
        text = json.dumps(head, indent=1).removesuffix("\n}")
        file.write_text(f'{text},\n "figures": [\n{lines}\n]}}\n')

    @classmethod
    def load(cls, file: Path) -> "Run":
        read: dict[str, Any] = json.loads(file.read_text())
        run = cls(read["about"], read["versions"], read["left_out"])
        for row in read["figures"]:
            cell = Cell(*(row.pop(name) for name in Cell._fields))
            run.figures[cell] = Figure(**row)
        return run


def _rounded(value: float | None) -> float | None:
    """Four digits: more are noise, and differ in every line of the file."""
    return None if value is None else float(f"{value:.4g}")


def figure_of(samples: Sequence[Sample]) -> Figure:
    """The medians of some rounds."""
    each = [_of_one(sample) for sample in samples if sample.messages]
    names = ("per_second", "broker_us", "client_us")
    rates = {name: statistics.median(getattr(one, name) for one in each) for name in names}
    figure = Figure(**rates)
    if each[0].p50_us is None:
        return figure
    return replace(
        figure,
        p50_us=statistics.median(one.p50_us for one in each if one.p50_us is not None),
        p99_us=statistics.median(one.p99_us for one in each if one.p99_us is not None),
    )


def _of_one(sample: Sample) -> Figure:
    million = 1e6 / sample.messages
    figure = Figure(
        sample.messages / sample.seconds,
        sample.broker_cpu_s * million,
        sample.client_cpu_s * million,
    )
    if not sample.laps:
        return figure
    ascending = sorted(sample.laps)
    return replace(
        figure,
        p50_us=ascending[len(ascending) // 2] * 1e6,
        p99_us=ascending[len(ascending) * 99 // 100] * 1e6,
    )
