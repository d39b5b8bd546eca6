"""Runs of staged batches by target partition, and their encoded form.

A run is a sequence of adjacent batches in one partition of the staging topic. It keeps the number
of messages in each batch: batches are published unchanged, so a driver that takes over knows where
each of them begins.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple


class Run(NamedTuple):
    """Adjacent batches in a partition of the staging topic."""

    partition: int
    start: int
    counts: tuple[int, ...]
    """Messages in each batch."""

    @property
    def stop(self) -> int:
        """Behind the last message."""
        return self.start + sum(self.counts)


class TargetPartition(NamedTuple):
    """A partition that messages are published to."""

    topic: str
    partition: int


Staged = Mapping[TargetPartition, tuple[Run, ...]]
"""Everything that is to be published, in order for each target."""


def join_staged(parts: Iterable[Staged]) -> dict[TargetPartition, tuple[Run, ...]]:
    """Join the runs of several tasks, in the order of the tasks."""
    found: dict[TargetPartition, list[Run]] = {}
    for part in parts:
        for target, runs in part.items():
            found.setdefault(target, []).extend(runs)
    return {target: tuple(merge_runs(found[target])) for target in sorted(found)}


def merge_runs(runs: Iterable[Run]) -> Iterator[Run]:
    """Merge adjacent runs."""
    last: Run | None = None
    for run in runs:
        if last is not None and (last.partition, last.stop) == (run.partition, run.start):
            last = last._replace(counts=last.counts + run.counts)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def split_runs(runs: Iterable[Run], skipped: int, most: int) -> Iterator[tuple[int, list[Run]]]:
    """Split runs into pieces of at most `most` batches, each with the number of its first message.

    The first `skipped` messages are left out; they must end where a batch ends. `ValueError` if
    they do not.
    """
    number = 0
    piece: list[Run] = []
    first = batches = 0
    for run in runs:
        at = run.start
        for count in run.counts:
            if number >= skipped:
                if not piece:
                    first = number
                piece.append(Run(run.partition, at, (count,)))
                batches += 1
            elif number + count > skipped:
                raise ValueError(f"message {skipped} is in the midst of a batch")
            at += count
            number += count
            if batches == most:
                yield first, list(merge_runs(piece))
                piece, batches = [], 0
    if piece:
        yield first, list(merge_runs(piece))


def skip_messages(runs: tuple[Run, ...], skipped: int) -> tuple[Run, ...]:
    """Drop the first messages, which must end where a batch ends."""
    if not skipped:
        return runs
    found = [piece for _, piece in split_runs(runs, skipped, sum(len(run.counts) for run in runs))]
    return tuple(run for piece in found for run in piece)


def spans_of(staged: Staged) -> list[tuple[int, int, int]]:
    """By partition of the staging topic, the first offset and the one behind the last."""
    spans: dict[int, tuple[int, int]] = {}
    for runs in staged.values():
        for run in runs:
            start, stop = spans.get(run.partition, (run.start, run.stop))
            spans[run.partition] = min(start, run.start), max(stop, run.stop)
    return [(partition, *spans[partition]) for partition in sorted(spans)]


def last_batch_size(runs: Iterable[Run], stop: int) -> int:
    """The size of the batch that ends at message number `stop`; 0 if none does."""
    number = 0
    for run in runs:
        for count in run.counts:
            number += count
            if number == stop:
                return count
    return 0


def pack_staged(staged: Staged) -> bytes:
    """Encode runs; the same runs give the same bytes."""
    plain = [
        [
            target.topic,
            target.partition,
            [[run.partition, run.start, list(run.counts)] for run in runs],
        ]
        for target, runs in staged.items()
    ]
    return zlib.compress(json.dumps(plain, separators=(",", ":")).encode(), 1)


def unpack_staged(data: bytes) -> dict[TargetPartition, tuple[Run, ...]]:
    """Decode the bytes of `pack_staged`."""
    return {
        TargetPartition(topic, partition): tuple(
            Run(place, start, tuple(counts)) for place, start, counts in runs
        )
        for topic, partition, runs in json.loads(zlib.decompress(data))
    }
