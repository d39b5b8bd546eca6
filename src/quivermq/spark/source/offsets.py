"""Offset vectors: the end offset of each partition, as Spark keeps them in checkpoints.

    {"orders": {"0": 12, "1": 7, "id": "5f0c…"}}

Spark compares offsets as text, so the keys are sorted. `id` distinguishes a topic from a later one
of the same name. `began` holds the first offset of a partition, beside its first end: a batch that
is planned again must begin at the same offset, and Spark keeps only ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import quivermq
from quivermq.client import TopicOffsets
from quivermq.errors import InvalidRequest
from quivermq.spark.source.archived_ranges import ArchivedOffsets
from quivermq.spark.source.options import EARLIEST, LATEST, Bound

_ID: Final = "id"
_BEGAN: Final = "began"


@dataclass(frozen=True, slots=True)
class Section:
    """One topic of an offset vector."""

    id: str
    ends: Mapping[int, int]
    """By partition, behind the last message."""
    began: Mapping[int, int] = field(default_factory=dict)
    """The first offsets of partitions that no earlier vector has."""


Vector = Mapping[str, Section]
"""By topic."""


def to_json(vector: Vector) -> dict[str, dict[str, Any]]:
    """Encode a vector as Spark keeps it; the same vector gives the same text."""
    found: dict[str, dict[str, Any]] = {}
    for topic in sorted(vector):
        section = vector[topic]
        entry: dict[str, Any] = {str(number): section.ends[number] for number in section.ends}
        entry[_ID] = section.id
        if section.began:
            entry[_BEGAN] = dict(sorted((str(number), at) for number, at in section.began.items()))
        found[topic] = dict(sorted(entry.items()))
    return found


def from_json(found: Mapping[str, Any]) -> dict[str, Section]:
    """Decode the vector that `to_json` encoded."""
    try:
        return {
            topic: Section(
                id=str(entry[_ID]),
                ends=_numbers({k: v for k, v in entry.items() if k not in {_ID, _BEGAN}}),
                began=_numbers(entry.get(_BEGAN, {})),
            )
            for topic, entry in found.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidRequest(
            f"the checkpoint holds offsets that this source did not write: {found!r}"
        ) from error


def _numbers(entry: Mapping[str, Any]) -> dict[int, int]:
    return dict(sorted((int(number), int(at)) for number, at in entry.items()))


def resolve_starts(
    client: quivermq.Client, bound: Bound, held: TopicOffsets, partitions: list[int]
) -> dict[int, int]:
    """The first offset to read of each partition. Raises `InvalidRequest` beyond its end."""
    found = resolve_bound(client, bound, held, partitions)
    for number, start in found.items():
        end = held.partitions[number].end
        if start > end:
            raise InvalidRequest(
                f"option startingOffsets says {start} for {held.topic}/{number}, which ends at "
                f"{end}: -1 stands for its end"
            )
    return found


def resolve_bound(
    client: quivermq.Client, bound: Bound, held: TopicOffsets, partitions: list[int]
) -> dict[int, int]:
    """The offset that a bound means in each of these partitions."""
    topic = held.topic
    for kind in (bound.offsets, bound.times):
        unknown = sorted(set(kind.get(topic, ())) - set(held.partitions))
        if unknown:
            raise InvalidRequest(
                f"offsets are given for partition {unknown[0]} of {topic!r}, which has the "
                f"partitions 0 to {len(held.partitions) - 1}"
            )
    found: dict[int, int] = {}
    for number in partitions:
        kept = held.partitions[number]
        moment = bound.times.get(topic, {}).get(number, bound.time)
        if moment is not None:
            at = _offset_at(client, held, number, moment)
            found[number] = max(kept.start, min(at, kept.end))
            continue
        offset = bound.offsets.get(topic, {}).get(number, bound.default)
        found[number] = {EARLIEST: kept.start, LATEST: kept.end}.get(offset, offset)
    return found


def _offset_at(client: quivermq.Client, held: TopicOffsets, number: int, moment: int) -> int:
    """The first offset of this time or later, from the table if the log begins after it."""
    at = client.offset_at(held.topic, number, moment)
    if isinstance(held, ArchivedOffsets) and at <= held.log_starts[number]:
        first = held.first_at(number, moment)
        return at if first is None else first
    return at
