"""Writes the Parquet files of a table: a folder for each value of the partition columns, and files
of about the target size.

A file belongs to the table once a commit names it. Files that a killed task leaves behind are
never read; `quiver pipeline compact` removes them.
"""

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from quivermq.errors import InvalidRequest

TARGET_FILE_BYTES: Final = 128 << 20
ROW_GROUP_BYTES: Final = 16 << 20
BUFFERED_BYTES_MAX: Final = 64 << 20
OPEN_FILES_MAX: Final = 100
"""A process may open about a thousand files, and may run other tasks too."""
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"

Key = tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A finished file, as a commit names it."""

    path: str
    """Below the table's folder."""
    size_bytes: int
    rows: int
    partition_values: dict[str, str | None]
    modified_ms: int
    stats: str
    """As Delta defines them: row count, and the bounds of columns that have an order."""


class FileWriter:
    """Sorts batches into files by their partition columns."""

    def __init__(
        self,
        root: Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        target_bytes: int = TARGET_FILE_BYTES,
    ) -> None:
        check_partition_columns(schema, partition_by)
        self._root = root
        self._schema = schema
        self._partition_by = tuple(partition_by)
        self._stored = pa.schema([field for field in schema if field.name not in partition_by])
        self._target_bytes = target_bytes
        self._group_bytes = min(ROW_GROUP_BYTES, target_bytes)
        self._buffers: dict[Key, list[pa.RecordBatch]] = {}
        self._buffered: dict[Key, int] = {}
        self._open: dict[Key, _OpenFile] = {}
        self._finished: list[DataFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of the table's columns; it is written when enough has gathered."""
        for key, part in self._split(batch.cast(self._schema), (), self._partition_by):
            self._buffers.setdefault(key, []).append(part)
            self._buffered[key] = self._buffered.get(key, 0) + part.nbytes
            if self._buffered[key] >= self._group_bytes:
                self._write_group(key)
        while sum(self._buffered.values()) > BUFFERED_BYTES_MAX:
            self._write_group(max(self._buffered, key=self._buffered.__getitem__))

    def close(self) -> list[DataFile]:
        """Finish all files: they are on disk when this returns."""
        for key in list(self._open):
            if key in self._buffers:
                self._write_group(key)
            if key in self._open:
                self._finish(key)
        for key in list(self._buffers):
            self._write_group(key)
            if key in self._open:
                self._finish(key)
        return self._finished

    def discard(self) -> None:
        """Remove everything that was written."""
        for file in self._open.values():
            file.discard()
        remove_files(self._root, self._finished)

    def _split(
        self, batch: pa.RecordBatch, key: Key, columns: Sequence[str]
    ) -> Iterator[tuple[Key, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if not columns:
            yield key, batch.select(self._stored.names)
            return
        column = batch.column(columns[0])
        values = pc.unique(column)
        for value in values:
            part = batch
            if len(values) > 1:
                same = pc.equal(column, value) if value.is_valid else pc.is_null(column)
                part = batch.filter(same)
            yield from self._split(part, (*key, _as_text(value)), columns[1:])

    def _write_group(self, key: Key) -> None:
        table = pa.Table.from_batches(self._buffers.pop(key), self._stored)
        del self._buffered[key]
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._finish(max(self._open, key=lambda each: self._open[each].size))
            values = dict(zip(self._partition_by, key, strict=True))
            file = self._open[key] = _OpenFile(self._root, self._stored, values)
        if file.write(table) >= self._target_bytes:
            self._finish(key)

    def _finish(self, key: Key) -> None:
        self._finished.append(self._open.pop(key).finish())


class _OpenFile:
    """A file that is being written."""

    def __init__(self, root: Path, schema: pa.Schema, values: dict[str, str | None]) -> None:
        folder = "".join(f"{name}={escape_value(value)}/" for name, value in values.items())
        self._relative = f"{folder}part-{uuid.uuid4()}.parquet"
        self._values = values
        self._schema = schema
        self._root = root
        self._path = root / self._relative
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._sink = self._path.open("xb")
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._sink, schema, compression="zstd", metadata_collector=self._metadata
        )

    @property
    def size(self) -> int:
        return self._sink.tell()

    def write(self, table: pa.Table) -> int:
        """Add a row group; returns how large the file is."""
        self._writer.write_table(table, row_group_size=table.num_rows)
        return self.size

    def finish(self) -> DataFile:
        self._writer.close()
        self._sink.flush()
        # Brokers drop messages that a table holds, so its files must survive a loss of power.
        os.fsync(self._sink.fileno())
        size = self._sink.tell()
        self._sink.close()
        sync_folders(self._root, self._path)
        (metadata,) = self._metadata
        return DataFile(
            path=self._relative,
            size_bytes=size,
            rows=metadata.num_rows,
            partition_values=self._values,
            modified_ms=time.time_ns() // 1_000_000,
            stats=json.dumps(_statistics(metadata, self._schema)),
        )

    def discard(self) -> None:
        self._writer.close()
        self._sink.close()
        self._path.unlink(missing_ok=True)


def remove_files(root: Path, files: Sequence[DataFile]) -> None:
    """Remove files that no commit names or will name; after a commit: `Table.remove_loose`."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)


def sync_file(path: Path) -> None:
    """Make the contents of a file durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(root: Path, path: Path) -> None:
    """Make a file's name durable, and those of the folders between it and `root`."""
    for folder in path.parents:
        sync_folder(folder)
        if folder == root:
            return


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise `InvalidRequest` unless folders can be named by these columns."""
    for name in partition_by:
        if name not in schema.names:
            raise InvalidRequest(
                f"there is no column {name!r} to partition the table by: it has "
                f"{', '.join(schema.names)}"
            )
        kind = schema.field(name).type
        if not (
            pa.types.is_string(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_date32(kind)
            or pa.types.is_boolean(kind)
        ):
            raise InvalidRequest(
                f"a table cannot be partitioned by {name!r}, which is {kind}: take a string, an "
                "integer, a boolean or a date"
            )
    if partition_by and len(set(partition_by)) == len(schema.names):
        raise InvalidRequest("a table needs a column that it is not partitioned by")


def escape_value(value: str | None) -> str:
    """Escape a value for a folder's name as Spark and Hive do."""
    if not value:
        return _NO_VALUE
    return "".join(
        letter
        if letter.isalnum() or letter in "-_." or ord(letter) > 0x7F
        else f"%{ord(letter):02X}"
        for letter in value
    )


def _as_text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    try:
        plain = value.as_py()
    except (OverflowError, ValueError):
        raise InvalidRequest(
            f"a table cannot be partitioned by the date {pc.cast(value, pa.string())}: the years 1 "
            "to 9999 have folders"
        ) from None
    if isinstance(plain, bool):
        return "true" if plain else "false"
    # An empty string has no folder of its own in the format: it reads as no value.
    return str(plain) or None


def _statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    for field in schema:
        if field.name not in places or not _has_order(field.type):
            continue
        found = [
            metadata.row_group(group).column(places[field.name]).statistics
            for group in range(metadata.num_row_groups)
        ]
        if any(each is None or not each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        try:
            bounds = [(each.min, each.max) for each in found if each.has_min_max]
            if bounds:
                low = _bound(min(low for low, _ in bounds), timedelta())
                high = _bound(max(high for _, high in bounds), timedelta(microseconds=999))
                smallest[field.name], largest[field.name] = low, high
        except (OverflowError, ValueError):
            # Times beyond the year 9999 have no form that all readers know: no bounds for them.
            continue
    return {
        "numRecords": metadata.num_rows,
        "minValues": smallest,
        "maxValues": largest,
        "nullCount": nulls,
    }


def _has_order(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.tz)
    )


def _bound(value: Any, upwards: timedelta) -> Any:
    """Format a bound as Delta does, in whole milliseconds."""
    if isinstance(value, datetime):
        rounded = (value + upwards).astimezone(UTC)
        return rounded.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
