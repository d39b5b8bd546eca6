"""The format `quiver`: what Spark asks for, and who answers.

Each answer lives in a module of its own, imported when Spark asks: a task that reads loads nothing
of the writer.
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
    """Topics as tables and streams."""

    @classmethod
    def name(cls) -> str:
        return "quiver"

    def schema(self) -> StructType:
        from quivermq.spark.columns import spark_schema  # noqa: PLC0415

        return spark_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from quivermq.spark.reader import topic_reader  # noqa: PLC0415

        return topic_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from quivermq.spark.stream_reader import TopicStreamReader  # noqa: PLC0415

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from quivermq.spark.sink import TopicWriter  # noqa: PLC0415

        return TopicWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from quivermq.spark.sink import TopicStreamWriter  # noqa: PLC0415

        return TopicStreamWriter(self.options, schema, overwrite=overwrite)
