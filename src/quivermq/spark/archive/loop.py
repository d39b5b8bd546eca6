"""Archives a topic continuously: commits when enough messages wait, or when they wait too long."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import quivermq
from quivermq.errors import Fenced, QuiverError, StorageFailed
from quivermq.lakehouse import SMALL_FILES_MAX, TARGET_FILE_BYTES, Table, compact, small_files
from quivermq.spark.archive.archive import JOB_BYTES_MAX, Archive, PendingRange
from quivermq.spark.failures import may_pass
from quivermq.spark.setup.sessions import has_ended

PAUSE_SECONDS_MAX: Final = 60.0
"""The longest wait before the loop retries after failures."""
_REMOVAL_SECONDS: Final = 3_600.0
_POLLS_PER_COMMIT_AGE: Final = 20
_POLL_SECONDS: Final = (0.1, 5.0)


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    """When a commit is due."""

    size: int = TARGET_FILE_BYTES
    """In bytes."""
    age: float = 60.0
    """In seconds."""

    def is_due(self, pending: PendingRange, waited: float) -> bool:
        return not pending.range.is_empty and (pending.bytes >= self.size or waited >= self.age)

    @property
    def poll_seconds(self) -> float:
        """How often to look for messages."""
        low, high = _POLL_SECONDS
        return min(high, max(low, self.age / _POLLS_PER_COMMIT_AGE))


@dataclass(frozen=True, slots=True)
class CommitSummary:
    """The result of one commit."""

    table: Table
    pending: PendingRange
    seconds: float
    files: int
    """Files of the table after the commit."""
    left: int | None
    """Messages that the topic has beyond the table."""


class ArchiveLoop:
    """Commits ranges of one topic until it is stopped, or once through all that is there."""

    def __init__(
        self,
        spark: SparkSession,
        client: quivermq.Client,
        archive: Archive,
        policy: CommitPolicy,
        on_commit: Callable[[CommitSummary], None] = lambda _: None,
        on_trouble: Callable[[str], None] = lambda _: None,
        small_files_max: int = SMALL_FILES_MAX,
    ) -> None:
        self._spark = spark
        self._client = client
        self._archive = archive
        self._policy = policy
        self._on_commit = on_commit
        self._on_trouble = on_trouble
        self._small_files_max = small_files_max
        self._removed = time.monotonic()
        self._table_id: str | None = None

    def run_once(self) -> int:
        """Archive everything that the topic holds at this moment; returns the number of commits."""
        self._begin()
        held = self._client.offsets(self._archive.topic).partitions
        ends = {number: place.end for number, place in held.items()}
        commits = 0
        while True:
            pending = self._archive.pending(self._client, JOB_BYTES_MAX)
            if all(start >= ends.get(n, 0) for n, start in pending.range.starts.items()):
                return commits
            try:
                self._commit(pending)
            except PySparkException as error:
                if not _is_overtaken(error):
                    raise
                # The next range begins behind the removed messages, or raises.
                continue
            commits += 1

    def run(self, stop: threading.Event) -> None:
        """Archive until `stop` is set; a commit under way is finished."""
        is_begun, failures, since = False, 0, None
        while not stop.is_set():
            try:
                if not is_begun:
                    self._begin()
                    is_begun = True
                since, pause = self._commit_if_due(since)
                failures = 0
            except (QuiverError, PySparkException, Py4JError, DeltaError, OSError) as error:
                self._check_spark(error)
                if not may_retry(error):
                    raise
                self._on_trouble(str(error))
                failures += 1
                pause = min(PAUSE_SECONDS_MAX, self._policy.poll_seconds * 2 ** min(failures, 10))
            stop.wait(pause)

    def _commit_if_due(self, since: float | None) -> tuple[float | None, float]:
        """Commit if it is due; returns since when messages wait, and how long to pause."""
        if not self._archive.may_have_more(self._client):
            return None, self._policy.poll_seconds
        pending = self._archive.pending(self._client, JOB_BYTES_MAX)
        if pending.range.is_empty:
            return None, self._policy.poll_seconds
        since = since or time.monotonic()
        if not self._policy.is_due(pending, time.monotonic() - since):
            return since, self._policy.poll_seconds
        self._commit(pending)
        return None, 0.0

    def _begin(self) -> None:
        """Commit the table's offsets: a process before may have died between the two commits."""
        table = Table.find(self._archive.path)
        if table is not None:
            self._archive.commit_progress(self._client, table)

    def _check_table(self) -> None:
        """Raise if the table was replaced: a folder that is not mounted must not become another."""
        table = Table.find(self._archive.path)
        if self._table_id is not None and (table is None or table.id != self._table_id):
            raise StorageFailed(
                f"the table {self._archive.path} is gone, or another one is in its place: is its "
                "file system mounted? If it was removed on purpose, start the archive again"
            )
        self._table_id = table.id if table else None

    def _check_spark(self, error: Exception) -> None:
        """Raise `QuiverError` if Spark has ended: retries cannot succeed then."""
        if isinstance(error, (Py4JError, OSError)) and has_ended(self._spark):
            raise QuiverError(
                "Spark has ended unexpectedly: was it killed? Start the archive again: it "
                "continues where the table ends"
            ) from error

    def _commit(self, pending: PendingRange) -> None:
        if pending.range.is_empty:
            return
        began = time.monotonic()
        self._check_table()
        table = self._archive.write(self._spark, pending)
        self._table_id = table.id
        self._archive.commit_progress(self._client, table)
        table = self._compact(table)
        seconds = time.monotonic() - began
        ends = self._client.topic(self._archive.topic).partitions
        held = table.ends(self._archive.topic)
        behind = [
            None if part.end_offset is None else part.end_offset - held.get(part.partition, 0)
            for part in ends
        ]
        left = None if None in behind else sum(max(0, each or 0) for each in behind)
        files = len(table.file_paths())
        self._on_commit(CommitSummary(table, pending, seconds, files, left))

    def _compact(self, table: Table) -> Table:
        """Compact the tables if a folder has too many small files."""
        paths = [self._archive.path]
        if self._archive.payload:
            paths.append(self._archive.payload.quarantine)
        try:
            for path in paths:
                found = Table.find(path)
                if found and small_files(found, self._archive.target_bytes) > self._small_files_max:
                    remove = time.monotonic() - self._removed >= _REMOVAL_SECONDS
                    compact(path, self._archive.target_bytes, remove=remove)
                    if remove:
                        self._removed = time.monotonic()
            return Table.open(table.root)
        except (QuiverError, DeltaError, OSError) as error:
            # The messages are committed; the next commit tries again to compact.
            self._on_trouble(f"{table.root} could not be compacted: {error}")
            return table


def may_retry(error: Exception) -> bool:
    """Whether a retry may succeed."""
    if isinstance(error, QuiverError):
        return error.retriable or isinstance(error, (Fenced, StorageFailed))
    if isinstance(error, (PySparkException, Py4JError)):
        return may_pass(str(error)) or _is_overtaken(error)
    return True


def _is_overtaken(error: Exception) -> bool:
    """Whether retention removed messages after the job was planned."""
    return "quivermq.errors.OffsetOutOfRange: " in str(error)
