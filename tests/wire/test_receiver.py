"""Bytes as they arrive: any split, any size, any nonsense."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.errors import InvalidRequest, QuiverError, TooLarge
from quivermq.wire import (
    BROKER_ENVELOPE_BYTES_MAX,
    CHECKSUM_BYTES,
    ENVELOPE_BYTES_MAX,
    HELLO_BYTES_MAX,
    Packet,
    Receiver,
    frames_of,
)
from quivermq.wire.packets import LENGTH_BYTES, PREFIX
from quivermq.wire.receiver import CHUNK_BYTES, FIRST_BYTES, LARGE_BYTES
from tests.wire.samples import PACKET_BYTES_MAX, command, feed, packed, received_at_once

# Around every size at which a packet takes another way, prefix and frame header included.
SIZES = [
    0, 1, 200, 5_000,
    LARGE_BYTES - 200, LARGE_BYTES - 96, LARGE_BYTES - 95, LARGE_BYTES, LARGE_BYTES + 1,
    CHUNK_BYTES - 96, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES,
]  # fmt: skip
sizes = st.lists(st.sampled_from(SIZES) | st.integers(0, 3 * CHUNK_BYTES), max_size=6)
splits = st.lists(
    st.integers(1, 12) | st.integers(1, 3_000) | st.integers(1, CHUNK_BYTES), min_size=1, max_size=9
)


def content_of(size: int, number: int) -> bytes:
    envelope = b"envelope %d" % number
    return packed(envelope, [command(bytes([number % 256]) * size)] if size else [])


def owned(packets: list[Packet]) -> list[tuple[bytes, bytes]]:
    return [(bytes(packet.envelope), bytes(packet.batches)) for packet in packets]


def in_pieces(receiver: Receiver, content: bytes, pieces: list[int]) -> list[Packet]:
    """Fed in pieces of these sizes, again and again; the receiver's room permitting."""
    packets: list[Packet] = []
    at = turn = 0
    while at < len(content):
        packets += feed(receiver, content[at : at + pieces[turn % len(pieces)]])
        at += pieces[turn % len(pieces)]
        turn += 1
        # Small pieces of large packets tell nothing more after a while.
        if turn == 200:
            pieces = [CHUNK_BYTES]
    return packets


@given(sizes, splits)
def test_any_split_of_the_bytes_gives_the_same_packets(sent: list[int], pieces: list[int]) -> None:
    contents = [content_of(size, number) for number, size in enumerate(sent)]
    expected = [owned(received_at_once(content)) for content in contents]
    assert all(len(packets) == 1 for packets in expected)
    got = in_pieces(Receiver(PACKET_BYTES_MAX), b"".join(contents), pieces)
    assert owned(got) == [packets[0] for packets in expected]


@pytest.mark.parametrize("size", [FIRST_BYTES - 100, FIRST_BYTES, 2 * FIRST_BYTES, 9_000_000])
def test_packets_larger_than_the_first_allocation_arrive_whole(size: int) -> None:
    contents = [content_of(size, 1), content_of(10, 2), content_of(size, 3)]
    got = received_at_once(b"".join(contents))
    assert [packed(bytes(packet.envelope), frames_of(packet)) for packet in got] == contents


@given(sizes)
def test_views_stay_what_they_were_whatever_arrives_later(sent: list[int]) -> None:
    receiver = Receiver(PACKET_BYTES_MAX)
    packets: list[Packet] = []
    copies: list[tuple[bytes, bytes]] = []
    for number, size in enumerate(sent):
        came = feed(receiver, content_of(size, number))
        packets += came
        copies += owned(came)
    feed(receiver, packed(b"\xff" * 100, [command(b"\xff" * CHUNK_BYTES)]) * 3)
    assert owned(packets) == copies


def test_a_small_packet_keeps_no_more_memory_than_its_own() -> None:
    for packet in received_at_once(packed(b"e" * 200) * 1_000):
        assert len(packet.envelope) == 200
        assert len(packet.envelope.obj) == 200 + CHECKSUM_BYTES
        assert packet.batches.obj is packet.envelope.obj


@pytest.mark.parametrize("size", SIZES)
def test_there_is_always_room_to_receive_into(size: int) -> None:
    receiver = Receiver(PACKET_BYTES_MAX)
    content = content_of(size, 0)
    packets = 0
    for start in range(0, len(content), 5_000):
        assert len(receiver.get_buffer())
        packets += len(feed(receiver, content[start : start + 5_000]))
    assert packets == 1
    assert len(receiver.get_buffer())


def test_a_length_past_the_limit_is_refused_with_its_prefix() -> None:
    receiver = Receiver(1_000)
    assert len(feed(receiver, packed(b"", [command(b"x" * (1_000 - 92 - CHECKSUM_BYTES))]))) == 1
    prefix = PREFIX.pack(1_001, 0)
    assert feed(receiver, prefix[:-1]) == []
    with pytest.raises(TooLarge, match=r"packet_bytes_max"):
        feed(receiver, prefix[-1:])


def test_a_client_at_the_port_for_http_is_told_so() -> None:
    with pytest.raises(InvalidRequest, match="the port for HTTP: name the one for clients"):
        feed(Receiver(1_000), b"HTTP/1.1 400 Bad Request")


def test_a_web_browser_is_told_that_it_is_none_of_ours() -> None:
    with pytest.raises(TooLarge, match="no QuiverMQ client"):
        received_at_once(b"GET / HTTP/1.1\r\n")


@pytest.mark.parametrize(("length", "envelope"), [(0, 0), (3, 0), (4, 1), (100, 97), (8, 1 << 31)])
def test_an_envelope_that_is_longer_than_its_packet_is_refused(length: int, envelope: int) -> None:
    with pytest.raises(QuiverError) as refused:
        received_at_once(PREFIX.pack(length, envelope))
    assert isinstance(refused.value, InvalidRequest)


