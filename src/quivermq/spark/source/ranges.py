"""Ranges of offsets: what one task reads, how a range is split, how much of many fits a batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from quivermq.errors import BrokenInvariant


@dataclass(frozen=True, slots=True)
class TopicRange(InputPartition):
    """Messages of one partition, from `start` to before `stop`: what one task reads."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many messages."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.stop})"


def range_of(partition: InputPartition) -> TopicRange | None:
    """What a task is to read; None for the task that Spark makes up where there is nothing.

    Anything else is an error: it must not pass for nothing.
    """
    if isinstance(partition, TopicRange):
        return partition
    if type(partition) is InputPartition and partition.value is None:
        return None
    raise BrokenInvariant(f"a task cannot read {partition!r}: are two releases mixed?")


def split(
    ranges: Iterable[TopicRange], partitions_min: int | None, rows_max: int | None
) -> list[TopicRange]:
    """The same messages in at least so many ranges, none with more rows than that, if there are as
    many messages; large ranges are cut into more parts than small ones."""
    left = [each for each in ranges if each.rows > 0]
    total = sum(each.rows for each in left)
    parts: list[TopicRange] = []
    for each in left:
        wanted = 1
        if partitions_min and partitions_min > len(left):
            # Rounded up: a part too many is harmless, one too few breaks the promise.
            wanted = -(-each.rows * partitions_min // total)
        if rows_max:
            wanted = max(wanted, -(-each.rows // rows_max))
        parts += cut(each, min(wanted, each.rows))
    return parts


def cut(whole: TopicRange, parts: int) -> list[TopicRange]:
    """A range in parts that differ by one message at most."""
    edges = [whole.start + whole.rows * number // parts for number in range(parts + 1)]
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(edges)]


def cap_rows(ranges: Sequence[TopicRange], rows_max: int) -> list[TopicRange]:
    """At most so many messages, of each range its share; no range that has any gets none for ever.

    Every range goes on at least one message as long as there is room: rounded down alone, a small
    range beside a huge one would never move.
    """
    total = sum(each.rows for each in ranges)
    if total <= rows_max:
        return list(ranges)
    shares = [each.rows * rows_max // total for each in ranges]
    left = rows_max - sum(shares)
    # Those that got least for what they hold come first, the same ones for the same ranges.
    order = sorted(
        range(len(ranges)),
        key=lambda at: (shares[at] > 0, -(ranges[at].rows * rows_max % total), at),
    )
    for at in order:
        if not left:
            break
        if shares[at] < ranges[at].rows:
            shares[at] += 1
            left -= 1
    return [
        replace(each, stop=each.start + share) for each, share in zip(ranges, shares, strict=True)
    ]
