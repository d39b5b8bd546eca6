"""Writes Delta tables: tasks write files, and one commit of the driver adds them to the table.

A stream's commit carries (query, batch), a batch write's carries `txnAppId` and `txnVersion`; the
table takes each once. Tasks may run twice or in any order: only files that the driver names count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quivermq.errors import Fenced, InvalidRequest
from quivermq.lakehouse import DataFile, FileWriter
from quivermq.spark.checkpoints import check_plan, plan_of
from quivermq.spark.table_options import TableOptions, arrow_schema

if TYPE_CHECKING:
    from quivermq.lakehouse import Table

_COMMIT_ATTEMPTS: Final = 10
_QUERY_NOTE: Final = "quiver.query"
_BATCH_NOTE: Final = "quiver.batch"
_PLAN_NOTE: Final = "quiver.plan"


@dataclass
class FilesWritten(WriterCommitMessage):
    """The files that one task wrote."""

    files: list[DataFile]
    query_id: str | None = None


@dataclass(frozen=True, slots=True)
class TableTarget:
    """A table that files are written for."""

    root: Path
    schema: pa.Schema
    partition_by: tuple[str, ...]
    target_bytes: int

    @classmethod
    def prepare(
        cls,
        path: str,
        schema: pa.Schema,
        partition_by: Sequence[str] | None,
        target_bytes: int,
        properties: Mapping[str, str] | None = None,
    ) -> "TableTarget":
        """Create the table if it is missing, and check that the rows fit, before a job runs."""
        from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

        table = Table.find(path)
        if partition_by is None:
            partition_by = table.partition_by if table else ()
        table = Table.open_or_create(path, schema, partition_by, properties)
        # Files have the columns in the table's order, not in that of the rows.
        ordered = pa.schema([schema.field(name) for name in table.schema.names])
        return cls(table.root, ordered, tuple(partition_by), target_bytes)

    def files(self) -> FileWriter:
        return FileWriter(self.root, self.schema, self.partition_by, self.target_bytes)

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch's columns in the order of the table's."""
        return batch.select(self.schema.names)

    def commit(
        self,
        files: Sequence[DataFile],
        key: str | None,
        number: int,
        notes: Mapping[str, str] | None = None,
        *,
        replace: bool = False,
        on_repeat: Callable[["Table"], None] = lambda _: None,
    ) -> bool:
        """Commit once under this key and number; False if the table has that commit.

        Without a key, repeats are not recognised.
        """
        from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

        for attempt in range(_COMMIT_ATTEMPTS):
            table = Table.open(self.root)
            done = None if key is None else table.progress(key)
            if done is not None and done >= number:
                table.remove_loose(files)
                on_repeat(table)
                return False
            if attempt and files and table.names(files):
                # On some file systems a writer's own commit fails as if another writer had made it.
                return True
            try:
                progress = {} if key is None else {key: number}
                table.commit(files, progress, notes, replace=replace)
            except Fenced:
                if attempt == _COMMIT_ATTEMPTS - 1:
                    raise
            else:
                return True
        return False

    def remove_loose(self, files: Sequence[DataFile]) -> None:
        """Remove files of a write that failed, except those that are part of the table."""
        from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

        if files:
            Table.open(self.root).remove_loose(files)


def write_files(target: TableTarget, batches: Iterator[pa.RecordBatch]) -> list[DataFile]:
    """Write all batches of a task; leaves no file if the task fails."""
    writer = target.files()
    try:
        for batch in batches:
            writer.write(target.fit(batch))
        return writer.close()
    except BaseException:
        writer.discard()
        raise


class TableWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = TableOptions.parse(options)
        self._overwrite = overwrite
        self._target = _target(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        return FilesWritten(write_files(self._target, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        key, number = self._options.app_id, self._options.app_version or 0
        files = all_files(messages)
        if files or self._overwrite or self._options.app_id:
            self._target.commit(files, key, number, replace=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._target.remove_loose(all_files(messages))


class TableStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query's sink: append adds each batch, complete replaces the table by it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = TableOptions.parse(options)
        if self._options.app_id is not None:
            raise InvalidRequest("txnAppId is for batch writes: a stream has its query's id")
        self._location = options.get("checkpointLocation")
        self._overwrite = overwrite
        self._target = _target(self._options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesWritten:
        context = TaskContext.get()
        query_id = context.getLocalProperty("sql.streaming.queryId") if context else None
        return FilesWritten(write_files(self._target, iterator), query_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        files = all_files(messages)
        ids = {message.query_id for message in messages if isinstance(message, FilesWritten)}
        if not files and not (self._overwrite and ids):
            return
        (query_id,) = ids
        if query_id is None:
            raise InvalidRequest("Spark names no query for this batch: nothing is committed")
        notes = {_QUERY_NOTE: query_id, _BATCH_NOTE: str(batchId)}
        if (plan := plan_of(self._location, batchId)) is not None:
            notes[_PLAN_NOTE] = plan

        def check_repeat(table: "Table") -> None:
            """The table has the batch: check that it was the same one."""
            recorded = _recorded_plan(table, query_id, batchId)
            check_plan(self._location, batchId, recorded, f"the table {self._target.root}")

        key = stream_key(query_id)
        self._target.commit(
            files, key, batchId, notes, replace=self._overwrite, on_repeat=check_repeat
        )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        del batchId
        self._target.remove_loose(all_files(messages))


def stream_key(query_id: str) -> str:
    """The key under which a table records the last batch of a query."""
    return f"spark-query:{query_id}"


def _recorded_plan(table: "Table", query_id: str, batch: int) -> str | None:
    """The plan by which a batch was read, as its commit noted it."""
    for commit in table.history():
        if commit.get(_QUERY_NOTE) == query_id and commit.get(_BATCH_NOTE) == str(batch):
            plan = commit.get(_PLAN_NOTE)
            return plan if isinstance(plan, str) else None
    return None


def all_files(messages: Sequence[Any]) -> list[DataFile]:
    """The files of all tasks; a failed task sends no message."""
    return [
        file for message in messages if isinstance(message, FilesWritten) for file in message.files
    ]


def _target(options: TableOptions, schema: StructType) -> TableTarget:
    return TableTarget.prepare(
        options.path, arrow_schema(schema), options.partition_by, options.target_bytes
    )
