"""Plans the tasks of batch and streaming reads.

Checks for lost messages, splits ranges, and decides which part of a range the log serves and which
the archive.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import InputPartition

import quivermq
from quivermq.client import TopicOffsets
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.spark.source.archived_ranges import (
    ArchivedOffsets,
    split_at_log_start,
    with_archive,
    with_files,
)
from quivermq.spark.source.options import EARLIEST, ReadOptions
from quivermq.spark.source.ranges import TopicRange, split

logger: Final = logging.getLogger("quivermq.spark")
_WARNED_MAX: Final = 1000
_warned: Final[set[str]] = set()
"""Losses that this process has warned of."""


def plan_tasks(
    options: ReadOptions, ranges: Iterable[TopicRange], held: Mapping[str, TopicOffsets]
) -> list[InputPartition]:
    """Plan the tasks that read these ranges, each message once; `held` is as `fetch_held` says."""
    kept = _clip([each for each in ranges if each.rows > 0], options, held)
    if options.archive:
        kept = [part for each in kept for part in split_at_log_start([each], held[each.topic])]
    return list(with_files(split(kept, options.partitions_min, options.task_rows_max), held))


def list_topics(client: quivermq.Client, options: ReadOptions) -> list[str]:
    """The topics that a query reads. A pattern never matches system topics."""
    if not options.pattern:
        return list(options.topics)
    pattern = re.compile(options.pattern)
    names = client.topic_names()
    return [name for name in names if not name.startswith("_") and pattern.fullmatch(name)]


def fetch_held(
    client: quivermq.Client, options: ReadOptions, topics: Iterable[str]
) -> dict[str, TopicOffsets]:
    """Ask the leaders which offsets these topics hold.

    A deleted topic is left out if losses are accepted.
    """
    found: dict[str, TopicOffsets] = {}
    for topic in sorted(topics):
        try:
            held = client.offsets(topic)
        except TopicNotFound:
            if options.pattern or not options.fail_on_loss:
                continue
            raise
        if options.archive:
            only = not options.pattern and len(options.topics) == 1
            held = with_archive(options.archive, held, is_only_topic=only)
        unknown = sorted(set(options.assigned.get(topic, ())) - set(held.partitions))
        if unknown:
            raise InvalidRequest(
                f"option assign names partition {unknown[0]} of {topic!r}, which has the "
                f"partitions 0 to {len(held.partitions) - 1}"
            )
        taken = {
            number: place
            for number, place in held.partitions.items()
            if options.takes(topic, number)
        }
        found[topic] = replace(held, partitions=taken)
    return found


def _clip(
    wanted: Sequence[TopicRange], options: ReadOptions, held: Mapping[str, TopicOffsets]
) -> list[TopicRange]:
    """Clip ranges to the messages that exist; report the others as lost."""
    kept: list[TopicRange] = []
    for each in wanted:
        topic = held.get(each.topic)
        if topic is None or topic.id != each.topic_id:
            report_deleted(options, each.topic)
            continue
        place = topic.partitions.get(each.partition)
        if place is None:
            raise InvalidRequest(
                f"the batch reads {each.topic}/{each.partition}, which the option assign does not "
                "name any more: keep it there until the batch is done"
            )
        if each.start < place.start:
            report_removed(options, each, place.start, place.end)
        if each.stop > place.end:
            report_missing(options, each, place.end)
        start, stop = max(each.start, place.start), min(each.stop, place.end)
        if start < stop:
            kept.append(replace(each, start=start, stop=stop))
    return kept


def report_removed(options: ReadOptions, wanted: TopicRange, earliest: int, end: int) -> None:
    """Messages were removed before they were read: raise, or warn."""
    last = min(wanted.stop, earliest) - 1
    lost = f"{wanted.topic}/{wanted.partition}: offsets {wanted.start} to {last} are lost"
    kept = f"it keeps {earliest} to {end - 1}" if end > earliest else "it keeps nothing"
    _raise_or_warn(
        options,
        OffsetOutOfRange(
            f"{lost}: retention removed them before they were read ({kept}). Keep messages "
            f"longer (`quiver topic alter {wanted.topic} --max-age ...`) or read faster; "
            f"to go on from {earliest} without them, set the option failOnDataLoss to false",
            earliest=earliest,
            end=end,
        ),
        f"{lost} ({kept}); going on from {earliest}, since failOnDataLoss is false",
    )


def report_missing(options: ReadOptions, wanted: TopicRange, end: int) -> None:
    """Messages at the end of a range do not exist: raise, or warn."""
    loss = (
        f"{wanted.topic}/{wanted.partition}: offsets {max(end, wanted.start)} to "
        f"{wanted.stop - 1} are not there: it ends at {end}"
    )
    _raise_or_warn(
        options,
        OffsetOutOfRange(
            f"{loss}. Were they asked for by mistake, or did the cluster lose its data? To go on "
            "without them, set the option failOnDataLoss to false",
            earliest=end,
            end=end,
        ),
        f"{loss}; going on without them, since failOnDataLoss is false",
    )


def report_deleted(options: ReadOptions, topic: str) -> None:
    """A topic was deleted, or created again: raise, or warn."""
    loss = f"topic {topic!r} was deleted, or deleted and created again, while it was being read"
    _raise_or_warn(
        options,
        TopicNotFound(
            f"{loss}: what it held is lost. Start the query anew with another checkpoint; or, to "
            "go on with what is there, set the option failOnDataLoss to false"
        ),
        f"{loss}: going on with what is there, since failOnDataLoss is false",
    )


def check_gaps(options: ReadOptions, held: TopicOffsets, starts: Mapping[int, int]) -> None:
    """Raise, or warn, if a read from the earliest offset begins behind a gap of the archive."""
    if not isinstance(held, ArchivedOffsets):
        return
    named = options.starting.offsets.get(held.topic, {})
    for number, start in starts.items():
        gap = held.gap_at(number)
        is_earliest = start == held.log_starts[number] and named.get(number, EARLIEST) == EARLIEST
        if gap and is_earliest:
            warning = f"{held.topic}/{number}: the table {held.archive} ends below the log's start"
            _raise_or_warn(
                options, gap, f"{warning}; going on from {start}, since failOnDataLoss is false"
            )


def _raise_or_warn(
    options: ReadOptions, error: OffsetOutOfRange | TopicNotFound, warning: str
) -> None:
    if options.fail_on_loss:
        raise error
    if warning in _warned:
        return  # a stream finds the same loss with every batch
    if len(_warned) >= _WARNED_MAX:
        _warned.clear()
    _warned.add(warning)
    logger.warning("%s", warning)
