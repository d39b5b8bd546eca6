"""Topics as tables: the reader of `spark.read`."""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quivermq.spark.columns import check_schema
from quivermq.spark.connections import client_of
from quivermq.spark.offsets import resolved
from quivermq.spark.options import ReadOptions
from quivermq.spark.planning import planned, topics_of, what_is_held
from quivermq.spark.ranges import TopicRange
from quivermq.spark.reading import batches_of


class TopicReader(DataSourceReader):
    """Reads what topics hold when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.of(options, is_stream=False)
        self._schema = check_schema(schema)

    def partitions(self) -> list[InputPartition]:
        """What the tasks read."""
        client = client_of(self._options.connection)
        return planned(client, self._options, self._ranges(client))

    def _ranges(self, client: Any) -> list[TopicRange]:
        options = self._options
        ranges: list[TopicRange] = []
        for topic, held in what_is_held(client, options, topics_of(client, options)).items():
            numbers = sorted(held.partitions)
            starts = resolved(client, options.starting, held, numbers)
            stops = resolved(client, options.ending, held, numbers)
            ranges += [
                TopicRange(topic, held.id, number, starts[number], stops[number])
                for number in numbers
            ]
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the messages of one range."""
        if not isinstance(partition, TopicRange):
            return iter(())  # where there is nothing to read, Spark makes up one empty task
        return batches_of(partition, self._options, self._schema)
