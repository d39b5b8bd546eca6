"""Parts of plain batches are cut without Arrow, and are what Arrow makes; what is not sound is left
to Arrow, which refuses it."""

from struct import pack_into

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, Index, Limits, Offset, cut, decode_messages, encode_batch
from quivermq.batches.plain_cut import PLAIN_ROWS_MAX, plain_part
from quivermq.batches.schema import schema_of
from quivermq.errors import Corrupt, TooLarge

MESSAGE_BYTES_MAX = 1 << 20


def as_arrow_writes(values: list[bytes]) -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=schema_of(0))
    return bytes(batch.serialize())


def stored(values: list[bytes]) -> Frame:
    frame = encode_batch(values)
    return frame.stamped(term=1, index=Index(1), base_offset=Offset(0), timestamp_ms=1)


@given(st.lists(st.binary(max_size=40), min_size=2, max_size=30), st.data())
def test_a_part_is_what_arrow_writes(values: list[bytes], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(first + 1, len(values)))
    body = memoryview(encode_batch(values).body)
    part = plain_part(body, len(values), first, stop, MESSAGE_BYTES_MAX)
    assert part == as_arrow_writes(values[first:stop])


def test_more_rows_are_left_to_arrow() -> None:
    values = [b"%d" % number for number in range(PLAIN_ROWS_MAX + 2)]
    body = encode_batch(values).body
    assert plain_part(body, len(values), 0, PLAIN_ROWS_MAX, MESSAGE_BYTES_MAX) is not None
    assert plain_part(body, len(values), 0, PLAIN_ROWS_MAX + 1, MESSAGE_BYTES_MAX) is None
    part = cut(stored(values), 0, PLAIN_ROWS_MAX + 1)
    assert [one.value for one in decode_messages(part)] == values[:-1]


def lying(values: list[bytes], row: int, end: int) -> Frame:
    """A batch whose row ends somewhere else."""
    body = bytearray(encode_batch(values).body)
    ends = body.index(b"".join(size.to_bytes(4, "little") for size in (0, len(values[0]))))
    pack_into("<i", body, ends + 4 * (row + 1), end)
    header = stored(values).header
    return Frame(header, bytes(body))


@pytest.mark.parametrize("end", [-1, 2, 1_000_000, -(2**31), 2**31 - 1])
def test_ends_that_lie_are_refused(end: int) -> None:
    frame = lying([b"abcd", b"efgh", b"ijkl", b"mnop"], 1, end)
    assert plain_part(frame.body, 4, 0, 3, MESSAGE_BYTES_MAX) is None
    with pytest.raises(Corrupt):
        cut(frame, 0, 3)


def test_another_count_than_that_of_the_header_is_refused() -> None:
    frame = stored([b"a", b"b", b"c"])
    lie = Frame(frame.header._replace(count=4), frame.body)
    with pytest.raises(Corrupt, match="counts 4"):
        cut(lie, 0, 2)


def test_a_message_past_its_limit_is_refused() -> None:
    frame = stored([b"x" * 3_000, b"y" * 10, b"z"])
    limits = Limits(message_bytes_max=2_000)
    with pytest.raises(TooLarge):
        cut(frame, 0, 2, limits)
    assert [one.value for one in decode_messages(cut(frame, 1, 2, limits))] == [b"y" * 10]


def test_a_part_does_not_carry_its_neighbours() -> None:
    part = cut(stored([b"mine", b"theirs", b"ours", b"yours"]), 1, 3)
    assert b"mine" not in bytes(part)
    assert b"yours" not in bytes(part)
