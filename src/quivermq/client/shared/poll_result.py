"""Turns the result of a poll into messages or one Arrow table. No I/O, no Python per message."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, compress, count, repeat
from typing import Any, NamedTuple, TypeVar

from quivermq import batches
from quivermq.batches import Frame, Header, Limits, pa, pc
from quivermq.client.decode import record_batch_of, schema
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease
from quivermq.client.shared.poll import LeasedRun
from quivermq.errors import InvalidRequest
from quivermq.garbage_pause import GARBAGE_PAUSE
from quivermq.intervals import Interval

M = TypeVar("M", bound=LeasedFields)


@cache
def leased_schema() -> Any:
    """The schema of every table that is polled; it is also the name `LEASED_SCHEMA` of this
    module."""
    return pa.schema(
        [
            *schema(),
            pa.field("partition", pa.int32(), nullable=False),
            pa.field("delivery_count", pa.int32(), nullable=False),
        ]
    )


def __getattr__(name: str) -> Any:
    if name != "LEASED_SCHEMA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return leased_schema()


class LeasedSlice(NamedTuple):
    """A batch, and the rows of it that were leased."""

    frame: Frame
    start: int
    """The first offset that was leased, and behind the last."""
    stop: int
    run_lengths: list[int]
    """From `start` to `stop`, without gaps."""
    deliveries: list[int]
    """Of each run; 0: it was not leased."""

    @property
    def has_gaps(self) -> bool:
        """Some messages in between were not leased."""
        return 0 in self.deliveries


def messages_of_runs(leased_runs: Sequence[LeasedRun], kind: type[M], limits: Limits) -> list[M]:
    """All messages, the most urgent first; then by partition, in the order of their offsets."""
    messages: list[M] = []
    # The collector would look through the young ones again for every 700: for ten thousand messages
    # that is more work than making them.
    with GARBAGE_PAUSE:
        for lease, leased_slice in slices_of_runs(leased_runs):
            messages += messages_of_slice(lease, leased_slice, kind, limits)
    return messages


def slices_of_runs(leased_runs: Sequence[LeasedRun]) -> list[tuple[Lease, LeasedSlice]]:
    """The batches of all leased runs, the most urgent first."""
    slices = [
        (leased_run.lease, leased_slice)
        for leased_run in leased_runs
        for leased_slice in slices_of(leased_run)
    ]
    if len(slices) > 1:
        slices.sort(key=lambda found: -found[1].frame.header.priority)
    return slices


def messages_of_slice(
    lease: Lease, leased_slice: LeasedSlice, kind: type[M], limits: Limits
) -> list[M]:
    """The messages of one batch that were leased."""
    header = leased_slice.frame.header
    lone = batches.decode_lone(leased_slice.frame, limits)
    if lone is not None:
        return [_lone_message(lease, leased_slice, kind, lone)]
    columns = batches.decode_columns(
        leased_slice.frame,
        limits,
        first=leased_slice.start - header.base_offset,
        stop=leased_slice.stop - header.base_offset,
    )
    if len(leased_slice.deliveries) == 1:
        delivery = leased_slice.deliveries[0]
        return messages_of_columns(lease, leased_slice.start, columns, header, delivery, kind)
    deliveries = list(
        chain.from_iterable(map(repeat, leased_slice.deliveries, leased_slice.run_lengths))
    )
    rows = _rows(lease, leased_slice.start, columns, header, deliveries)
    if leased_slice.has_gaps:
        rows = compress(rows, deliveries)
    return _made(kind, rows)


def messages_of_columns(
    lease: Lease, start: int, columns: Any, header: Header, delivery: int, kind: type[M]
) -> list[M]:
    """Messages in a row, from the offset `start` on, that were delivered equally often."""
    return _made(kind, _rows(lease, start, columns, header, repeat(delivery)))


def _rows(
    lease: Lease, start: int, columns: Any, header: Header, deliveries: Iterable[int]
) -> Iterator[tuple[Any, ...]]:
    timestamps, keys, values, headers = columns
    return zip(
        repeat(lease.topic),
        repeat(lease.partition),
        count(start),
        keys,
        values,
        headers,
        timestamps,
        repeat(header.priority),
        deliveries,
        repeat(lease),
        strict=False,
    )


def _made(kind: type[M], rows: Iterable[tuple[Any, ...]]) -> list[M]:
    # `tuple.__new__` skips the Python-level constructor: half the time of a whole poll.
    return list(map(tuple.__new__, repeat(kind), rows))


def _lone_message(lease: Lease, leased_slice: LeasedSlice, kind: type[M], value: bytes) -> M:
    header = leased_slice.frame.header
    message: M = tuple.__new__(
        kind,
        (
            lease.topic,
            lease.partition,
            leased_slice.start,
            None,
            value,
            batches.NO_HEADERS,
            header.timestamp_ms,
            header.priority,
            leased_slice.deliveries[0],
            lease,
        ),
    )
    return message


def slices_of(leased_run: LeasedRun) -> Iterator[LeasedSlice]:
    """The batches of a leased run, each with what of it was leased."""
    pieces = leased_run.pieces
    place = 0
    for frame in leased_run.frames:
        first, end = frame.header.base_offset, frame.header.next_offset
        lengths: list[int] = []
        deliveries: list[int] = []
        start = at = -1
        while place < len(pieces) and pieces[place].start < end:
            piece = pieces[place]
            begin, stop = max(piece.start, first), min(piece.end, end)
            if begin < stop:
                if start < 0:
                    start = at = begin
                elif begin > at:
                    lengths.append(begin - at)
                    deliveries.append(0)
                lengths.append(stop - begin)
                deliveries.append(piece.delivery)
                at = stop
            if piece.end > end:
                break
            place += 1
        if lengths:
            yield LeasedSlice(frame, start, at, lengths, deliveries)


class Rows(NamedTuple):
    """Which rows of a table belong to a lease."""

    lease: Lease
    first: int
    stop: int


def table_of_runs(leased_runs: Sequence[LeasedRun], limits: Limits) -> tuple[Any, list[Rows]]:
    """One `pyarrow.Table` of `LEASED_SCHEMA`, and which of its rows belong to which lease."""
    parts: list[Any] = []
    rows: list[Rows] = []
    at = 0
    for leased_run in leased_runs:
        first = at
        for leased_slice in slices_of(leased_run):
            batch = _record_batch(leased_run.lease.partition, leased_slice, limits)
            parts.append(batch)
            at += batch.num_rows
        rows.append(Rows(leased_run.lease, first, at))
    return pa.Table.from_batches(parts, leased_schema()), rows


def _record_batch(partition: int, leased_slice: LeasedSlice, limits: Limits) -> Any:
    batch = record_batch_of(leased_slice.frame, leased_slice.start, leased_slice.stop, limits)
    partitions = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    columns = [*batch.columns, partitions, _deliveries(leased_slice)]
    found = pa.RecordBatch.from_arrays(columns, schema=leased_schema())
    if leased_slice.has_gaps:
        found = found.filter(pc.greater(found.column("delivery_count"), 0))
    return found


def _deliveries(leased_slice: LeasedSlice) -> Any:
    if len(leased_slice.deliveries) == 1:
        return pa.repeat(
            pa.scalar(leased_slice.deliveries[0], pa.int32()), leased_slice.run_lengths[0]
        )
    ends = pc.cumulative_sum(pa.array(leased_slice.run_lengths, pa.int32()))
    runs = pa.RunEndEncodedArray.from_arrays(ends, pa.array(leased_slice.deliveries, pa.int32()))
    return pc.run_end_decode(runs)


def mask_of(mask: Any, rows: int) -> Any:
    """A mask as a `pyarrow.BooleanArray` over so many rows."""
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    if not isinstance(mask, pa.Array):
        try:
            # What it is shows before it is made something else: 0.5 is neither true nor false.
            mask = pa.array(mask) if len(mask) else pa.array([], pa.bool_())
        except (pa.ArrowException, TypeError, ValueError) as error:
            problem = f"a mask is a sequence of bool, one for each row: {error}"
            raise InvalidRequest(problem) from error
    if pa.types.is_null(mask.type):
        mask = mask.cast(pa.bool_())
    if mask.type != pa.bool_():
        raise InvalidRequest(f"a mask is a sequence of bool, not of {mask.type}")
    if len(mask) != rows:
        raise InvalidRequest(f"a mask has one bool for each row: {len(mask)} for {rows} rows")
    return pc.fill_null(mask, False) if mask.null_count else mask


def intervals_of_rows(offsets: Any, mask: Any) -> list[Interval]:
    """The masked offsets of one lease, which ascend, as intervals."""
    chosen = offsets.filter(mask)
    rows = len(chosen)
    if not rows:
        return []
    first, last = chosen[0].as_py(), chosen[rows - 1].as_py()
    if last - first == rows - 1:
        return [(first, last + 1)]
    gaps = pc.greater(pc.subtract(chosen.slice(1), chosen.slice(0, rows - 1)), 1)
    lasts = pc.indices_nonzero(gaps)
    begins = pa.concat_arrays(
        [pa.array([0], pa.uint64()), pc.add(lasts, pa.scalar(1, pa.uint64()))]
    )
    finals = pa.concat_arrays([lasts, pa.array([rows - 1], pa.uint64())])
    return list(
        zip(
            chosen.take(begins).to_pylist(),
            pc.add(chosen.take(finals), 1).to_pylist(),
            strict=True,
        )
    )
