"""Archiving a topic: what is there beyond the table becomes a range, a range becomes one Spark job
and one commit.

There is no checkpoint beside the table. Whoever dies at any point, the next one asks the table how
far it is and goes on there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession

import quivermq
from quivermq.errors import InvalidRequest, OffsetOutOfRange
from quivermq.lakehouse import ArchiveRange, Table, archive_group
from quivermq.lakehouse.data_files import TARGET_FILE_BYTES
from quivermq.spark.archive_sink import DATE, MESSAGE_COLUMNS, check_topic
from quivermq.spark.json_payloads import parse_columns, with_payload

_READ: Final = tuple(name for name in MESSAGE_COLUMNS if name != "topic")
JOB_BYTES_MAX: Final = 1 << 30
"""A job takes at most so much: one that fails is not long, and ranges do not outrun retention."""


@dataclass(frozen=True, slots=True)
class Payload:
    """How values become columns."""

    columns: str
    """As in `id BIGINT NOT NULL, amount DOUBLE`."""
    quarantine: str
    """The table for those that do not fit."""
    into: str | None = None
    """One column for all of them."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What a topic has beyond its table."""

    range: ArchiveRange
    bytes: int
    """About."""
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition, what was dropped before it was archived."""


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

    def pending(self, client: quivermq.Client, bytes_max: int = JOB_BYTES_MAX) -> Pending:
        """The next range. Raises `OffsetOutOfRange` if a part of it is gone for good."""
        info = client.topic(self.topic)
        table = Table.find(self.path)
        if table is not None:
            check_topic(table, self.topic, info.id)
        held = table.ends(self.topic) if table else {}
        firsts = table.firsts(self.topic) if table else {}
        lost: dict[int, tuple[int, int]] = {}
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        size = 0.0
        for part in info.partitions:
            number, start = part.partition, held.get(part.partition, part.start_offset)
            if start > part.end_offset:
                raise InvalidRequest(
                    f"the table {self.path} holds {self.topic}/{number} up to {start}, and the "
                    f"topic ends at {part.end_offset}: did the cluster lose its data?"
                )
            if start < part.start_offset:
                lost[number] = (start, part.start_offset)
                start = part.start_offset
                # A read that spans table and log must not step into the hole.
                firsts[number] = start
            starts[number], ends[number] = start, part.end_offset
            firsts.setdefault(number, start)
            kept = part.end_offset - part.start_offset
            size += part.size_bytes * (part.end_offset - start) / kept if kept else 0
        if lost and not self.accept_loss:
            raise _lost(self.topic, lost)
        if size > bytes_max:
            share = bytes_max / size
            ends = {n: starts[n] + max(1, int((ends[n] - starts[n]) * share)) for n in ends}
            ends = {n: min(end, info.partitions[n].end_offset) for n, end in ends.items()}
            size = bytes_max
        return Pending(ArchiveRange(self.topic, starts, ends, firsts, held), int(size), lost)

    def write(self, spark: SparkSession, topic_id: str, pending: Pending) -> Table:
        """One job and one commit."""
        frame = self.rows(spark, pending.range)
        # Tasks by bytes, not by partitions: each leaves a file, and small files are many.
        tasks = max(1, -(-pending.bytes // self.target_bytes))
        writer = (
            frame.coalesce(tasks)
            .write.format("quiver_table")
            .mode("append")
            .option("archiveRange", pending.range.encode())
            .option("topicId", topic_id)
            .option("targetFileSize", self.target_bytes)
        )
        if self.payload:
            writer = writer.option("quarantine", self.payload.quarantine)
        writer.save(self.path)
        return Table.open(self.path)

    def rows(self, spark: SparkSession, wanted: ArchiveRange) -> DataFrame:
        """The messages of a range; the writer adds the topic and the day."""
        reader = (
            spark.read.format("quiver")
            .options(**self.connection)
            .option("subscribe", self.topic)
            .option("columns", ",".join(_READ))
            .option("startingOffsets", _vector(self.topic, wanted.starts))
            .option("endingOffsets", _vector(self.topic, wanted.ends))
        )
        frame = reader.load()
        if self.payload is None:
            return frame
        columns = parse_columns(spark, self.payload.columns)
        return with_payload(frame, columns, self.payload.into, (*MESSAGE_COLUMNS, DATE))

    def tell(self, client: quivermq.Client, table: Table) -> None:
        """Let brokers know how far the table is, so that they may drop what it holds."""
        group = archive_group(table.id)
        for number, end in table.ends(self.topic).items():
            client.commit(self.topic, group, number, end)


def _vector(topic: str, offsets: Mapping[int, int]) -> str:
    import json  # noqa: PLC0415

    return json.dumps({topic: {str(number): offset for number, offset in sorted(offsets.items())}})


def _lost(topic: str, lost: Mapping[int, tuple[int, int]]) -> OffsetOutOfRange:
    parts = ", ".join(f"{n} [{start}, {end})" for n, (start, end) in sorted(lost.items()))
    first = min(lost)
    return OffsetOutOfRange(
        f"messages of {topic} were dropped before they were archived: partition {parts}. To go on "
        "without them, use --accept-loss; to keep it from happening, `quiver topic alter "
        f"{topic} --keep-until-archived`",
        earliest=lost[first][1],
        end=lost[first][1],
    )
