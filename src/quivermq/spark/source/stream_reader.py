"""Reads topics as streams: the reader of `spark.readStream`.

One instance lives in a process beside the driver while the query runs; others are sent to the
tasks, where only `read` is called.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

import quivermq
from quivermq.client import TopicOffsets
from quivermq.errors import QuiverError, TopicNotFound
from quivermq.spark.connections import client_of
from quivermq.spark.source.columns import check_schema
from quivermq.spark.source.offsets import Section, Vector, from_json, resolve_starts, to_json
from quivermq.spark.source.options import ReadOptions
from quivermq.spark.source.planning import (
    check_gaps,
    fetch_held,
    list_topics,
    plan_tasks,
    report_deleted,
    report_missing,
    report_removed,
)
from quivermq.spark.source.ranges import TopicRange, cap_rows, range_of
from quivermq.spark.source.task_reader import read_batches

WAIT_SECONDS: Final = 0.25
"""How long an idle query waits at the brokers, before it looks at its other sources and whether it
was stopped."""

BUSY_SECONDS: Final = 0.1
"""If Spark asks again later than this, the query was busy, maybe with another source: then it does
not wait here."""

REFRESH_SECONDS: Final = 5.0
"""How often to look for topics that match a pattern, and for partitions that were added."""

FULL_REFRESH_SECONDS: Final = 60.0
"""How often to ask all leaders. In between, brokers report new messages by themselves."""

_SHORT_WAIT_SECONDS: Final = 0.001

logger: Final = logging.getLogger("quivermq.spark")


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows topics for one streaming query."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = ReadOptions.of(options, is_stream=True)
        self._schema = check_schema(schema)
        self._held: dict[str, TopicOffsets] = {}
        """The last known offsets of the topics."""
        self._refreshed_at = self._fully_refreshed_at = float("-inf")
        self._began_with_nothing = False
        """No topic matched at first: topics that match later are new."""
        self._is_frozen = False
        """Messages that came after the query began are left for its next run."""
        self._moved_at = time.monotonic()
        self._answered_at = float("-inf")
        self._committed: Vector = {}

    def initialOffset(self) -> dict[str, Any]:
        """Empty: the first end offsets hold `began`, since Spark does not keep this."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """The option `maxOffsetsPerTrigger`."""
        rows = self._options.rows_max
        return ReadMaxRows(rows) if rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that exist now."""
        self._refresh()
        self._is_frozen = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` itself if there is nothing to read.

        Spark has finished all batches before `start` when it asks.
        """
        try:
            return self._latest(start, limit)
        finally:
            self._answered_at = time.monotonic()

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        self._commit_progress(before)
        self._await_news(before)
        after, ranges = self._next_vector(before)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._is_too_little(before, ranges):
            return start
        if rows_max is not None:
            after = _shorten(after, cap_rows(ranges, rows_max))
        if after == {topic: replace(section, began={}) for topic, section in before.items()}:
            return start
        self._moved_at = time.monotonic()
        return to_json(after)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end offsets of the topics, for Spark's progress reports."""
        if not self._held:
            return None
        return to_json(
            {
                topic: Section(held.id, {p: place.end for p, place in held.partitions.items()})
                for topic, held in self._held.items()
            }
        )

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the tasks of a batch: the same tasks for the same offsets."""
        ranges = [each for each in ranges_between(from_json(start), from_json(end)) if each.rows]
        # `latestOffset` has asked the leaders, unless Spark repeats a batch of an earlier run.
        unknown = {each.topic for each in ranges if not self._is_held(each)}
        held = self._held | fetch_held(self._client, self._options, unknown)
        return plan_tasks(self._options, ranges, held)

    def _is_held(self, wanted: TopicRange) -> bool:
        """Whether the topic had all these messages when it was last looked at. What retention has
        removed since, or a topic that was deleted, is noticed by the task that reads it."""
        topic = self._held.get(wanted.topic)
        place = topic.partitions.get(wanted.partition) if topic else None
        return (
            topic is not None
            and place is not None
            and topic.id == wanted.topic_id
            and place.start <= wanted.start
            and wanted.stop <= place.end
        )

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: `latestOffset` learns of finished batches, the last one included."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a task: the messages of one range."""
        wanted = range_of(partition)
        if wanted is None:
            return iter(())
        return read_batches(wanted, self._options, self._schema)

    @property
    def _client(self) -> quivermq.Client:
        return client_of(self._options.connection)

    def _refresh(self, *, full: bool = True) -> None:
        """Look for topics and partitions; with `full`, ask all leaders for their offsets, which
        wakes sleeping partitions."""
        client, options, now = self._client, self._options, time.monotonic()
        self._began_with_nothing |= not self._held and self._refreshed_at > float("-inf")
        names = list_topics(client, options)
        full = full or bool(options.archive)
        strange = [name for name in names if full or not self._is_unchanged(name)]
        found = {**self._held, **fetch_held(client, options, strange)}
        gone = set(strange) - set(found) | set(found) - set(names)
        self._held = {name: held for name, held in found.items() if name not in gone}
        self._refreshed_at = now
        if full:
            self._fully_refreshed_at = now

    def _is_unchanged(self, topic: str) -> bool:
        """Whether a topic has the id and as many partitions as before."""
        known = self._held.get(topic)
        if known is None:
            return False
        try:
            found = self._client.offsets(topic, [])
        except TopicNotFound:
            self._held.pop(topic)
            return False
        return (found.id, found.count) == (known.id, known.count)

    def _await_news(self, before: Vector) -> None:
        """Learn of new messages; if there are none, wait for them for a moment."""
        if self._is_frozen:
            return
        now = time.monotonic()
        if now - self._refreshed_at > REFRESH_SECONDS:
            self._refresh(full=now - self._fully_refreshed_at > FULL_REFRESH_SECONDS)
            return
        positions = {
            topic: self._positions(self._held[topic], section)
            for topic, section in before.items()
            if topic in self._held and self._held[topic].id == section.id
        }
        is_idle = time.monotonic() - self._answered_at < BUSY_SECONDS
        wait = WAIT_SECONDS if is_idle else _SHORT_WAIT_SECONDS
        if not positions:
            time.sleep(wait)  # no topic matches yet; Spark would ask again without a pause
            return
        try:
            found = self._client.await_offsets(positions, wait)
        except QuiverError:
            self._refresh()
            return
        for topic, heard in found.items():
            known = self._held[topic]
            if heard.id != known.id:
                self._refresh()
                return
            places = {
                number: heard.partitions.get(number, place)
                for number, place in known.partitions.items()
            }
            self._held[topic] = replace(known, partitions=places)

    def _positions(self, held: TopicOffsets, section: Section) -> dict[int, int]:
        """The offsets beyond which messages are news: the read ones, or, if the query waits for
        more rows, the known ends."""
        if self._options.rows_min is None:
            return dict(section.ends)
        return {
            number: max(end, held.partitions[number].end) if number in held.partitions else end
            for number, end in section.ends.items()
        }

    def _next_vector(self, before: Vector) -> tuple[dict[str, Section], list[TopicRange]]:
        """The ends of all topics, and the ranges that are new."""
        is_first = not before and not self._began_with_nothing
        after = {
            topic: self._section(held, before.get(topic), is_first=is_first)
            for topic, held in self._held.items()
        }
        for topic in sorted(set(before) - set(after)):
            if topic in self._options.topics or self._options.pattern:
                report_deleted(self._options, topic)
                after[topic] = replace(before[topic], began={})
        return after, ranges_between(before, after)

    def _section(self, held: TopicOffsets, known: Section | None, *, is_first: bool) -> Section:
        """One topic of the next vector."""
        if known is not None and known.id != held.id:
            report_deleted(self._options, held.topic)
            known = None
        numbers = sorted(held.partitions)
        if known is None:
            if is_first:
                began = resolve_starts(self._client, self._options.starting, held, numbers)
                check_gaps(self._options, held, began)
            else:
                began = {number: held.partitions[number].start for number in numbers}
            ends = {number: max(began[number], held.partitions[number].end) for number in numbers}
            return Section(held.id, ends, began)
        began = {number: 0 for number in numbers if number not in known.ends}
        for number in began:
            place = held.partitions[number]
            if self._options.assigned:
                began[number] = place.start  # newly assigned, not necessarily newly created
            elif place.start:
                wanted = TopicRange(held.topic, held.id, number, 0, place.end)
                report_removed(self._options, wanted, place.start, place.end)
                began[number] = place.start
        ends = dict(known.ends)
        for number in numbers:
            end = held.partitions[number].end
            if number in known.ends and end < known.ends[number]:
                wanted = TopicRange(held.topic, held.id, number, end, known.ends[number])
                report_missing(self._options, wanted, end)
            # Never backwards: Spark would plan a batch for it.
            ends[number] = max(end, known.ends.get(number, 0))
        return Section(held.id, dict(sorted(ends.items())), began)

    def _is_too_little(self, before: Vector, ranges: list[TopicRange]) -> bool:
        rows_min = self._options.rows_min
        if rows_min is None or self._is_frozen or not before:
            return False
        waited = time.monotonic() - self._moved_at
        return sum(each.rows for each in ranges) < rows_min and waited < self._options.delay_max

    def _commit_progress(self, done: Vector) -> None:
        """Commit the query's progress to the group of the option `group`, for display only."""
        group = self._options.group
        if not group:
            return
        for topic, section in done.items():
            shown = self._committed.get(topic)
            for number, end in section.ends.items():
                if shown is not None and shown.id == section.id and shown.ends.get(number) == end:
                    continue
                try:
                    self._client.commit(topic, group, number, end)
                except QuiverError as error:
                    logger.warning("group %s does not show how far it is: %s", group, error)
                    return
        self._committed = done


def ranges_between(before: Vector, after: Vector) -> list[TopicRange]:
    """The ranges between two vectors; a partition that `before` lacks starts at `began`."""
    ranges: list[TopicRange] = []
    for topic in sorted(after):
        section, known = after[topic], before.get(topic)
        ends = known.ends if known is not None and known.id == section.id else {}
        for number, stop in sorted(section.ends.items()):
            start = ends.get(number, section.began.get(number, stop))
            ranges.append(TopicRange(topic, section.id, number, start, max(start, stop)))
    return ranges


def _shorten(after: Vector, ranges: list[TopicRange]) -> dict[str, Section]:
    """Shorten a vector to the ends of these ranges."""
    ends = {(each.topic, each.partition): each.stop for each in ranges}
    return {
        topic: replace(section, ends={number: ends[topic, number] for number in section.ends})
        for topic, section in after.items()
    }
