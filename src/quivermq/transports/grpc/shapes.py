"""Frames as clients get them: one `Message` each; as Arrow, what of them is leased. No I/O."""

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Final, NamedTuple

from quivermq.batches import Frame, Limits, content_type_of, decode_columns
from quivermq.errors import InvalidRequest
from quivermq.node import Turn
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

_ROWS: Final = 500
"""Messages that are made before others on the loop may go on."""


class MessageRun(NamedTuple):
    """Offsets of one frame, from `start` to before `end`, that were delivered equally often."""

    start: int
    end: int
    delivery: int


def check_format(wanted: int) -> None:
    """Raise `InvalidRequest` for a shape that this release does not know."""
    if wanted not in api.Format.values():
        raise InvalidRequest(f"format {wanted} is unknown: use FORMAT_MESSAGES or FORMAT_ARROW")


def runs_of(pieces: Sequence[proto.Piece], frames: Sequence[Frame]) -> Iterator[list[MessageRun]]:
    """For each frame what of it is leased; pieces and frames are both in the order of offsets."""
    at = 0
    for frame in frames:
        first, end = frame.header.base_offset, frame.header.next_offset
        found: list[MessageRun] = []
        while at < len(pieces) and pieces[at].start < end:
            piece = pieces[at]
            behind = piece.start + piece.count
            start, stop = max(piece.start, first), min(behind, end)
            if start < stop:
                found.append(MessageRun(start, stop, piece.delivery))
            if behind > end:
                break
            at += 1
        yield found


async def add_messages(
    into: api.Delivery | api.FetchResponse,
    frame: Frame,
    runs: Sequence[MessageRun],
    limits: Limits,
    turn: Turn,
) -> None:
    """The messages of a frame, one by one."""
    base, priority = frame.header.base_offset, frame.header.priority
    for run in runs:
        columns = decode_columns(frame, limits, first=run.start - base, stop=run.end - base)
        rows = zip(count(run.start), *columns, strict=False)
        while True:
            some = list(islice(rows, _ROWS))
            for offset, timestamp_ms, key, value, headers in some:
                into.messages.add(
                    offset=offset,
                    value=value,
                    key=key,
                    headers=headers,
                    timestamp_ms=timestamp_ms,
                    priority=priority,
                    delivery_count=run.delivery,
                    content_type=content_type_of(headers) if headers else None,
                )
            await turn.rest()
            if len(some) < _ROWS:
                break


def leased_ranges(runs: Sequence[MessageRun]) -> list[api.LeasedRange]:
    """The part of a batch that is leased, in the words of the public API."""
    return [
        api.LeasedRange(
            first_offset=run.start, count=run.end - run.start, delivery_count=run.delivery
        )
        for run in runs
    ]
