"""A frame's bytes: parsed without a copy, stamped without a look at the body."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import HEADER_BYTES, Frame, FrameKind, Index, Limits, Offset
from quivermq.errors import Corrupt, TooLarge
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, frame_of

ENTRY_KINDS = [kind for kind in FrameKind if kind != FrameKind.DATA]


def stamp(frame: Frame) -> Frame:
    return frame.stamped(
        term=5, index=Index(6), base_offset=Offset(1_000), timestamp_ms=1_700_000_000_000
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_a_frame_parses_back_from_its_bytes(flags: int, compression: str | None) -> None:
    frame = frame_of(flags, compression)
    parsed = Frame.parse(bytes(frame))
    assert parsed == frame
    assert hash(parsed) == hash(frame)
    assert parsed.header == frame.header
    assert bytes(parsed) == bytes(frame) == b"".join(frame.buffers())
    assert len(parsed) == len(bytes(frame))


@given(st.sampled_from(ENTRY_KINDS), st.binary(max_size=100))
def test_entries_without_messages_parse_back(kind: FrameKind, body: bytes) -> None:
    parsed = Frame.parse(bytes(Frame.of(kind, body)))
    assert parsed.header.kind == kind
    assert parsed.body == body


def test_frames_back_to_back_all_come_out() -> None:
    frames = [frame_of(flags) for flags in COLUMN_SETS] + [Frame.of(FrameKind.NOOP)]
    assert list(Frame.parse_all(b"".join(map(bytes, frames)))) == frames
    assert list(Frame.parse_all(b"")) == []


def test_a_rest_after_the_last_frame_is_corrupt() -> None:
    frames = Frame.parse_all(bytes(Frame.of(FrameKind.NOOP)) + b"\x00")
    next(frames)
    with pytest.raises(Corrupt):
        next(frames)


@pytest.mark.parametrize("kind_of_buffer", [bytes, bytearray, memoryview])
def test_the_body_is_a_view_of_the_received_buffer(kind_of_buffer: type) -> None:
    sent = bytes(frame_of())
    received = bytearray(b"????" + sent)
    frame = Frame.parse(received if kind_of_buffer is bytearray else kind_of_buffer(received), 4)
    assert isinstance(frame.body, memoryview)
    assert frame.body == sent[HEADER_BYTES:]
    if kind_of_buffer is not bytes:
        start = ctypes.addressof(ctypes.c_char.from_buffer(received))
        body = ctypes.addressof(ctypes.c_char.from_buffer(frame.body))
        assert body == start + 4 + HEADER_BYTES


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_stamping_touches_nothing_but_the_header(compression: str | None) -> None:
    frame = frame_of(7, compression)
    stamped = stamp(frame)
    assert stamped.body is frame.body
    fields = {"term", "index", "base_offset", "timestamp_ms"}
    before, after = frame.header._asdict(), stamped.header._asdict()
    assert {name for name in before if before[name] != after[name]} == fields
    assert bytes(stamped)[HEADER_BYTES:] == bytes(frame)[HEADER_BYTES:]
    assert Frame.parse(bytes(stamped)) == stamped != frame


def test_stamping_leaves_the_frame_it_came_from_as_it_was() -> None:
    frame = frame_of()
    before = bytes(frame)
    stamp(frame)
    assert bytes(frame) == before


def test_every_flipped_bit_of_a_small_frame_is_noticed() -> None:
    sent = bytes(frame_of(7, rows=2))
    for bit in range(len(sent) * 8):
        damaged = bytearray(sent)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            Frame.parse(damaged)


def test_every_cut_of_a_small_frame_is_noticed() -> None:
    sent = bytes(frame_of(7, rows=2))
    for size in range(len(sent)):
        with pytest.raises(Corrupt):
            Frame.parse(sent[:size])


def test_a_command_that_no_reader_would_accept_is_not_built() -> None:
    limits = Limits(batch_bytes_max=100)
    at_limit = Frame.of(FrameKind.COMMAND, bytes(100), limits)
    assert Frame.parse(bytes(at_limit), 0, limits) == at_limit
    with pytest.raises(TooLarge, match="101 bytes"):
        Frame.of(FrameKind.COMMAND, bytes(101), limits)


def test_data_frames_are_not_built_without_messages() -> None:
    with pytest.raises(Corrupt, match="cannot hold 0 messages"):
        Frame.of(FrameKind.DATA, b"body")


def test_a_frame_is_no_equal_of_other_things_and_shows_what_it_is() -> None:
    frame = stamp(frame_of())
    assert frame != bytes(frame)
    assert repr(frame) == (
        f"<Frame data term=5 index=6 offset=1000+5 bytes={frame.header.frame_bytes}>"
    )
