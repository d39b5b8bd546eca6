"""Archives a topic: the messages beyond the table become a range, and a range becomes one Spark job
and one commit.

There is no checkpoint beside the table. After a crash the next process asks the table for its
offsets and continues there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

import quivermq
from quivermq.errors import InvalidRequest, OffsetOutOfRange
from quivermq.lakehouse import TARGET_FILE_BYTES, ArchiveRange, Table, archive_group, check_apart
from quivermq.spark.archive.json_payloads import parse_columns, with_payload
from quivermq.spark.archive.tasks import TASKS, decode_written, read_schema
from quivermq.spark.archive.writer import DATE, ArchiveWriter
from quivermq.spark.source.columns import MESSAGE_COLUMNS

_READ: Final = tuple(name for name in MESSAGE_COLUMNS if name != "topic")
JOB_BYTES_MAX: Final = 1 << 30
"""Limits a job, so that a failed one costs little and retention does not overtake it."""


@dataclass(frozen=True, slots=True)
class Payload:
    """How JSON values become columns."""

    columns: str
    """As in `id BIGINT NOT NULL, amount DOUBLE`."""
    quarantine: str
    """The table for values that do not fit."""
    into: str | None = None
    """The struct column that holds them all; None: a column each."""


@dataclass(frozen=True, slots=True)
class PendingRange:
    """The messages that a topic has beyond its table."""

    topic_id: str
    range: ArchiveRange
    bytes: int
    """An estimate."""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition, the offsets that were dropped before they were archived."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A topic and its table."""

    topic: str
    path: str
    connection: Mapping[str, str]
    """The options `servers`, `token` and `timeout` of the format `quiver`."""
    target_bytes: int = TARGET_FILE_BYTES
    payload: Payload | None = None
    accept_loss: bool = False

    def __post_init__(self) -> None:
        if self.target_bytes < 1:
            raise InvalidRequest("files need a size of at least a byte: --target-file-size")
        if self.payload:
            check_apart(self.path, self.payload.quarantine)

    def may_have_more(self, client: quivermq.Client) -> bool:
        """Whether the topic may have more messages; asks without waking idle partitions."""
        table = Table.find(self.path)
        held = table.ends(self.topic) if table else {}
        parts = client.topic(self.topic).partitions
        return {part.partition: part.end_offset for part in parts} != held

    def pending(self, client: quivermq.Client, bytes_max: int = JOB_BYTES_MAX) -> PendingRange:
        """The next range. Raises `OffsetOutOfRange` if a part of it is gone for good."""
        found = client.offsets(self.topic)
        table = Table.find(self.path)
        if table is not None:
            table.check_topic(self.topic, found.id)
        held = table.ends(self.topic) if table else {}
        firsts = table.firsts(self.topic) if table else {}
        lost: dict[int, tuple[int, int]] = {}
        starts: dict[int, int] = {}
        for number, place in sorted(found.partitions.items()):
            # If the table has rows, it lacks all of a partition that it does not know.
            start = held.get(number, 0 if held else place.start)
            self._check_end(number, start, place.end)
            if start < place.start:
                lost[number] = (start, place.start)
                start = place.start
                # A read that spans table and log must not begin before the gap.
                firsts[number] = start
            starts[number] = start
            firsts.setdefault(number, start)
        if lost and not self.accept_loss:
            raise _loss_error(self.topic, lost)
        ends = {number: found.partitions[number].end for number in starts}
        size = self._size(client, starts, ends)
        if size > bytes_max:
            share = bytes_max / size
            for number, start in starts.items():
                part = max(1, int((ends[number] - start) * share))
                ends[number] = min(ends[number], start + part)
            size = bytes_max
        wanted = ArchiveRange(self.topic, starts, ends, firsts, held)
        return PendingRange(found.id, wanted, int(size), lost)

    def _size(
        self, client: quivermq.Client, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> float:
        """Estimate the bytes of a range; partitions that do not answer count as empty."""
        size = 0.0
        for part in client.topic(self.topic).partitions:
            kept, number = part.message_count, part.partition
            if kept and part.size_bytes is not None and number in starts:
                size += part.size_bytes * (ends[number] - starts[number]) / kept
        return size

    def _check_end(self, number: int, held: int, end: int) -> None:
        if held > end:
            raise InvalidRequest(
                f"the table {self.path} holds {self.topic}/{number} up to {held}, and the "
                f"topic ends at {end}: did the cluster lose its data?"
            )

    def write(self, spark: SparkSession, pending: PendingRange) -> Table:
        """Run one job, and make one commit."""
        # Tasks by bytes, not by partitions: each task writes a file, and small files are slow.
        tasks = max(1, -(-pending.bytes // self.target_bytes))
        options = {
            **self.connection,
            "archiveRange": pending.range.encode(),
            "topicId": pending.topic_id,
            "targetFileSize": str(self.target_bytes),
        }
        if self.payload is None:
            self._write_raw(spark, {**options, TASKS: str(tasks)})
        else:
            writer = self.rows(spark, pending.range, self.payload).coalesce(tasks).write
            writer = writer.format("quiver_table").mode("append").options(**options)
            writer.option("quarantine", self.payload.quarantine).save(self.path)
        return Table.open(self.path)

    def _write_raw(self, spark: SparkSession, options: dict[str, str]) -> None:
        found = spark.read.format("quiver_table").options(**options).load(self.path).collect()
        writer = ArchiveWriter({**options, "path": self.path}, read_schema(), overwrite=False)
        writer.commit(decode_written(found))

    def rows(self, spark: SparkSession, wanted: ArchiveRange, payload: Payload) -> DataFrame:
        """The messages of a range, parsed; the writer adds the topic and the day."""
        reader = (
            spark.read.format("quiver")
            .options(**self.connection)
            .option("subscribe", self.topic)
            .option("columns", ",".join(_READ))
            .option("startingOffsets", _offsets_json(self.topic, wanted.starts))
            .option("endingOffsets", _offsets_json(self.topic, wanted.ends))
        )
        columns = parse_columns(spark, payload.columns)
        return with_payload(reader.load(), columns, payload.into, (*MESSAGE_COLUMNS, DATE))

    def commit_progress(self, client: quivermq.Client, table: Table) -> None:
        """Commit the table's offsets to the brokers, which may then drop what it holds."""
        found = client.offsets(self.topic)
        table.check_topic(self.topic, found.id)
        group, ends = archive_group(table.id), table.ends(self.topic)
        for number, place in found.partitions.items():
            self._check_end(number, ends.get(number, 0), place.end)
        for number in sorted(found.partitions):
            # Also for partitions that the table does not know yet: retention waits for those too.
            client.commit(self.topic, group, number, ends.get(number, 0))


def _offsets_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in sorted(offsets.items())}})


def _loss_error(topic: str, lost: Mapping[int, tuple[int, int]]) -> OffsetOutOfRange:
    parts = ", ".join(f"{n} [{start}, {end})" for n, (start, end) in sorted(lost.items()))
    first = min(lost)
    return OffsetOutOfRange(
        f"messages of {topic} were dropped before they were archived: partition {parts}. To go on "
        "without them, use --accept-loss; to keep it from happening, `quiver topic alter "
        f"{topic} --keep-until-archived`",
        earliest=lost[first][1],
        end=lost[first][1],
    )
