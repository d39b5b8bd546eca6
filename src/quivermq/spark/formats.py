"""The formats `quiver` (topics) and `quiver_table` (Delta tables), as Spark's data source API asks.

Readers and writers are imported when Spark asks for them: a task that reads loads no writer.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class QuiverFormat(DataSource):
    """Topics as batches and streams, read and written exactly once."""

    @classmethod
    def name(cls) -> str:
        return "quiver"

    def schema(self) -> StructType:
        from quivermq.spark.source.columns import spark_schema  # noqa: PLC0415

        return spark_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from quivermq.spark.source.batch_reader import topic_reader  # noqa: PLC0415

        return topic_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from quivermq.spark.source.stream_reader import TopicStreamReader  # noqa: PLC0415

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from quivermq.spark.sink.writers import TopicWriter  # noqa: PLC0415

        return TopicWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quivermq.spark.sink.writers import TopicStreamWriter  # noqa: PLC0415

        return TopicStreamWriter(self.options, schema, overwrite=overwrite)


class TableFormat(DataSource):
    """Delta tables in a folder: read as batches, written as batches and streams exactly once."""

    @classmethod
    def name(cls) -> str:
        return "quiver_table"

    def schema(self) -> StructType | str:
        if "archiveRange" in self.options:
            from quivermq.spark.archive.tasks import WRITTEN_COLUMNS  # noqa: PLC0415

            return WRITTEN_COLUMNS
        from quivermq.spark.table_reader import table_schema  # noqa: PLC0415

        return table_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        if "archiveRange" in self.options:
            from quivermq.spark.archive.tasks import ArchiveFilesReader  # noqa: PLC0415

            return ArchiveFilesReader(self.options, schema)
        from quivermq.spark.table_reader import TableReader  # noqa: PLC0415

        return TableReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if "archiveRange" in self.options:
            from quivermq.spark.archive.writer import ArchiveWriter  # noqa: PLC0415

            return ArchiveWriter(self.options, schema, overwrite=overwrite)
        from quivermq.spark.table_writer import TableWriter  # noqa: PLC0415

        return TableWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quivermq.spark.table_writer import TableStreamWriter  # noqa: PLC0415

        return TableStreamWriter(self.options, schema, overwrite=overwrite)
