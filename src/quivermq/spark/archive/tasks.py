"""Archives whole messages: tasks read from brokers and write files, without rows in the JVM.

Spark schedules and retries the tasks. Each yields one row that names its files. Converting messages
to rows of the JVM and back costs many times more; only values that are parsed go that way.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructField, StructType

from quivermq.lakehouse import DataFile
from quivermq.spark.archive.writer import ArchiveWriter, RangeWritten
from quivermq.spark.source.columns import MESSAGE_COLUMNS, column_types
from quivermq.spark.source.options import CONNECTION, ReadOptions
from quivermq.spark.source.ranges import TopicRange
from quivermq.spark.source.task_reader import read_batches

WRITTEN_COLUMNS: Final = "messages bigint, files string"
"""The columns of the row that a task yields."""
TASKS: Final = "archiveTasks"


def read_schema() -> StructType:
    """The columns that are read; the writer adds the topic and the day."""
    types = column_types()
    return StructType(
        [StructField(name, types[name]) for name in MESSAGE_COLUMNS if name != "topic"]
    )


@dataclass(frozen=True, slots=True)
class ArchiveTask(InputPartition):
    """The ranges that one task archives."""

    ranges: tuple[TopicRange, ...]


class ArchiveFilesReader(DataSourceReader):
    """Reads a range of a topic into files of its table."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        del schema  # it is `WRITTEN_COLUMNS`
        self._writer = ArchiveWriter(options, read_schema(), overwrite=False)
        wanted = self._writer.range
        self._tasks = split_into_tasks(
            [
                TopicRange(wanted.topic, options["topicId"], number, start, wanted.ends[number])
                for number, start in sorted(wanted.starts.items())
            ],
            int(options[TASKS]),
        )
        connection = {name: options[name] for name in CONNECTION if options.get(name)}
        self._options = ReadOptions.of({**connection, "subscribe": wanted.topic}, is_stream=False)

    def partitions(self) -> list[InputPartition]:
        return list(self._tasks)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        written = self._writer.write(self._batches(partition.ranges))
        files = json.dumps([asdict(file) for file in written.files])
        columns = [pa.array([written.messages], pa.int64()), pa.array([files], pa.string())]
        yield pa.record_batch(columns, names=["messages", "files"])

    def _batches(self, ranges: Iterable[TopicRange]) -> Iterator[pa.RecordBatch]:
        schema = read_schema()
        return chain.from_iterable(read_batches(each, self._options, schema) for each in ranges)


def decode_written(rows: Iterable[Any]) -> list[RangeWritten]:
    """Decode the rows that the tasks of a job yielded."""
    return [
        RangeWritten(row["messages"], [DataFile(**file) for file in json.loads(row["files"])])
        for row in rows
    ]


def split_into_tasks(ranges: Sequence[TopicRange], tasks: int) -> list[ArchiveTask]:
    """Split ranges into so many tasks of about as many messages each."""
    left = [each for each in ranges if each.rows > 0]
    share = max(1, -(-sum(each.rows for each in left) // max(1, tasks)))
    found: list[ArchiveTask] = []
    taken: list[TopicRange] = []
    room = share
    for each in left:
        rest = each
        while rest.rows > 0:
            part = replace(rest, stop=min(rest.stop, rest.start + room))
            taken.append(part)
            rest, room = replace(rest, start=part.stop), room - part.rows
            if not room:
                found.append(ArchiveTask(tuple(taken)))
                taken, room = [], share
    return [*found, ArchiveTask(tuple(taken))] if taken else found
