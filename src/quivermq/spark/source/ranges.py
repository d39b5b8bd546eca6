"""Ranges of offsets: the input of one task, and how ranges are split and limited."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from quivermq.errors import BrokenInvariant


@dataclass(frozen=True, slots=True)
class TopicRange(InputPartition):
    """Messages of one partition, from `start` to before `stop`: the input of one task."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """The number of messages."""
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} [{self.start}, {self.stop})"


def range_of(partition: InputPartition) -> TopicRange | None:
    """The range of a task; None for the empty task that Spark adds if there is none.

    Raises `BrokenInvariant` for anything else: it must not be read as empty.
    """
    if isinstance(partition, TopicRange):
        return partition
    if type(partition) is InputPartition and partition.value is None:
        return None
    raise BrokenInvariant(f"a task cannot read {partition!r}: are two releases mixed?")


def split(
    ranges: Iterable[TopicRange], partitions_min: int | None, rows_max: int | None
) -> list[TopicRange]:
    """Split ranges into at least `partitions_min`, each of at most `rows_max` messages. Large
    ranges are cut into more parts than small ones."""
    left = [each for each in ranges if each.rows > 0]
    total = sum(each.rows for each in left)
    parts: list[TopicRange] = []
    for each in left:
        wanted = 1
        if partitions_min and partitions_min > len(left):
            # Rounded up: a part too many is harmless, one too few breaks `partitions_min`.
            wanted = -(-each.rows * partitions_min // total)
        if rows_max:
            wanted = max(wanted, -(-each.rows // rows_max))
        parts += cut(each, min(wanted, each.rows))
    return parts


def cut(whole: TopicRange, parts: int) -> list[TopicRange]:
    """Cut a range into parts that differ by one message at most."""
    edges = [whole.start + whole.rows * number // parts for number in range(parts + 1)]
    return [replace(whole, start=start, stop=stop) for start, stop in pairwise(edges)]


def cap_rows(ranges: Sequence[TopicRange], rows_max: int) -> list[TopicRange]:
    """Limit ranges to so many messages in all, each in proportion to its size.

    Every range gets at least one message as long as there is room: rounded down, a small range
    beside a huge one would starve.
    """
    total = sum(each.rows for each in ranges)
    if total <= rows_max:
        return list(ranges)
    shares = [each.rows * rows_max // total for each in ranges]
    left = rows_max - sum(shares)
    # Ranges with the smallest share for their size come first, in a fixed order.
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
