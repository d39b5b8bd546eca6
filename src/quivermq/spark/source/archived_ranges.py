"""Reads from a topic's archive table the messages that the log has dropped.

The log serves the messages that it holds. The table serves those below the log's start, if it
reaches up to there without a gap; so every message comes from exactly one of them. The table's
version is fixed when a read is planned: compaction and later commits do not change the read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quivermq.client import TopicOffsets
from quivermq.errors import Corrupt, InvalidRequest, OffsetOutOfRange
from quivermq.spark.source.columns import MESSAGE_COLUMNS
from quivermq.spark.source.ranges import TopicRange

_BATCH_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True)
class ArchivedRange(TopicRange):
    """Messages of one partition that the table serves."""

    archive: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedOffsets(TopicOffsets):
    """The offsets that a topic and its table hold together."""

    archive: str = ""
    version: int = 0
    log_starts: dict[int, int] = field(default_factory=dict)
    gaps: dict[int, int] = field(default_factory=dict)
    """By partition, the end of a table that ends below the log's start, and cannot be used."""

    def gap_at(self, partition: int) -> OffsetOutOfRange | None:
        """The error for a read from the beginning, which would skip messages silently."""
        if partition not in self.gaps:
            return None
        end, start = self.gaps[partition], self.log_starts[partition]
        return OffsetOutOfRange(
            f"{self.topic}/{partition}: the table {self.archive} ends at {end}, and the log begins "
            f"at {start}: offsets {end} to {start - 1} are lost, and what the table holds below "
            f"them cannot be read together with the log. To read from {start} on, name it in "
            "startingOffsets, or set the option failOnDataLoss to false; read the table by itself",
            earliest=start,
            end=self.partitions[partition].end,
        )

    def first_at(self, partition: int, moment_ms: int) -> int | None:
        """The first message of this time or later that only the table holds."""
        stop = self.log_starts.get(partition, 0)
        start = self.partitions[partition].start
        if start >= stop:
            return None
        whole = ArchivedRange(self.topic, self.id, partition, start, stop, self.archive)
        wanted = _with_files_for(whole, _files(self.archive, self.version))
        firsts = []
        for batch in _scan_files(wanted, ["offset"], moment_ms):
            firsts += batch.column("offset").to_pylist()
        return min(firsts, default=None)


def with_archive(archive: str, held: TopicOffsets, *, is_only_topic: bool) -> TopicOffsets:
    """Extend the offsets of a topic by those that its table holds below them."""
    from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(archive)
    if table.topic != held.topic and not is_only_topic:
        return held
    table.check_topic(held.topic, held.id)
    _check_columns(table)
    firsts, ends = table.firsts(held.topic), table.ends(held.topic)
    partitions = dict(held.partitions)
    log_starts, gaps = {}, {}
    for number, place in held.partitions.items():
        log_starts[number] = place.start
        first, end = firsts.get(number, place.start), ends.get(number, 0)
        if first < place.start <= end:
            partitions[number] = place._replace(start=first)
        elif first < end < place.start:
            gaps[number] = end
    return ArchivedOffsets(
        held.topic, held.id, partitions, archive, table.version, log_starts, gaps
    )


def split_at_log_start(ranges: Iterable[TopicRange], held: TopicOffsets) -> Iterator[TopicRange]:
    """Split each range at the start of the log."""
    for each in ranges:
        if not isinstance(held, ArchivedOffsets):
            yield each
            continue
        edge = min(max(held.log_starts.get(each.partition, 0), each.start), each.stop)
        if each.start < edge:
            yield ArchivedRange(
                each.topic, each.topic_id, each.partition, each.start, edge, held.archive
            )
        if edge < each.stop:
            yield replace(each, start=edge)


def with_files(
    ranges: Iterable[TopicRange], held: Mapping[str, TopicOffsets]
) -> Iterator[TopicRange]:
    """Add to the ranges of a table the files that may hold their messages."""
    files: dict[str, list[_File]] = {}
    for each in ranges:
        topic = held[each.topic]
        if isinstance(each, ArchivedRange) and isinstance(topic, ArchivedOffsets):
            if each.topic not in files:
                files[each.topic] = _files(topic.archive, topic.version)
            yield _with_files_for(each, files[each.topic])
        else:
            yield each


