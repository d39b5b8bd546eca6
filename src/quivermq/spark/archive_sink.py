"""One commit of an archive: exactly a range of a topic, into its table and its quarantine.

The table is the archive's only memory. A range is committed if the table holds the topic up to
where the range starts, and no row of it is missing; otherwise nothing is. Rows that could not be
parsed go to the quarantine first: if the driver dies between the two commits, the range is done
again, and the quarantine, which knows how far it is itself, takes only what it lacks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from quivermq.errors import BrokenInvariant, Fenced, InvalidRequest
from quivermq.lakehouse.data_files import DataFile, remove_files
from quivermq.lakehouse.progress import TOPIC_ID_PROPERTY, TOPIC_PROPERTY, ArchiveRange
from quivermq.spark.table_options import TableOptions, arrow_schema
from quivermq.spark.table_sink import TableTarget

REASON = "reason"
MESSAGE_COLUMNS = (
    "key", "value", "topic", "partition", "offset", "timestamp", "priority", "headers"
)  # fmt: skip
DATE = "date"


@dataclass
class RangeWritten(WriterCommitMessage):
    """What one task has written, and how many messages it was given."""

    messages: int
    files: list[DataFile]
    bad_files: list[DataFile] = field(default_factory=list)


class ArchiveWriter(DataSourceArrowWriter):
    """Writes one range; rows with a reason go to the quarantine."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequest("an archive only adds: mode must be append")
        common = TableOptions.parse(options)
        self._range = ArchiveRange.decode(options["archiveRange"])
        columns = _with_constants(arrow_schema(schema))
        properties = {
            TOPIC_PROPERTY: self._range.topic,
            TOPIC_ID_PROPERTY: options.get("topicId", ""),
        }
        self._bad: TableTarget | None = None
        self._bad_ends: dict[int, int] = {}
        kept = columns
        if REASON in columns.names:
            kept = _only(columns, [n for n in columns.names if n not in {REASON, "value"}])
            bad = _only(columns, [*MESSAGE_COLUMNS, REASON, DATE])
            path = options.get("quarantine")
            if not path:
                raise InvalidRequest("rows that may be bad need a table for them: quarantine")
            self._bad = TableTarget.found(path, bad, [DATE], common.target_bytes, properties)
            self._bad_ends = _ends(self._bad, self._range, properties)
        self._good = TableTarget.found(common.path, kept, [DATE], common.target_bytes, properties)
        _ends(self._good, self._range, properties)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RangeWritten:
        good = self._good.files()
        bad = self._bad.files() if self._bad else None
        messages = 0
        try:
            for given in iterator:
                batch = self._completed(given)
                messages += batch.num_rows
                if self._bad is None or bad is None:
                    good.write(self._good.fitted(batch))
                    continue
                is_bad = pc.is_valid(batch.column(REASON))
                good.write(self._good.fitted(batch.filter(pc.invert(is_bad))))
                bad.write(self._lacking(self._bad.fitted(batch.filter(is_bad))))
            return RangeWritten(messages, good.close(), bad.close() if bad else [])
        except BaseException:
            good.discard()
            if bad:
                bad.discard()
            raise

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, RangeWritten)]
        found = sum(message.messages for message in written)
        if found != self._range.count:
            self.abort(messages)
            raise BrokenInvariant(
                f"{self._range.count} messages of {self._range.topic} were to be archived, and "
                f"{found} came: nothing is committed"
            )
        bad_files = [file for message in written for file in message.bad_files]
        try:
            if self._bad and bad_files:
                self.commit_bad(bad_files)
            self.commit_good([file for message in written for file in message.files])
        except Fenced:
            self.abort(messages)
            raise

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        from quivermq.lakehouse.table import Table  # noqa: PLC0415  (only the driver needs it)

        for message in messages:
            if isinstance(message, RangeWritten):
                remove_files(self._good.root, message.files)
                if self._bad:
                    # They may be part of the table already, if only the second commit failed.
                    part = set(Table.open(self._bad.root).file_paths())
                    loose = [
                        file
                        for file in message.bad_files
                        if str(self._bad.root / file.path) not in part
                    ]
                    remove_files(self._bad.root, loose)

    def commit_bad(self, files: Sequence[DataFile]) -> None:
        """The rows that could not be parsed, unless another one got ahead."""
        if self._bad is not None:
            _commit(self._bad, files, self._range, self._bad_ends)

    def commit_good(self, files: Sequence[DataFile]) -> None:
        """The range is archived by this."""
        _commit(self._good, files, self._range, self._range.held)

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the topic and the day in UTC: columns that need not pass through the JVM."""
        topic = pa.repeat(pa.scalar(self._range.topic), batch.num_rows)
        stamps = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"))
        # A day is cut from what the clock in UTC shows, which is what Arrow stores.
        days = stamps.cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
        return batch.append_column("topic", topic).append_column(DATE, days)

    def _lacking(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without what the quarantine holds already."""
        for number, end in self._bad_ends.items():
            if end > self._range.starts.get(number, end):
                held = pc.and_(
                    pc.equal(batch.column("partition"), number),
                    pc.less(batch.column("offset"), end),
                )
                batch = batch.filter(pc.invert(held))
        return batch


def _commit(
    target: TableTarget,
    files: Sequence[DataFile],
    wanted: ArchiveRange,
    expected: Mapping[int, int],
) -> None:
    from quivermq.lakehouse.table import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(target.root)
    ends = table.ends(wanted.topic)
    if ends != expected:
        raise Fenced(
            f"another archive of {wanted.topic} writes to {target.root}: it is at {ends}, and "
            f"{dict(expected)} was expected"
        )
    table.commit(files, wanted.progress_from(ends), wanted.note())


def _ends(
    target: TableTarget, wanted: ArchiveRange, properties: Mapping[str, str]
) -> dict[int, int]:
    """How far a table is, if it is one of this topic."""
    from quivermq.lakehouse.table import Table  # noqa: PLC0415  (only the driver needs it)

    table = Table.open(target.root)
    check_topic(table, wanted.topic, properties[TOPIC_ID_PROPERTY])
    return table.ends(wanted.topic)


def check_topic(table: object, topic: str, topic_id: str) -> None:
    """Raise `InvalidRequest` unless a table is the archive of this very topic."""
    own, own_id = getattr(table, "topic", None), getattr(table, "topic_id", None)
    root = getattr(table, "root", "")
    if own is None:
        raise InvalidRequest(f"the table {root} is no archive: name another folder")
    if own != topic:
        raise InvalidRequest(f"the table {root} is the archive of topic {own!r}, not {topic!r}")
    if own_id and topic_id and own_id != topic_id:
        raise InvalidRequest(
            f"topic {topic!r} was deleted and created again since the table {root} was begun: "
            "their offsets have nothing to do with each other. Archive it to another folder"
        )


def _with_constants(schema: pa.Schema) -> pa.Schema:
    """The columns of the rows and those that are added, in the order of the table."""
    fields = {field.name: field for field in schema}
    fields["topic"] = pa.field("topic", pa.string())
    fields[DATE] = pa.field(DATE, pa.date32())
    first = [name for name in (*MESSAGE_COLUMNS, DATE) if name in fields]
    return pa.schema([fields[name] for name in [*first, *(n for n in fields if n not in first)]])


def _only(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidRequest(f"an archive needs the columns {', '.join(missing)}")
    return pa.schema([schema.field(name) for name in names])
