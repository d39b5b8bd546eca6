"""Writes one range of a topic to its archive table, and rows that cannot be parsed to a quarantine.

The table holds the archive's only state. A range is committed if the table ends where the range
starts, and no row of it is missing; otherwise nothing is committed. The quarantine is committed
first: if the driver dies between the two commits, the range is archived again, and the quarantine
takes only the offsets for which it has no row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quivermq.errors import BrokenInvariant, Fenced, InvalidRequest
from quivermq.lakehouse import (
    ARCHIVE_PROPERTY,
    TOPIC_ID_PROPERTY,
    TOPIC_PROPERTY,
    ArchiveRange,
    DataFile,
    recreated_error,
)
from quivermq.spark.connections import client_of
from quivermq.spark.source.columns import MESSAGE_COLUMNS
from quivermq.spark.source.options import CONNECTION
from quivermq.spark.table_options import TableOptions, arrow_schema
from quivermq.spark.table_writer import TableTarget

if TYPE_CHECKING:
    from quivermq.lakehouse import Table

REASON = "reason"
DATE = "date"


@dataclass
class RangeWritten(WriterCommitMessage):
    """The files that one task wrote, and the number of messages that it was given."""

    messages: int
    files: list[DataFile]
    bad_files: list[DataFile] = field(default_factory=list)


class ArchiveWriter(DataSourceArrowWriter):
    """Writes one range; rows with a reason go to the quarantine."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest("an archive only adds: mode must be append")
        common = TableOptions.parse(options)
        self.range = ArchiveRange.decode(options["archiveRange"])
        columns = _with_constants(arrow_schema(schema))
        properties = {
            TOPIC_PROPERTY: self.range.topic,
            TOPIC_ID_PROPERTY: options.get("topicId", ""),
        }
        self._connection = {name: options[name] for name in CONNECTION if name in options}
        self._topic_id = properties[TOPIC_ID_PROPERTY]
        self._bad: TableTarget | None = None
        self._bad_ends: dict[int, int] = {}
        self._bad_held: dict[int, pa.Array] = {}
        is_parsed = REASON in columns.names
        path = options.get("quarantine")
        kept = columns
        if is_parsed:
            if not path:
                raise InvalidRequest("rows that may not parse need the option quarantine")
            from quivermq.lakehouse import check_apart  # noqa: PLC0415  (only the driver needs it)

            check_apart(common.path, path)
            kept = _select(columns, [n for n in columns.names if n not in {REASON, "value"}])
        self._good = TableTarget.prepare(common.path, kept, [DATE], common.target_bytes, properties)
        good_id = _open_checked(self._good, self.range, properties).id
        if is_parsed and path:
            bad = _select(columns, [*MESSAGE_COLUMNS, REASON, DATE])
            own = {**properties, ARCHIVE_PROPERTY: good_id}
            self._bad = TableTarget.prepare(path, bad, [DATE], common.target_bytes, own)
            self._read_quarantine(_open_checked(self._bad, self.range, own), good_id)

    def _read_quarantine(self, table: "Table", good_id: str) -> None:
        """Find the offsets that it holds: a driver may have died between the two commits."""
        if table.archive_id not in {None, good_id}:
            raise InvalidRequest(
                f"{table.root} is the quarantine of another archive: rows that are bad here may "
                "be good there. Name another folder: --quarantine"
            )
        self._bad_ends = table.ends(self.range.topic)
        for number, end in self._bad_ends.items():
            start = self.range.starts.get(number, end)
            if end > start:
                self._bad_held[number] = table.offsets_in(number, start, end)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RangeWritten:
        good = self._good.files()
        bad = self._bad.files() if self._bad else None
        messages = 0
        try:
            for given in iterator:
                batch = self._add_topic_and_date(given)
                messages += batch.num_rows
                if self._bad is None or bad is None:
                    good.write(self._good.fit(batch))
                    continue
                is_bad = pc.is_valid(batch.column(REASON))
                good.write(self._good.fit(batch.filter(pc.invert(is_bad))))
                bad.write(self._drop_held(self._bad.fit(batch.filter(is_bad))))
            return RangeWritten(messages, good.close(), bad.close() if bad else [])
        except BaseException:
            good.discard()
            if bad:
                bad.discard()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, RangeWritten)]
        found = sum(message.messages for message in written)
        if found != self.range.count:
            self.abort(messages)
            raise BrokenInvariant(
                f"{self.range.count} messages of {self.range.topic} were to be archived, and "
                f"{found} came: nothing is committed"
            )
        self._check_life()
        bad_files = [file for message in written for file in message.bad_files]
        try:
            if self._bad and bad_files:
                self.commit_bad(bad_files)
            self.commit_good([file for message in written for file in message.files])
        except Fenced:
            self.abort(messages)
            raise

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        # Some files may be part of the tables: the job may have failed after a commit.
        written = [message for message in messages if isinstance(message, RangeWritten)]
        self._good.remove_loose([file for message in written for file in message.files])
        if self._bad:
            self._bad.remove_loose([file for message in written for file in message.bad_files])

    def _check_life(self) -> None:
        """Check the topic's id: tasks read the topic by its name."""
        if self._connection and self._topic_id:
            found = client_of(self._connection).offsets(self.range.topic, []).id
            if found != self._topic_id:
                raise recreated_error(self.range.topic, self._good.root)

    def commit_bad(self, files: Sequence[DataFile]) -> None:
        """Commit the rows that could not be parsed. Raises `Fenced` if another archive did."""
        if self._bad is not None:
            _commit(self._bad, files, self.range, self._bad_ends)

    def commit_good(self, files: Sequence[DataFile]) -> None:
        """Commit the range. Raises `Fenced` if another archive did."""
        _commit(self._good, files, self.range, self.range.held)

    def _add_topic_and_date(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the topic and the day in UTC: columns that need not pass through the JVM."""
        topic = pa.repeat(pa.scalar(self.range.topic), batch.num_rows)
        stamps = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
        # Arrow stores UTC, and cuts the day from that.
        days = stamps.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
        # A year of five digits cannot name a folder.
        first, last = (pa.scalar(each, pa.date32()) for each in (date.min, date.max))
        is_named = pc.and_(pc.greater_equal(days, first), pc.less_equal(days, last))
        days = pc.if_else(is_named, days, pa.scalar(None, pa.date32()))
        return batch.append_column("topic", topic).append_column(DATE, days)

    def _drop_held(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drop the rows that the quarantine holds already."""
        for number, offsets in self._bad_held.items():
            held = pc.and_(
                pc.equal(batch.column("partition"), number),
                pc.is_in(batch.column("offset"), offsets),
            )
            batch = batch.filter(pc.invert(held))
        return batch


def _commit(
    target: TableTarget,
    files: Sequence[DataFile],
    wanted: ArchiveRange,
    expected: Mapping[int, int],
) -> None:
    from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(target.root)
    ends = table.ends(wanted.topic)
    if ends != expected:
        raise Fenced(
            f"another archive of {wanted.topic} writes to {target.root}: it is at {ends}, and "
            f"{dict(expected)} was expected"
        )
    table.commit(files, wanted.progress_from(ends), wanted.note())


def _open_checked(
    target: TableTarget, wanted: ArchiveRange, properties: Mapping[str, str]
) -> "Table":
    """Open a table. Raises `InvalidRequest` unless it archives this topic."""
    from quivermq.lakehouse import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(target.root)
    table.check_topic(wanted.topic, properties[TOPIC_ID_PROPERTY])
    return table


def _with_constants(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows and those that are added, in the order of the table."""
    fields = {field.name: field for field in schema}
    fields["topic"] = pa.field("topic", pa.string())
    fields[DATE] = pa.field(DATE, pa.date32())
    first = [name for name in (*MESSAGE_COLUMNS, DATE) if name in fields]
    return pa.schema([fields[name] for name in [*first, *(n for n in fields if n not in first)]])


def _select(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidRequest(f"an archive needs the columns {', '.join(missing)}")
    return pa.schema([schema.field(name) for name in names])
