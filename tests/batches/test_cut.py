"""A part of a batch is a batch: the same messages at the same offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, Index, Offset, Origin, cut, decode_messages, encode_batch
from quivermq.errors import InvalidRequest


def stored(count: int, compression=None) -> Frame:
    frame = encode_batch(
        [b"value %d" % number * 20 for number in range(count)],
        keys=[None if number % 3 else b"k%d" % number for number in range(count)],
        headers=[{"h": b"%d" % number} if number % 2 else None for number in range(count)],
        compression=compression,
        origin=Origin(7, 1, 40, priority=5),
    )
    return frame.stamped(term=2, index=Index(9), base_offset=Offset(1000), timestamp_ms=77)


@given(
    st.integers(1, 40).flatmap(
        lambda count: st.tuples(
            st.just(count), st.integers(0, count - 1), st.integers(1, count)
        ).filter(lambda it: it[1] < it[2])
    ),
    st.sampled_from([None, "lz4", "zstd"]),
)
def test_a_part_holds_the_same_messages(sizes: tuple[int, int, int], compression) -> None:
    count, first, stop = sizes
    whole = stored(count, compression)
    part = cut(whole, 1000 + first, 1000 + stop)
    again = Frame.parse(bytes(part))
    assert decode_messages(again) == decode_messages(whole)[first:stop]
    assert again.header.sequence == 40 + first
    assert again.header.index == 9


def test_all_of_a_batch_is_the_batch_itself() -> None:
    whole = stored(5)
    assert cut(whole, 1000, 1005) is whole


def test_a_part_does_not_carry_its_neighbours() -> None:
    assert b"value 7" not in bytes(cut(stored(20), 1003, 1005))


@pytest.mark.parametrize("bounds", [(999, 1001), (1000, 1000), (1004, 1006), (1003, 1002)])
def test_what_is_not_in_the_batch_cannot_be_cut_out(bounds: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequest, match="does not hold"):
        cut(stored(5), *bounds)
