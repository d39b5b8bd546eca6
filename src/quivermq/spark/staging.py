"""Staging: a task attempt stores its rows where nobody reads them, and tells where they are.

Attempts share nothing: each stores under a producer of its own, so one that runs twice, or yields
its rows in another order, leaves rows that nobody publishes. Which attempt counts is decided by the
driver (see `decisions`).
"""

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

import quivermq
from quivermq.client import BatchReceipt
from quivermq.errors import TopicExists, TopicNotFound
from quivermq.spark.destinations import Destination, Dispatcher
from quivermq.spark.staged_runs import Run, Staged, Target, joined

STAGING_PARTITIONS: Final = 4
KEPT_SECONDS: Final = 7 * 24 * 3600
"""What a query that was given up left is dropped after this."""
PUBLISHED_GROUP: Final = "published"
"""The group whose offsets say what may be dropped."""

CARGO_BYTES: Final = 4 << 20
"""Rows for one place are stored when there are so many: some batches, under way together."""
HELD_BYTES_MAX: Final = 32 << 20
"""Rows for all places that one task holds; more, and the largest cargo goes."""
_UNDER_WAY_MAX: Final = 2
"""Cargos under way while the task gathers more."""


def staging_topic(query: str) -> str:
    """Where the tasks of a query stage."""
    return f"_spark.{query}.staged"


def decisions_topic(query: str) -> str:
    """Where the drivers of a query decide."""
    return f"_spark.{query}"


@dataclass(slots=True)
class _Cargo:
    """Rows that wait to be stored."""

    batches: list[Any] = field(default_factory=list)
    size: int = 0


class Stage:
    """What one task attempt stores."""

    def __init__(self, client: quivermq.Client, query: str, task: int) -> None:
        self._client = client
        self._topic = staging_topic(query)
        self._task = task
        self._partition: int | None = None
        self._waiting: dict[Destination, _Cargo] = {}
        self._held = 0
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Destination, Future[list[BatchReceipt]]]] = deque()
        self._stored: list[Staged] = []

    def store(
        self, batches: Iterable[Any], dispatcher: Dispatcher
    ) -> dict[Target, tuple[Run, ...]]:
        """Store everything; where it is, by where it is to go."""
        try:
            for batch in batches:
                for destination, messages in dispatcher.dispatch(batch):
                    self._add(destination, messages)
            while self._waiting:
                self._ship(next(iter(self._waiting)))
            while self._under_way:
                self._settle()
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=True, cancel_futures=True)
        return joined(self._stored)

    def _add(self, destination: Destination, messages: Any) -> None:
        cargo = self._waiting.setdefault(destination, _Cargo())
        cargo.batches.append(messages)
        cargo.size += messages.nbytes
        self._held += messages.nbytes
        if cargo.size >= CARGO_BYTES:
            self._ship(destination)
        elif self._held > HELD_BYTES_MAX:
            self._ship(max(self._waiting, key=lambda each: self._waiting[each].size))

    def _ship(self, destination: Destination) -> None:
        cargo = self._waiting.pop(destination)
        self._held -= cargo.size
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_UNDER_WAY_MAX, "staging")
            self._partition = self._task % self._partitions()
        while len(self._under_way) >= _UNDER_WAY_MAX:
            self._settle()
        future = self._threads.submit(
            self._client.produce_many,
            self._topic,
            pa.Table.from_batches(cargo.batches),
            priority=destination.priority,
            partition=self._partition,
        )
        self._under_way.append((destination, future))

    def _settle(self) -> None:
        destination, future = self._under_way.popleft()
        runs = [Run(each.partition, each.first_offset, (each.count,)) for each in future.result()]
        self._stored.append({Target(destination.topic, destination.partition): tuple(runs)})

    def _partitions(self) -> int:
        """How many there are to stage in; the first task of all makes the topic."""
        try:
            return len(self._client.topic(self._topic).partitions)
        except TopicNotFound:
            pass
        retention = quivermq.Retention(max_age=KEPT_SECONDS, delete_acked=True)
        try:
            made = self._client.create_topic(
                self._topic, partitions=STAGING_PARTITIONS, retention=retention
            )
        except TopicExists:  # made by a release with other settings, at the same moment
            made = self._client.topic(self._topic)
        return len(made.partitions)


def partitions_of(client: quivermq.Client, topic: str) -> int:
    """How many partitions a target has; it is made, where brokers make topics on first use."""
    try:
        return len(client.topic(topic).partitions)
    except TopicNotFound:
        client.produce_many(topic, [])
        return len(client.topic(topic).partitions)
