"""Stages the rows of a task attempt in a topic of the query, and returns their offsets.

Attempts share nothing: each stores under a producer of its own. If a task runs twice, or yields its
rows in another order, the extra rows are never published. The driver decides which attempt counts
(see `decisions`).
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

import quivermq
from quivermq.client import BatchReceipt
from quivermq.errors import TopicExists, TopicNotFound
from quivermq.spark.sink.destinations import Destination, Dispatcher
from quivermq.spark.sink.staged_runs import Run, Staged, TargetPartition, join_staged

STAGING_PARTITIONS: Final = 4
KEPT_SECONDS: Final = 7 * 24 * 3600
"""Staged rows of an abandoned query are dropped after this time."""
PUBLISHED_GROUP: Final = "_published"
"""Brokers drop messages below the offsets of this consumer group."""

LOAD_BYTES: Final = 8 << 20
"""When a task holds so many, destinations with a full batch are stored."""
HELD_BYTES_MAX: Final = 24 << 20
"""When a task holds so many, everything is stored."""
_BATCH_BYTES: Final = 1_000_000


def staging_topic(stage: str) -> str:
    """The topic for staged rows: one for each query, and one for each batch write."""
    return f"_spark.{stage}.staged"


def decisions_topic(query: str) -> str:
    """The topic for the decisions of a query."""
    return f"_spark.{query}"


@dataclass(slots=True)
class _PendingRows:
    """Rows that wait to be stored."""

    batches: list[Any] = field(default_factory=list)
    size: int = 0


class StagingWriter:
    """Stores the rows of one task attempt."""

    def __init__(self, client: quivermq.Client, stage: str, task: int) -> None:
        self._client = client
        self._topic = staging_topic(stage)
        self._task = task
        self._partition = 0
        self._waiting: dict[Destination, _PendingRows] = {}
        self._held = 0
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: tuple[list[TargetPartition], Future[list[list[BatchReceipt]]]] | None = (
            None
        )
        self._stored: list[Staged] = []

    def store(
        self, batches: Iterable[Any], dispatcher: Dispatcher
    ) -> dict[TargetPartition, tuple[Run, ...]]:
        """Store everything; returns the stored runs by target."""
        try:
            for batch in batches:
                for destination, messages in dispatcher.dispatch(batch):
                    rows = self._waiting.setdefault(destination, _PendingRows())
                    rows.batches.append(messages)
                    rows.size += messages.nbytes
                    self._held += messages.nbytes
                if self._held >= LOAD_BYTES:
                    self._flush(self._choose_due())
            self._flush(list(self._waiting))
            self._collect()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=True, cancel_futures=True)
        return join_staged(self._stored)

    def _choose_due(self) -> list[Destination]:
        """The destinations to store at this point: preferably those with full batches."""
        if self._held >= HELD_BYTES_MAX:
            return list(self._waiting)
        return [each for each, rows in self._waiting.items() if rows.size >= _BATCH_BYTES]

    def _flush(self, due: list[Destination]) -> None:
        """Store rows in the background, while the task gathers more."""
        if not due:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "staging")
            self._partition = self._task % self._partitions()
        self._collect()
        parts_due = [self._waiting.pop(destination) for destination in due]
        self._held -= sum(rows.size for rows in parts_due)
        parts = [
            (pa.Table.from_batches(rows.batches), destination.priority)
            for destination, rows in zip(due, parts_due, strict=True)
        ]
        future = self._thread.submit(
            self._client.produce_parts, self._topic, parts, partition=self._partition
        )
        self._under_way = [TargetPartition(each.topic, each.partition) for each in due], future

    def _collect(self) -> None:
        """Wait for the batches under way, and note their offsets."""
        if self._under_way is None:
            return
        targets, future = self._under_way
        self._under_way = None
        for target, receipts in zip(targets, future.result(), strict=True):
            runs = [Run(each.partition, each.first_offset, (each.count,)) for each in receipts]
            self._stored.append({target: tuple(runs)})

    def _partitions(self) -> int:
        """The number of staging partitions; the first task creates the topic."""
        try:
            return len(self._client.topic(self._topic).partitions)
        except TopicNotFound:
            pass
        retention = quivermq.Retention(max_age=KEPT_SECONDS, delete_acked=True)
        try:
            made = self._client.create_topic(
                self._topic, partitions=STAGING_PARTITIONS, retention=retention
            )
        except TopicExists:  # created by a release with other settings, at the same moment
            made = self._client.topic(self._topic)
        return len(made.partitions)


def partitions_of(client: quivermq.Client, topic: str) -> int:
    """The number of partitions of a topic; created if brokers create topics on first use."""
    try:
        return len(client.topic(topic).partitions)
    except TopicNotFound:
        client.produce_many(topic, [])
        return len(client.topic(topic).partitions)
