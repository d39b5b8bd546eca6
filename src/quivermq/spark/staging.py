"""Staging: a task attempt stores its rows where nobody reads them, and tells where they are.

Attempts share nothing: each stores under a producer of its own, so one that runs twice, or yields
its rows in another order, leaves rows that nobody publishes. Which attempt counts is decided by the
driver (see `decisions`).
"""

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
PUBLISHED_GROUP: Final = "_published"
"""The group whose offsets say what may be dropped."""

LOAD_BYTES: Final = 8 << 20
"""When a task holds so many, what is enough for a batch of its own is stored."""
HELD_BYTES_MAX: Final = 24 << 20
"""When a task holds so many, everything is stored."""
_BATCH_BYTES: Final = 1_000_000


def staging_topic(stage: str) -> str:
    """Where tasks stage: those of a query all in one, those of a batch write in one of its own."""
    return f"_spark.{stage}.staged"


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

    def __init__(self, client: quivermq.Client, stage: str, task: int) -> None:
        self._client = client
        self._topic = staging_topic(stage)
        self._task = task
        self._partition = 0
        self._waiting: dict[Destination, _Cargo] = {}
        self._held = 0
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: tuple[list[Target], Future[list[list[BatchReceipt]]]] | None = None
        self._stored: list[Staged] = []

    def store(
        self, batches: Iterable[Any], dispatcher: Dispatcher
    ) -> dict[Target, tuple[Run, ...]]:
        """Store everything; where it is, by where it is to go."""
        try:
            for batch in batches:
                for destination, messages in dispatcher.dispatch(batch):
                    cargo = self._waiting.setdefault(destination, _Cargo())
                    cargo.batches.append(messages)
                    cargo.size += messages.nbytes
                    self._held += messages.nbytes
                if self._held >= LOAD_BYTES:
                    self._ship(self._load())
            self._ship(list(self._waiting))
            self._settle()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)
        return joined(self._stored)

    def _load(self) -> list[Destination]:
        """What is to be stored at this point: best what makes full batches."""
        if self._held >= HELD_BYTES_MAX:
            return list(self._waiting)
        return [each for each, cargo in self._waiting.items() if cargo.size >= _BATCH_BYTES]

    def _ship(self, load: list[Destination]) -> None:
        """Store rows in the background, while the task gathers more."""
        if not load:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "staging")
            self._partition = self._task % self._partitions()
        self._settle()
        cargos = [self._waiting.pop(destination) for destination in load]
        self._held -= sum(cargo.size for cargo in cargos)
        parts = [
            (pa.Table.from_batches(cargo.batches), destination.priority)
            for destination, cargo in zip(load, cargos, strict=True)
        ]
        future = self._thread.submit(
            self._client.produce_parts, self._topic, parts, partition=self._partition
        )
        self._under_way = [Target(each.topic, each.partition) for each in load], future

    def _settle(self) -> None:
        """Wait for what is under way, and note where it is."""
        if self._under_way is None:
            return
        targets, future = self._under_way
        self._under_way = None
        for target, receipts in zip(targets, future.result(), strict=True):
            runs = [Run(each.partition, each.first_offset, (each.count,)) for each in receipts]
            self._stored.append({target: tuple(runs)})

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
