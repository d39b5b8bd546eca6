"""The format `quiver_table`: Delta tables to write batches and streams to, exactly once, and to
read. See `table_sink` for how."""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class TableFormat(DataSource):
    """Tables in a folder."""

    @classmethod
    def name(cls) -> str:
        return "quiver_table"

    def schema(self) -> StructType | str:
        if "archiveRange" in self.options:
            from quivermq.spark.archive_files import TOLD  # noqa: PLC0415

            return TOLD
        from quivermq.spark.table_reader import table_schema  # noqa: PLC0415

        return table_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        if "archiveRange" in self.options:
            from quivermq.spark.archive_files import ArchiveFilesReader  # noqa: PLC0415

            return ArchiveFilesReader(self.options, schema)
        from quivermq.spark.table_reader import TableReader  # noqa: PLC0415

        return TableReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if "archiveRange" in self.options:
            from quivermq.spark.archive_sink import ArchiveWriter  # noqa: PLC0415

            return ArchiveWriter(self.options, schema, overwrite=overwrite)
        from quivermq.spark.table_sink import TableWriter  # noqa: PLC0415

        return TableWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quivermq.spark.table_sink import TableStreamWriter  # noqa: PLC0415

        return TableStreamWriter(self.options, schema, overwrite=overwrite)
