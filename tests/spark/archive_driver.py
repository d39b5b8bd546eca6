"""Archives a topic once, and kills itself and all that belongs to it at a given point.

python -m tests.spark.archive_driver SERVERS TOPIC FOLDER POINT
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

import quivermq
from quivermq.lakehouse import DataFile, Table
from quivermq.spark import session
from quivermq.spark.archive.archive import Archive, Payload
from quivermq.spark.archive.loop import ArchiveLoop, CommitPolicy
from quivermq.spark.archive.writer import ArchiveWriter, RangeWritten
from quivermq.spark.formats import TableFormat

COLUMNS = "n BIGINT NOT NULL"
GROUP = "QUIVER_TEST_PROCESS_GROUP"


def die() -> None:
    """Driver, JVM and Python workers at once: as a machine dies."""
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DyingWriter(ArchiveWriter):
    """Dies at a point of its work."""

    def __init__(self, point: str, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema, overwrite=False)
        self._point = point

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RangeWritten:
        # Its files are on disk, and no commit will name them.
        written = super().write(iterator)
        if self._point == "tasks":
            die()
        return written

    def commit_good(self, files: Sequence[DataFile]) -> None:
        if self._point == "quarantined":
            die()
        super().commit_good(files)


class DyingFormat(TableFormat):
    """Replaces the format."""

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return DyingWriter(os.environ["QUIVER_TEST_POINT"], self.options, schema)


class DyingArchive(Archive):
    """Dies before the offsets are committed to brokers."""

    def commit_progress(self, client: quivermq.Client, table: Table) -> None:
        if os.environ["QUIVER_TEST_POINT"] == "committed" and table.ends(self.topic):
            die()
        super().commit_progress(client, table)


def archive(kind: Any, servers: str, topic: str, folder: Path) -> Any:
    payload = Payload(COLUMNS, str(folder / "quarantine"))
    return kind(topic, str(folder / "table"), {"servers": servers}, payload=payload)


def main() -> None:
    servers, topic, folder, point = sys.argv[1:]
    os.environ[GROUP] = str(os.getpgrp())
    os.environ["QUIVER_TEST_POINT"] = point
    wanted = archive(DyingArchive, servers, topic, Path(folder))
    with quivermq.connect(servers) as client:
        if point == "planned":
            assert not wanted.pending(client).range.is_empty
            die()
        quick = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
        spark = session("local[2]", name="dying", config=quick)
        spark.dataSource.register(DyingFormat)
        ArchiveLoop(spark, client, wanted, CommitPolicy()).run_once()


if __name__ == "__main__":
    main()
