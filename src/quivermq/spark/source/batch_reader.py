"""Reads topics as batches: the reader of `spark.read`."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

import quivermq
from quivermq.client import TopicOffsets
from quivermq.spark.connections import client_of
from quivermq.spark.source.columns import check_schema
from quivermq.spark.source.filters import PushedFilters, push_filters
from quivermq.spark.source.offsets import resolve_bound, resolve_starts
from quivermq.spark.source.options import ReadOptions, flag
from quivermq.spark.source.planning import check_gaps, fetch_held, list_topics, plan_tasks
from quivermq.spark.source.ranges import TopicRange, range_of
from quivermq.spark.source.task_reader import read_batches

_FILTERING: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""The module that Spark runs to offer filters."""


def topic_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options, which takes filters only if asked to.

    Filters are taken only if the option `filterPushdown` is true: Spark 4.3 plans a DataFrame's
    read once, with the filters of the first query, and a later query without filters over the same
    DataFrame gets the rows of that plan (decision 0030). And Spark refuses a reader that takes
    filters where they are switched off, as they are by default.
    """
    if not flag(options, "filterPushdown", default=False):
        return TopicReader(options, schema)
    main = getattr(sys.modules["__main__"], "__spec__", None)
    is_offered = _FILTERING in sys.modules or (main is not None and main.name == _FILTERING)
    return (FilteringTopicReader if is_offered else TopicReader)(options, schema)


class TopicReader(DataSourceReader):
    """Reads the messages that topics hold when the query is planned."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.of(options, is_stream=False)
        self._schema = check_schema(schema)
        self._pushed = PushedFilters()

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks, by one answer of every leader."""
        client, options = client_of(self._options.connection), self._options
        held = fetch_held(client, options, list_topics(client, options))
        ranges = [each for topic in held.values() for each in self._ranges(client, topic)]
        return plan_tasks(options, self._pushed.narrow(ranges), held)

    def _ranges(self, client: quivermq.Client, held: TopicOffsets) -> list[TopicRange]:
        options, numbers = self._options, sorted(held.partitions)
        starts = resolve_starts(client, options.starting, held, numbers)
        check_gaps(options, held, starts)
        stops = resolve_bound(client, options.ending, held, numbers)
        return [
            TopicRange(held.topic, held.id, number, starts[number], stops[number])
            for number in numbers
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the messages of one range."""
        wanted = range_of(partition)
        if wanted is None:
            return iter(())
        return read_batches(wanted, self._options, self._schema, self._pushed.times)


class FilteringTopicReader(TopicReader):
    """Also takes filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that narrow the read; returns those that Spark must apply itself."""
        self._pushed, left = push_filters(filters)
        return left
