"""Cuts a part of a batch into a batch of its own, for readers of a few messages of many."""

from crc32c import crc32c

from quivermq.batches.decode import decode_batch
from quivermq.batches.encode import without_surroundings
from quivermq.batches.frame import Frame
from quivermq.batches.header import COMPRESSED, Buffer, FrameKind, Offset
from quivermq.batches.limits import DEFAULT_LIMITS, Limits
from quivermq.batches.plain_cut import plain_part
from quivermq.errors import InvalidRequest


def cut(frame: Frame, start: int, stop: int, limits: Limits = DEFAULT_LIMITS) -> Frame:
    """The batch with only the messages of offsets [start, stop), which must be in it.

    Uncompressed, whatever the batch was. It stands at its own offset, under its own sequence.
    """
    header = frame.header
    skipped, count = start - header.base_offset, stop - start
    if skipped < 0 or count < 1 or stop > header.next_offset:
        raise InvalidRequest(f"{frame!r} does not hold offsets {start} to {stop - 1}")
    if count == header.count:
        return frame
    body = _plain_part(frame, skipped, skipped + count, limits)
    if body is None:
        part = decode_batch(frame, limits, first=skipped, stop=skipped + count)
        body = memoryview(without_surroundings(part).serialize()).cast("B")
    size = len(body)
    return Frame(
        header._replace(
            flags=header.flags & ~COMPRESSED,
            body_bytes=size,
            body_crc=crc32c(body),
            base_offset=Offset(start),
            sequence=header.sequence + skipped,
            count=count,
            decoded_bytes=size,
        ),
        body,
    )


def _plain_part(frame: Frame, first: int, stop: int, limits: Limits) -> Buffer | None:
    """The part without Arrow, where that is possible."""
    header = frame.header
    if header.kind != FrameKind.DATA or header.flags:
        return None
    return plain_part(frame.body, header.count, first, stop, limits.message_bytes_max)