def archived_fallback(archive: str, lost: TopicRange, earliest: int) -> ArchivedRange | None:
    """The range of the table for messages that the log dropped during a read, if it has them."""
    from quivermq.lakehouse import Table  # noqa: PLC0415  (rarely needed)

    table = Table.find(archive)
    stop = min(earliest, lost.stop)
    if (
        table is None
        or table.topic != lost.topic
        or table.topic_id != lost.topic_id
        or table.firsts(lost.topic).get(lost.partition, stop) > lost.start
        or table.ends(lost.topic).get(lost.partition, 0) < stop
    ):
        return None
    whole = ArchivedRange(lost.topic, lost.topic_id, lost.partition, lost.start, stop, archive)
    return _with_files_for(whole, _files(archive, table.version))


def archived_batches(wanted: ArchivedRange, schema: StructType) -> Iterator[pa.RecordBatch]:
    """In a task: the messages of a range in Spark's schema. Raises `Corrupt` if one is missing."""
    shape = to_arrow_schema(schema, timezone="UTC")
    found = 0
    for batch in _scan_files(wanted, shape.names):
        found += batch.num_rows
        columns = [batch.column(each.name).cast(each.type) for each in shape]
        yield pa.record_batch(columns, schema=shape)
    if found != wanted.rows:
        raise Corrupt(
            f"the table {wanted.archive} was to hold {wanted.rows} messages of {wanted}, and "
            f"{found} are there"
        )


@dataclass(frozen=True, slots=True)
class _File:
    """A file, and the bounds of its partitions and offsets; None: not known."""

    path: str
    partitions: tuple[int | None, int | None]
    offsets: tuple[int | None, int | None]


def _files(archive: str, version: int) -> list[_File]:
    """The files of a table, by their first offset."""
    from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(archive, version)
    facts = table.file_facts("min.partition", "max.partition", "min.offset", "max.offset")
    found = [
        _File(
            path,
            (row.get("min.partition"), row.get("max.partition")),
            (row.get("min.offset"), row.get("max.offset")),
        )
        for path, row in zip(table.file_paths(), facts, strict=True)
    ]
    return sorted(found, key=lambda file: (file.offsets[0] or 0, file.path))


def _with_files_for(wanted: ArchivedRange, files: Sequence[_File]) -> ArchivedRange:
    """Add to a range the files that may hold some of it."""
    paths = tuple(
        file.path
        for file in files
        if _overlap(file.partitions, wanted.partition, wanted.partition)
        and _overlap(file.offsets, wanted.start, wanted.stop - 1)
    )
    return replace(wanted, files=paths)


def _overlap(bounds: tuple[int | None, int | None], first: int, last: int) -> bool:
    low, high = bounds
    return low is None or high is None or (low <= last and high >= first)


def _scan_files(
    wanted: ArchivedRange, columns: Sequence[str], since_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds  # noqa: PLC0415  (takes a while to load)

    if not wanted.files:
        return
    mine = ds.field("partition") == wanted.partition
    mine &= (ds.field("offset") >= wanted.start) & (ds.field("offset") < wanted.stop)
    if since_ms is not None:
        mine &= ds.field("timestamp") >= pa.scalar(since_ms * 1_000, pa.timestamp("us", tz="UTC"))
    for path in wanted.files:
        file = ds.dataset(path, format="parquet")
        for batch in file.to_batches(columns=list(columns), filter=mine, batch_size=_BATCH_ROWS):
            if batch.num_rows:
                yield batch


def _check_columns(table: Any) -> None:
    missing = [name for name in MESSAGE_COLUMNS if name not in table.schema.names]
    if missing:
        raise InvalidRequest(
            f"the table {table.root} lacks the columns {', '.join(missing)}: only an archive of "
            "whole messages (without --json-columns) can stand in for the log"
        )
