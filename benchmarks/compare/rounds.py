"""Rounds in which all systems take turns at the same work.

The servers of a class (so many nodes, with or without fsync) are up together. In every round each
system does each piece of work right after another one did: a shared machine changes its speed from
second to second. The system that comes first changes from round to round.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.compare.figures import SYSTEMS, Cell, Conditions, Run, figure_of
from benchmarks.compare.kafka import Kafka
from benchmarks.compare.nats_jetstream import Nats
from benchmarks.compare.quiver import Quiver
from benchmarks.compare.rabbitmq import RabbitMQ
from benchmarks.compare.redis_streams import Redis
from benchmarks.compare.system import NotInstalled, Sample, System
from benchmarks.quiver import random_values

T = TypeVar("T")

KINDS: dict[str, type[System]] = {
    kind.name: kind for kind in (Quiver, Redis, Nats, RabbitMQ, Kafka)
}
CLIENTS = 64
GROUPS = 100
ARROW_MESSAGES = 10_000
STICKY_MESSAGES = (1_000, 10_000)
LONE_TURNS = 4
"""How often the systems take turns within a round at single messages: the slower a disk is after
a burst, the shorter the turns should be."""
WARM_UP_BYTES, WARM_UP_MESSAGES = 100, 1_000
WORKS = ("produce", "consume", "lone", "push", "clients", "groups", "own")
"""`own` is what only ours is asked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and for how long."""

    systems: tuple[str, ...] = SYSTEMS
    nodes: tuple[int, ...] = (1, 3)
    fsync: tuple[bool, ...] = (False, True)
    sizes: tuple[int, ...] = (100, 1_000, 10_000)
    batches: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    works: tuple[str, ...] = WORKS
    rounds: int = 5
    seconds: float = 0.5
    laps: int = 400
    warm_up: float = 3.0
    """Seconds, before the first round: Kafka's machine compiles what it runs often."""
    clients: int = CLIENTS
    groups: int = GROUPS

    def values(self, size: int) -> list[bytes]:
        return random_values(max(*self.batches, 1_000), size)


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work, and the name of its figure."""

    work: str
    batch: int
    do: Callable[[System], Sample]
    turns: int = 1
    is_own: bool = False

    @property
    def kind(self) -> str:
        """One of `WORKS`."""
        return "own" if self.is_own else self.work


def run(plan: Plan) -> Run:
    """Measure everything; `about` is for the caller to fill in."""
    found = Run()
    for nodes in plan.nodes:
        for fsync in plan.fsync:
            with ExitStack() as started:
                conditions = Conditions(nodes, fsync)
                systems = list(_started(plan, conditions, found, started))
                for size in plan.sizes if systems else ():
                    _measure(plan, systems, conditions, size, found)
    return found


def _started(
    plan: Plan, conditions: Conditions, found: Run, started: ExitStack
) -> Iterator[System]:
    for name in plan.systems:
        system = KINDS[name](nodes=conditions.nodes, fsync=conditions.fsync)
        try:
            started.enter_context(system)
        except NotInstalled as error:
            _leave_out(found, f"{name}, {conditions.title}: {error}")
            continue
        found.versions[name] = system.versions()
        _tried(system, "warming up", lambda one: _warm_up(one, plan), WARM_UP_BYTES, found)
        yield system


def _warm_up(system: System, plan: Plan) -> None:
    system.open_topic(plan.values(WARM_UP_BYTES))
    system.produce(WARM_UP_MESSAGES, plan.warm_up)
    system.consume(WARM_UP_MESSAGES, plan.warm_up / 2)
    system.lone(int(plan.warm_up * 200))
    system.drop_topic()


def _leave_out(found: Run, why: str) -> None:
    print(f"left out: {why}", file=sys.stderr, flush=True)
    if why not in found.left_out:
        found.left_out.append(why)


def _measure(
    plan: Plan, systems: list[System], conditions: Conditions, size: int, found: Run
) -> None:
    """All rounds at one size."""
    samples: dict[Cell, list[Sample]] = defaultdict(list)
    values = plan.values(size)
    tasks = [task for task in tasks_of(plan, conditions, size) if task.kind in plan.works]
    for number in range(plan.rounds):
        began = time.monotonic()
        first = number % len(systems)
        _run_round(tasks, systems[first:] + systems[:first], size, values, samples, found)
        print(
            f"{conditions.title}, {size} B: round {number + 1} of {plan.rounds}, "
            f"{time.monotonic() - began:.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    for cell, each in samples.items():
        if any(sample.messages for sample in each):
            found.figures[cell] = figure_of(each)


def tasks_of(plan: Plan, conditions: Conditions, size: int) -> Iterator[Task]:
    """In their order: what is consumed was produced before."""
    seconds = plan.seconds
    is_first_size = size == plan.sizes[0]
    for batch in plan.batches:
        yield Task("produce", batch, lambda system, n=batch: system.produce(n, seconds))
    for batch in plan.batches:
        yield Task("consume", batch, lambda system, n=batch: system.consume(n, seconds))
    laps = max(1, plan.laps // LONE_TURNS)
    yield Task("lone", 0, lambda system: system.lone(laps), turns=LONE_TURNS)
    yield Task("push", 0, lambda system: system.push(plan.laps))
    if is_first_size and conditions.nodes == 1:
        yield Task("clients", plan.clients, lambda system: system.clients(plan.clients, seconds))
        yield Task("groups", plan.groups, lambda system: system.groups(plan.groups, seconds))
    if is_first_size:
        yield from _own_tasks(plan)


def _own_tasks(plan: Plan) -> Iterator[Task]:
    seconds = plan.seconds

    def only(do: Callable[[Quiver], Sample]) -> Callable[[System], Sample]:
        def call(system: System) -> Sample:
            assert isinstance(system, Quiver)
            return do(system)

        return call

    for batch in plan.batches:
        yield Task("poll", batch, only(lambda ours, n=batch: ours.poll(n, seconds)), is_own=True)
    yield Task("default poll", 0, only(lambda ours: ours.consume_default(seconds)), is_own=True)
    yield Task(
        "arrow", ARROW_MESSAGES,
        only(lambda ours: ours.consume_arrow(ARROW_MESSAGES, seconds)), is_own=True,
    )  # fmt: skip
    for batch in STICKY_MESSAGES:
        yield Task(
            "sticky", batch, only(lambda ours, n=batch: ours.consume_sticky(n, seconds)),
            is_own=True,
        )  # fmt: skip
    yield Task("handler", 0, only(lambda ours: ours.handle(seconds)), is_own=True)


def _run_round(
    tasks: Sequence[Task], order: Sequence[System], size: int, values: Sequence[bytes],
    samples: dict[Cell, list[Sample]], found: Run,
) -> None:  # fmt: skip
    def open_topic(system: System) -> bool:
        system.open_topic(values)
        return True

    able = [system for system in order if _tried(system, "topic", open_topic, size, found)]
    for task in tasks:
        joined: dict[System, Sample] = {}
        for _ in range(task.turns):
            for system in able:
                if task.is_own and not isinstance(system, Quiver):
                    continue
                sample = _tried(system, task.work, task.do, size, found)
                if sample is not None:
                    before = joined.get(system)
                    joined[system] = sample if before is None else before.joined(sample)
        for system, sample in joined.items():
            cell = Cell(system.name, system.nodes, system.fsync, size, task.work, task.batch)
            samples[cell].append(sample)
    for system in able:
        _tried(system, "end", lambda one: one.drop_topic(), size, found)


def _tried(system: System, work: str, do: Callable[[System], T], size: int, found: Run) -> T | None:
    """A run of an hour does not end with one failure; it is told with the figures."""
    try:
        return do(system)
    except Exception as error:
        conditions = Conditions(system.nodes, system.fsync)
        _leave_out(found, f"{system.name}, {conditions.title}, {size} B, {work}: {error!r}")
        return None
