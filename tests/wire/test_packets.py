"""Packing and unpacking packets."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, Header, Limits
from quivermq.errors import Corrupt, InvalidRequest, QuiverError, TooLarge
from quivermq.wire import Packet, frames_of, packet
from quivermq.wire.packets import JOINED_BYTES_MAX
from tests.wire.samples import command, data_frame, frames, packed, received_at_once

LIMITS = Limits()


@given(st.binary(max_size=200), frames)
def test_what_is_packed_is_what_is_received(envelope: bytes, sent: list[Frame]) -> None:
    [got] = received_at_once(packed(envelope, sent))
    assert bytes(got.envelope) == envelope
    assert frames_of(got, LIMITS) == sent


def test_the_bytes_are_the_two_lengths_the_envelope_its_checksum_and_the_frames() -> None:
    frame = command(b"body")
    front = (4 + 3 + 6 + len(frame)).to_bytes(4, "big") + b"\0\0\0\x09env"
    checksum = b"\xc5\x3e" + crc32c(front).to_bytes(4, "little")
    assert packed(b"env", [frame]) == front + checksum + bytes(frame)
    assert packed(b"") == bytes.fromhex("0000000a 00000006 c53e ab81cc1f")


def test_large_bodies_are_not_copied_and_small_ones_are_joined() -> None:
    small, large = command(b"s" * JOINED_BYTES_MAX), command(b"l" * (JOINED_BYTES_MAX + 1))
    assert len(packet(b"envelope")) == 1
    assert len(packet(b"envelope", [small, small])) == 1
    head, body, rest = packet(b"envelope", [small, large, small])
    assert body is large.body
    assert b"".join([head, body, rest]) == packed(b"envelope", [small, large, small])
    assert len(packet(b"envelope", [large])) == 2


def test_a_packet_past_what_its_length_can_say_is_refused() -> None:
    class Endless(Frame):
        def __len__(self) -> int:
            return 1 << 31

    giant = Endless(Header(FrameKind.COMMAND), b"")
    with pytest.raises(TooLarge, match="fewer batches"):
        packet(b"", [giant, giant])


def test_a_batch_that_lost_a_bit_is_refused() -> None:
    content = bytearray(bytes(data_frame()))
    content[-1] ^= 1
    with pytest.raises(Corrupt, match="body fails"):
        frames_of(Packet(memoryview(b""), memoryview(content)), LIMITS)


def test_a_batch_past_the_limit_is_refused() -> None:
    content = memoryview(bytes(command(b"x" * 1_000)))
    with pytest.raises(TooLarge, match="batch_bytes_max"):
        frames_of(Packet(memoryview(b""), content), Limits(batch_bytes_max=999))


def test_a_mark_of_a_log_is_not_taken_from_the_wire() -> None:
    body = bytes(32)
    mark = Frame(
        Header(FrameKind.MARK, body_bytes=32, decoded_bytes=32, body_crc=crc32c(body)), body
    )
    with pytest.raises(InvalidRequest, match="mark"):
        frames_of(Packet(memoryview(b""), memoryview(bytes(mark))), LIMITS)


@given(st.binary(max_size=300), frames, st.integers(0, 1_000))
def test_hostile_batches_raise_nothing_but_refusals(
    noise: bytes, sent: list[Frame], cut: int
) -> None:
    content = b"".join(map(bytes, sent))[:cut] + noise
    try:
        got = frames_of(Packet(memoryview(b""), memoryview(content)), LIMITS)
    except QuiverError:
        return
    assert b"".join(map(bytes, got)) == content
