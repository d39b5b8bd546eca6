"""Archiving that goes on: a commit when enough has come, or when what came waits too long."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import quivermq
from quivermq.errors import QuiverError
from quivermq.lakehouse import Table, compact
from quivermq.lakehouse.data_files import TARGET_FILE_BYTES
from quivermq.lakehouse.upkeep import SMALL_FILES_MAX, small_files
from quivermq.spark.archiving import JOB_BYTES_MAX, Archive, Pending

FAILURES_MAX: Final = 5
_REMOVAL_SECONDS: Final = 3_600.0
_LOOKS_A_COMMIT_AGE: Final = 20
_LOOK_SECONDS: Final = (0.1, 5.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """When a commit is made."""

    size: int = TARGET_FILE_BYTES
    """So many bytes are enough."""
    age: float = 60.0
    """So many seconds are too long."""

    def is_due(self, pending: Pending, waited: float) -> bool:
        return not pending.range.is_empty and (pending.bytes >= self.size or waited >= self.age)

    @property
    def look_seconds(self) -> float:
        """How often to see what has come."""
        low, high = _LOOK_SECONDS
        return min(high, max(low, self.age / _LOOKS_A_COMMIT_AGE))


@dataclass(frozen=True, slots=True)
class Committed:
    """What one commit did."""

    table: Table
    pending: Pending
    seconds: float
    files: int
    """That the table has then."""
    left: int
    """Messages that the topic has beyond the table."""


class ArchiveLoop:
    """Commits ranges of one topic until it is stopped, or once through all that is there."""

    def __init__(
        self,
        spark: SparkSession,
        client: quivermq.Client,
        archive: Archive,
        pace: Pace,
        on_commit: Callable[[Committed], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
        small_files_max: int = SMALL_FILES_MAX,
    ) -> None:
        self._spark = spark
        self._client = client
        self._archive = archive
        self._pace = pace
        self._on_commit = on_commit
        self._on_trouble = on_trouble
        self._small_files_max = small_files_max
        self._removed = time.monotonic()

    def once(self) -> int:
        """Everything that the topic holds at this moment; returns how many commits that took."""
        self._begin()
        ends = {
            part.partition: part.end_offset
            for part in self._client.topic(self._archive.topic).partitions
        }
        commits = 0
        while True:
            pending = self._archive.pending(self._client, JOB_BYTES_MAX)
            if all(start >= ends.get(n, 0) for n, start in pending.range.starts.items()):
                return commits
            self._commit(pending)
            commits += 1

    def run(self, stop: threading.Event) -> None:
        """Until `stop`; a commit that is under way is finished."""
        self._begin()
        failures, since = 0, None
        while not stop.is_set():
            try:
                pending = self._archive.pending(self._client, JOB_BYTES_MAX)
                if pending.range.is_empty:
                    since = None
                else:
                    since = since or time.monotonic()
                    if self._pace.is_due(pending, time.monotonic() - since):
                        self._commit(pending)
                        since = None
                        failures = 0
                        continue
                failures = 0
            except (QuiverError, PySparkException) as error:
                failures += 1
                is_final = isinstance(error, QuiverError) and not error.retriable
                if is_final or failures >= FAILURES_MAX:
                    raise
                self._on_trouble(str(error))
            stop.wait(self._pace.look_seconds)

    def _begin(self) -> None:
        """Whoever was here before may have died between a commit and telling the brokers."""
        table = Table.find(self._archive.path)
        if table is not None:
            self._archive.tell(self._client, table)

    def _commit(self, pending: Pending) -> None:
        began = time.monotonic()
        topic_id = self._client.topic(self._archive.topic).id
        table = self._archive.write(self._spark, topic_id, pending)
        self._archive.tell(self._client, table)
        table = self._tidy(table)
        seconds = time.monotonic() - began
        ends = self._client.topic(self._archive.topic).partitions
        held = table.ends(self._archive.topic)
        left = sum(part.end_offset - held.get(part.partition, 0) for part in ends)
        files = len(table.file_paths())
        self._on_commit(Committed(table, pending, seconds, files, left))

    def _tidy(self, table: Table) -> Table:
        """No storm of small files: when there are many, they become few."""
        paths = [self._archive.path]
        if self._archive.payload:
            paths.append(self._archive.payload.quarantine)
        for path in paths:
            found = Table.find(path)
            if found and small_files(found, self._archive.target_bytes) > self._small_files_max:
                remove = time.monotonic() - self._removed >= _REMOVAL_SECONDS
                compact(path, self._archive.target_bytes, remove=remove)
                if remove:
                    self._removed = time.monotonic()
        return Table.open(table.root)