@pytest.mark.parametrize("size", [200, LARGE_BYTES, CHUNK_BYTES + 1])
@pytest.mark.parametrize("bit", range(27))
def test_a_damaged_length_is_noticed_with_the_envelope(size: int, bit: int) -> None:
    """Not when as many bytes have arrived as it claims."""
    receiver = Receiver(1 << 28)
    feed(receiver, packed(b"first"))
    damaged = bytearray(content_of(size, 1))
    length = int.from_bytes(damaged[:LENGTH_BYTES]) ^ 1 << bit
    damaged[:LENGTH_BYTES] = length.to_bytes(LENGTH_BYTES)
    # One that claims less than that is whole before.
    first = bytes(damaged[:4_096])
    with pytest.raises(QuiverError):
        feed(receiver, first)


def test_an_envelope_past_its_limit_is_refused() -> None:
    claim = PREFIX.pack(2 * ENVELOPE_BYTES_MAX, ENVELOPE_BYTES_MAX + 1)
    with pytest.raises(TooLarge, match="envelope"):
        received_at_once(claim)
    assert feed(Receiver(PACKET_BYTES_MAX, BROKER_ENVELOPE_BYTES_MAX), claim) == []


def test_a_claim_alone_allocates_next_to_nothing() -> None:
    """Memory follows what has arrived, so that many silent connections cannot fill it."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        receiver = Receiver(PACKET_BYTES_MAX)
        feed(receiver, PREFIX.pack(PACKET_BYTES_MAX, 10))
        claimed = tracemalloc.get_traced_memory()[0] - before
        assert claimed < CHUNK_BYTES + FIRST_BYTES + 10_000
        tracemalloc.reset_peak()
        arrived = 0
        while arrived < 8 * FIRST_BYTES:
            arrived += CHUNK_BYTES
            feed(receiver, bytes(CHUNK_BYTES))
            held = tracemalloc.get_traced_memory()[0] - before
            assert held < 2 * arrived + FIRST_BYTES + 2 * CHUNK_BYTES
    finally:
        tracemalloc.stop()


def held_by(receivers: int, content: bytes) -> float:
    """Bytes for each of so many, once `content` has arrived at all."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [Receiver(PACKET_BYTES_MAX) for _ in range(receivers)]
        for receiver in kept:
            feed(receiver, content)
        return (tracemalloc.get_traced_memory()[0] - before) / receivers
    finally:
        tracemalloc.stop()


def test_receivers_hold_no_memory_between_packets() -> None:
    assert held_by(1_000, content_of(5_000, 1) * 3) < 4 << 10


def test_receivers_hold_little_memory_before_the_first_packet_is_whole() -> None:
    assert held_by(1_000, content_of(5_000, 1)[:1_000]) < 4 << 10


def test_receivers_that_take_turns_with_memory_do_not_mix_their_packets() -> None:
    """Each has begun a packet when the next one takes its bytes."""
    contents = [content_of(size, number) for number, size in enumerate(SIZES * 3)]
    receivers = [Receiver(PACKET_BYTES_MAX) for _ in contents]
    got: list[list[Packet]] = [[] for _ in contents]
    for piece in (slice(None, 40), slice(40, 1_500), slice(1_500, None)):
        for receiver, packets, content in zip(receivers, got, contents, strict=True):
            packets.extend(feed(receiver, (content * 2)[piece]))
    assert [owned(packets) for packets in got] == [
        owned(received_at_once(content)) * 2 for content in contents
    ]


@given(st.lists(st.binary(max_size=64), max_size=20), st.integers(8, 2_000))
def test_noise_raises_nothing_but_refusals(noise: list[bytes], packet_bytes_max: int) -> None:
    receiver = Receiver(packet_bytes_max)
    for piece in noise:
        try:
            packets = feed(receiver, piece)
        except InvalidRequest:
            return
        for packet in packets:
            assert len(packet.envelope) + len(packet.batches) + 4 <= packet_bytes_max


@given(st.binary(max_size=40), st.data())
def test_a_truncated_stream_gives_only_the_packets_that_are_whole(
    envelope: bytes, data: st.DataObject
) -> None:
    content = packed(envelope, [command(envelope)])
    cut = data.draw(st.integers(0, len(content) - 1))
    assert len(received_at_once(content + content[:cut])) == 1


def test_after_a_hello_packets_may_be_larger() -> None:
    receiver = Receiver(HELLO_BYTES_MAX)
    large = packed(b"envelope", [command(bytes(2 * HELLO_BYTES_MAX))])
    receiver.allow(PACKET_BYTES_MAX)
    assert owned(in_pieces(receiver, large, [CHUNK_BYTES]))[0][0] == b"envelope"
    with pytest.raises(TooLarge):
        in_pieces(Receiver(HELLO_BYTES_MAX), large, [CHUNK_BYTES])


def test_only_what_begins_a_packet_is_shown() -> None:
    receiver = Receiver(PACKET_BYTES_MAX)
    content = content_of(0, 1)

    def arrive(some: bytes) -> memoryview | None:
        receiver.get_buffer()[: len(some)] = some
        return receiver.peek(len(some))

    # The first one tells whether there are checksums.
    assert arrive(content) is None
    receiver.received(len(content))
    assert arrive(content) == content
    # It was taken as it is: the next one begins where it began.
    assert arrive(content[:5]) == content[:5]
    receiver.received(5)
    assert arrive(content[5:]) is None
    assert len(receiver.received(len(content) - 5)) == 1
    large = content_of(CHUNK_BYTES, 2)
    feed(receiver, large[:5_000])
    assert arrive(content) is None
