"""Writes DataFrames to topics: the writers that Spark calls in its tasks and in its driver.

    tasks       `write` stages rows (`staging`), each attempt for itself
    driver      `commit` decides which rows count (`decisions`) and publishes them (`publishing`)

Batch writes without `txnAppId` are published without a decision: they cannot be repeated.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quivermq.errors import InvalidRequest, QuiverError, TopicNotFound
from quivermq.spark.connections import client_of
from quivermq.spark.sink.columns import MessageColumns
from quivermq.spark.sink.staged_runs import Run, TargetPartition, join_staged

if TYPE_CHECKING:
    from quivermq.spark.sink.publishing import BatchCommitter

_VERSION_MAX: Final = (1 << 63) - 1

_checked: set[tuple[str, str]] = set()
"""Servers and topics that this process has checked."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one task attempt staged."""

    query: str
    staged: dict[TargetPartition, tuple[Run, ...]]


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query that writes to topics, exactly once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        del overwrite  # set for the output mode "complete": every result is appended
        self._options = _lower_names(options)
        self._columns = MessageColumns.of(schema, options.get("topic") or None)
        _check_target(self._options)

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context else None
        if query is None:
            raise InvalidRequest("a streaming query writes from tasks of Spark only")
        return _stage_rows(self._options, self._columns, query, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        found = [each for each in messages if isinstance(each, StagedRows)]
        if found:
            self.committer(found[0].query).commit(batchId, [each.staged for each in found])

    def committer(self, query: str) -> "BatchCommitter":
        """The committer of a query's batches."""
        from quivermq.spark.sink.publishing import BatchCommitter  # noqa: PLC0415

        location = self._options.get("checkpointlocation")
        return BatchCommitter(client_of(self._options), query, location)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: staged rows without a decision are dropped with the next batch."""
        del messages, batchId


class TopicWriter(DataSourceArrowWriter):
    """A DataFrame that is written to topics."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest(
                'topics can be appended to only: use .mode("append"). To begin anew, delete the '
                "topic and create it again"
            )
        self._options = _lower_names(options)
        self._columns = MessageColumns.of(schema, options.get("topic") or None)
        self._query, self._version = _identity(options)
        # Each write has a staging topic of its own, which is deleted when the write is done.
        self._stage = self._query if self._version is None else f"{self._query}.{self._version}"
        _check_target(self._options)

    def write(self, iterator: Iterator[Any]) -> StagedRows:
        return _stage_rows(self._options, self._columns, self._stage, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = [each for each in messages if isinstance(each, StagedRows)]
        if self._version is None:
            self._publish_once(found)
        elif found:
            from quivermq.spark.sink.publishing import BatchCommitter  # noqa: PLC0415

            committer = BatchCommitter(client_of(self._options), self._query, None)
            committer.commit(self._version, [each.staged for each in found], self._stage)
            self._delete_staging_topic()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        del messages  # failed tasks send none, so the whole staging topic is deleted
        if self._version is None:
            self._delete_staging_topic()

    def _publish_once(self, found: Sequence[StagedRows]) -> None:
        from quivermq.spark.sink.publishing import publish_once  # noqa: PLC0415

        staged = join_staged(each.staged for each in found)
        if staged:
            publish_once(client_of(self._options), self._stage, staged)
            self._delete_staging_topic()

    def _delete_staging_topic(self) -> None:
        from quivermq.spark.sink.staging import staging_topic  # noqa: PLC0415

        with suppress(TopicNotFound):
            client_of(self._options).delete_topic(staging_topic(self._stage))


def _stage_rows(
    options: Mapping[str, str], columns: MessageColumns, query: str, rows: Iterator[Any]
) -> StagedRows:
    from quivermq.spark.sink.destinations import Dispatcher  # noqa: PLC0415
    from quivermq.spark.sink.staging import StagingWriter, partitions_of  # noqa: PLC0415

    client = client_of(options)
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    dispatcher = Dispatcher(columns, lambda topic: partitions_of(client, topic), task)
    return StagedRows(query, StagingWriter(client, query, task).store(rows, dispatcher))


def _check_target(options: Mapping[str, str]) -> None:
    """Check the brokers and the topic once, before every attempt of every task does."""
    from quivermq.spark.sink.staging import partitions_of  # noqa: PLC0415

    target = (options.get("servers") or "", options.get("topic") or "")
    if target not in _checked:
        client = client_of(options)
        if target[1]:
            try:
                partitions_of(client, target[1])
            except QuiverError as error:
                # Spark prints the traceback before the error; this error needs none.
                raise error.with_traceback(None) from None
        _checked.add(target)


def _lower_names(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _identity(options: Mapping[str, str]) -> tuple[str, int | None]:
    """The application and the version of a write; None if it cannot be repeated."""
    application, version = options.get("txnAppId"), options.get("txnVersion")
    if application is None and version is None:
        return secrets.token_hex(12), None
    if not application or version is None:
        raise InvalidRequest("the options txnAppId and txnVersion belong together: set both")
    if not version.isdecimal() or int(version) > _VERSION_MAX:
        raise InvalidRequest(f"option txnVersion must be a whole number from 0 up: {version!r}")
    # Writes of one application to several topics are different writes.
    text = f"{application}\n{options.get('topic') or ''}"
    return f"app-{blake2b(text.encode(), digest_size=12).hexdigest()}", int(version)
