"""Goals: how fast QuiverMQ is to be, as ratios to others in the same run or as plain figures.

A goal that cannot be judged, because a system or a piece of work is missing, says so.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.compare.figures import OURS, Cell, Run

REDIS, NATS, KAFKA = "Redis Streams", "NATS JetStream", "Apache Kafka"
SIZE = 100
TIMES = "×"  # noqa: RUF001  (the sign of a ratio)


@dataclass(frozen=True, slots=True)
class Found:
    """What a goal is judged by: a ratio, or a figure where there is no peer."""

    measured: float
    ours: float
    theirs: float | None = None
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    title: str
    bound: float
    is_at_most: bool
    unit: str
    find: Callable[[Run], Found | None]

    @property
    def text(self) -> str:
        return f"{'≤' if self.is_at_most else '≥'} {self.bound:,g} {self.unit}"

    def is_met(self, found: Found) -> bool:
        if self.is_at_most:
            return found.measured <= self.bound
        return found.measured >= self.bound


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal with what a run found."""

    goal: Goal
    found: Found | None

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        return "met" if self.goal.is_met(self.found) else "MISSED"


def at_most(title: str, bound: float, unit: str, find: Callable[[Run], Found | None]) -> Goal:
    return Goal(title, bound, is_at_most=True, unit=unit, find=find)


def at_least(title: str, bound: float, unit: str, find: Callable[[Run], Found | None]) -> Goal:
    return Goal(title, bound, is_at_most=False, unit=unit, find=find)


def judge(run: Run) -> list[Judged]:
    return [Judged(goal, goal.find(run)) for goal in GOALS]


def _cell(work: str, batch: int = 0, *, fsync: bool = False, nodes: int = 1) -> Cell:
    return Cell(OURS, nodes, fsync, SIZE, work, batch)


def _beside(ours: Cell, *theirs: Cell) -> Callable[[Run], Found | None]:
    """The best of these cells, whatever their conditions are."""

    def find(run: Run) -> Found | None:
        own = run.value(ours)
        others = {cell: value for cell in theirs if (value := run.value(cell)) is not None}
        if own is None or not others:
            return None
        pick = min if ours.is_latency else max
        best = pick(others, key=others.__getitem__)
        return Found(own / others[best], own, others[best], best.system)

    return find


def _alone(ours: Cell, name: str, factor: float = 1.0) -> Callable[[Run], Found | None]:
    """A field of our own figure."""

    def find(run: Run) -> Found | None:
        figure = run.figures.get(ours)
        if figure is None:
            return None
        value = factor * float(getattr(figure, name))
        return Found(value, value)

    return find


def _latency_goals(
    title: str, work: str, peers: tuple[str, ...], bounds: tuple[float, float]
) -> Iterator[Goal]:
    """Without fsync and with it, each beside peers that do the same."""
    for fsync, bound in zip((False, True), bounds, strict=True):
        ours = _cell(work, fsync=fsync)
        theirs = [ours._replace(system=peer) for peer in peers]
        durability = "with fsync" if fsync else "without fsync"
        yield at_most(f"{title}, {durability}", bound, TIMES, _beside(ours, *theirs))


def _kafka_goals(
    title: str, work: str, batch: int, bound: float, their_work: str = ""
) -> Iterator[Goal]:
    """Ours without fsync and with it, Kafka in the page cache."""
    theirs = _cell(their_work or work, batch)._replace(system=KAFKA)
    for fsync in (False, True):
        durability = "with fsync, Kafka without" if fsync else "without fsync"
        ours = _cell(work, batch, fsync=fsync)
        yield at_least(f"{title}, {durability}", bound, TIMES, _beside(ours, theirs))


def _best_consume(peer: str) -> list[Cell]:
    return [_cell("consume", batch)._replace(system=peer) for batch in (1, 10, 100, 1_000, 10_000)]


GOALS: tuple[Goal, ...] = (
    at_most("lone produce: processor time of the broker, the kernel's part included", 60, "µs",
         _alone(_cell("lone"), "broker_us")),
    at_most("lone produce: processor time of the blocking client", 35, "µs",
         _alone(_cell("lone"), "client_us")),
    *_latency_goals("lone produce p50, to the better of Redis and NATS", "lone", (REDIS, NATS),
                    (1.0, 1.0)),
    *_latency_goals("produce to subscriber p50, to the better of Redis and NATS", "push",
                    (REDIS, NATS), (1.2, 1.0)),
    at_most("poll of 10 and ack: processor time of the broker", 200, "µs",
         _alone(_cell("poll", 10), "broker_us", 10)),
    at_least("poll of 1,000 and ack, to Redis", 8, TIMES,
         _beside(_cell("poll", 1_000), _cell("consume", 1_000)._replace(system=REDIS))),
    at_least("consume and acknowledge 1,000 at a time, to Redis", 8, TIMES,
         _beside(_cell("consume", 1_000), _cell("consume", 1_000)._replace(system=REDIS))),
    at_least("subscribe with a handler a message, to Redis at its best batch", 8, TIMES,
         _beside(_cell("handler"), *_best_consume(REDIS))),
    at_least("subscribe with a handler a message, to NATS at its best batch", 20, TIMES,
         _beside(_cell("handler"), *_best_consume(NATS))),
    at_least("64 clients, a message at a time, to Redis", 1, TIMES,
         _beside(_cell("clients", 64), _cell("clients", 64)._replace(system=REDIS))),
    at_least("100 groups on one topic, message by message", 1_000, "messages/s",
         _alone(_cell("groups", 100), "per_second")),
    at_most("three nodes, fsync on a majority, lone produce p50, to NATS with three replicas and "
         "without fsync", 1.5, TIMES,
         _beside(_cell("lone", fsync=True, nodes=3), _cell("lone", nodes=3)._replace(system=NATS))),
    *_kafka_goals("a call a message, to Kafka", "produce", 1, 1.2),
    *_kafka_goals("lists of 1,000, to Kafka", "produce", 1_000, 2),
    *_kafka_goals("lists of 10,000, to Kafka", "produce", 10_000, 3),
    *_kafka_goals("consume and acknowledge 1,000 at a time, to Kafka", "consume", 1_000, 1.5),
    *_kafka_goals("consume and acknowledge 10,000 at a time, to Kafka", "consume", 10_000, 2),
    *_kafka_goals("sticky consumer, 1,000 at a time, to Kafka", "sticky", 1_000, 1.5, "consume"),
    *_kafka_goals("sticky consumer, 10,000 at a time, to Kafka", "sticky", 10_000, 2, "consume"),
    *_kafka_goals("10,000 at a time as Arrow, to Kafka's messages", "arrow", 10_000, 3, "consume"),
    at_least("poll without a number and ack, in a loop", 1_000_000, "messages/s",
         _alone(_cell("default poll"), "per_second")),
    at_least("poll without a number and ack, in a loop, with fsync", 1_000_000, "messages/s",
         _alone(_cell("default poll", fsync=True), "per_second")),
    *_latency_goals("lone produce p50, to Kafka", "lone", (KAFKA,), (0.7, 0.7)),
    *_latency_goals("produce to subscriber p50, to Kafka", "push", (KAFKA,), (0.7, 0.7)),
)  # fmt: skip
