"""The fixed header: what it packs it reads, and what it would not write it refuses."""

from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, HEADER_BYTES, FrameKind, Header, Limits, Offset
from quivermq.batches.limits import COUNTER_MAX, TIMESTAMP_MS_MAX
from quivermq.errors import Corrupt, QuiverError, TooLarge, UnsupportedFormat

DATA = Header(FrameKind.DATA, count=1)

counters = st.integers(0, COUNTER_MAX)
sizes = st.integers(0, DEFAULT_LIMITS.batch_bytes_max)
u32 = st.integers(0, 2**32 - 1)


@st.composite
def data_headers(draw: st.DrawFn) -> Header:
    compression = draw(st.sampled_from([0, 8, 16]))
    body_bytes = draw(sizes)
    count = draw(st.integers(1, 2**32 - 1))
    starts = st.integers(0, COUNTER_MAX - count)
    return Header(
        FrameKind.DATA,
        flags=draw(st.integers(0, 7)) | compression,
        priority=draw(st.integers(0, 7)),
        body_bytes=body_bytes,
        body_crc=draw(u32),
        term=draw(counters),
        index=draw(counters),
        base_offset=draw(starts),
        timestamp_ms=draw(st.integers(0, TIMESTAMP_MS_MAX)),
        producer_id=draw(counters),
        sequence=draw(starts),
        not_before_ms=draw(st.integers(0, TIMESTAMP_MS_MAX)),
        producer_epoch=draw(u32),
        count=count,
        decoded_bytes=draw(sizes) if compression else body_bytes,
    )


def resealed(packed: bytearray) -> bytes:
    """The same fields under a right checksum."""
    pack_into("<I", packed, HEADER_BYTES - 4, crc32c(bytes(packed[:-4])))
    return bytes(packed)


@given(data_headers(), st.integers(0, 20))
def test_a_header_reads_back_as_it_was_packed_wherever_it_starts(header: Header, at: int) -> None:
    packed = header.pack()
    assert len(packed) == HEADER_BYTES
    assert Header.unpack(bytes(at) + packed, at) == header


@given(data_headers(), st.integers(0, HEADER_BYTES * 8 - 1))
def test_every_single_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    packed = bytearray(header.pack())
    packed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        Header.unpack(packed)


@given(st.binary(min_size=HEADER_BYTES - 4, max_size=HEADER_BYTES - 4))
def test_arbitrary_fields_under_a_right_checksum_are_read_or_refused(fields: bytes) -> None:
    packed = resealed(bytearray(b"\x51\x71\x01" + fields[3:] + bytes(4)))
    try:
        header = Header.unpack(packed)
    except QuiverError:
        return
    assert header.pack() == packed


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_header_cut_short_is_corrupt(size: int) -> None:
    with pytest.raises(Corrupt, match=f"{size} are left"):
        Header.unpack(DATA.pack()[:size])


def test_intact_bytes_of_another_version_are_unsupported_not_damaged() -> None:
    packed = bytearray(DATA.pack())
    packed[2] = 2
    with pytest.raises(UnsupportedFormat, match="version 2; this build reads version 1"):
        Header.unpack(resealed(packed))


def test_damaged_bytes_that_look_like_another_version_are_damaged() -> None:
    packed = bytearray(DATA.pack())
    packed[2] = 2
    with pytest.raises(Corrupt, match="checksum") as caught:
        Header.unpack(packed)
    assert not isinstance(caught.value, UnsupportedFormat)


def test_zeros_are_no_frame() -> None:
    with pytest.raises(Corrupt, match="magic 0x0000"):
        Header.unpack(bytes(HEADER_BYTES))


def test_a_reserved_byte_that_is_set_is_refused() -> None:
    packed = bytearray(DATA.pack())
    packed[7] = 1
    with pytest.raises(UnsupportedFormat, match="reserved"):
        Header.unpack(resealed(packed))


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"kind": FrameKind.COMMAND}, "cannot hold 1 messages"),
        ({"count": 0}, "cannot hold 0 messages"),
        (
            {"kind": FrameKind.NOOP, "count": 0, "flags": 1},
            "kind 4 cannot hold 0 messages with flags 0x0001",
        ),
        ({"flags": 24}, "flags 0x0018"),
        ({"priority": 8}, "priority 8"),
        ({"decoded_bytes": 1}, "claims 1"),
        ({"timestamp_ms": TIMESTAMP_MS_MAX + 1}, "year 9999"),
        ({"not_before_ms": TIMESTAMP_MS_MAX + 1}, "year 9999"),
        ({"base_offset": COUNTER_MAX}, "above 2"),
        ({"sequence": COUNTER_MAX}, "above 2"),
        ({"term": COUNTER_MAX + 1}, "above 2"),
        ({"index": COUNTER_MAX + 1}, "above 2"),
        ({"producer_id": COUNTER_MAX + 1}, "above 2"),
    ],
)
def test_fields_that_no_build_writes_are_corrupt(lie: dict[str, int], words: str) -> None:
    with pytest.raises(Corrupt, match=words):
        Header.unpack(DATA._replace(**lie).pack())


@pytest.mark.parametrize(
    ("later", "words"),
    [({"kind": 0}, "kind 0"), ({"kind": 6}, "kind 6"), ({"flags": 32}, "flags 0x0020")],
)
def test_intact_fields_that_a_later_release_may_write_are_not_corrupt(
    later: dict[str, int], words: str
) -> None:
    packed = DATA._replace(**later).pack()
    with pytest.raises(UnsupportedFormat, match=words):
        Header.unpack(packed)
    damaged = bytearray(packed)
    damaged[9] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        Header.unpack(damaged)


@pytest.mark.parametrize("flags", [0, 8])
def test_a_body_at_the_limit_is_read_and_one_past_it_is_too_large(flags: int) -> None:
    limits = Limits(batch_bytes_max=1_000)
    at_limit = DATA._replace(flags=flags, body_bytes=1_000, decoded_bytes=1_000)
    assert Header.unpack(at_limit.pack(), 0, limits) == at_limit
    past = {"body_bytes": 1_001, "decoded_bytes": 1_001}
    with pytest.raises(TooLarge, match="1,001 bytes is above the limit of 1,000"):
        Header.unpack(at_limit._replace(**past).pack(), 0, limits)


def test_a_small_body_that_declares_to_decompress_past_the_limit_is_too_large() -> None:
    header = DATA._replace(flags=16, body_bytes=10, decoded_bytes=1_001)
    with pytest.raises(TooLarge):
        Header.unpack(header.pack(), 0, Limits(batch_bytes_max=1_000))


def test_the_derived_figures_follow_from_the_fields() -> None:
    header = Header(FrameKind.DATA, count=3, base_offset=Offset(10), body_bytes=50)
    assert header.next_offset == 13
    assert header.frame_bytes == HEADER_BYTES + 50
