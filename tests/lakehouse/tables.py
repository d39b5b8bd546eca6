"""Rows of a topic, and tables made of them without Spark."""

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from quivermq.lakehouse import ArchiveRange, DataFile, FileWriter, Table

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("date", pa.date32()),
    ]
)
DAY_MICROS = 86_400_000_000
FIRST_DAY = date(2026, 1, 1)
FIRST_MICROS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000


def batch(partition: int, start: int, end: int, rows_a_day: int = 1_000_000) -> pa.RecordBatch:
    """Offsets [start, end) of a partition, a day for so many of them."""
    offsets = range(start, end)
    micros = [FIRST_MICROS + n * DAY_MICROS // rows_a_day for n in offsets]
    stamps = pa.array(micros, pa.timestamp("us", tz="UTC"))
    columns = [
        pa.array([b"%d/%d" % (partition, n) for n in offsets], pa.binary()),
        pa.array([partition] * len(offsets), pa.int32()),
        pa.array(offsets, pa.int64()),
        stamps,
        pa.array([[{"key": "k", "value": b"v"}]] * len(offsets), SCHEMA.field("headers").type),
        stamps.cast(pa.timestamp("us")).cast(pa.date32()),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def written(root: Path, *batches: pa.RecordBatch, target: int = 1 << 20) -> list[DataFile]:
    writer = FileWriter(root, SCHEMA, ["date"], target)
    for each in batches:
        writer.write(each)
    return writer.close()


def archived(table: Table, ends: Sequence[int], topic: str = "orders") -> Table:
    """One more commit, up to these offsets."""
    before = table.ends(topic)
    starts = {number: before.get(number, 0) for number in range(len(ends))}
    firsts = {**dict.fromkeys(starts, 0), **table.firsts(topic)}
    wanted = ArchiveRange(topic, starts, dict(enumerate(ends)), firsts)
    parts = [batch(number, starts[number], end) for number, end in wanted.ends.items()]
    return table.commit(written(table.root, *parts), wanted.progress, wanted.note())


def rows(table: Table) -> list[tuple[int, int, bytes]]:
    """(partition, offset, value) of all rows, sorted; a row that is there twice is shown twice."""
    found = []
    for path in table.file_paths():
        read = pq.ParquetFile(path).read(["partition", "offset", "value"])
        found += list(zip(*(column.to_pylist() for column in read.columns), strict=True))
    return sorted(found)


def expected(*ends: int) -> list[tuple[int, int, bytes]]:
    return [(p, n, b"%d/%d" % (p, n)) for p, end in enumerate(ends) for n in range(end)]
