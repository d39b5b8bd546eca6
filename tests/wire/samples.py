"""Packets to test with."""

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, encode_batch
from quivermq.wire import Packet, Receiver, packet
from quivermq.wire.packets import PREFIX

PACKET_BYTES_MAX = 64 << 20


def command(body: bytes) -> Frame:
    return Frame.of(FrameKind.COMMAND, body)


def data_frame(*values: bytes) -> Frame:
    return encode_batch(list(values or [b"one", b"two"]))


def packed(envelope: bytes, frames: Sequence[Frame] = ()) -> bytes:
    return b"".join(packet(envelope, frames))


def unchecked(envelope: bytes, batches: bytes = b"") -> bytes:
    """A packet of protocol 1: without a checksum."""
    return PREFIX.pack(4 + len(envelope) + len(batches), len(envelope)) + envelope + batches


def flips(content: bytes) -> Iterator[bytes]:
    """The same with one bit changed: each bit once."""
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def feed(receiver: Receiver, content: bytes) -> list[Packet]:
    """Let `receiver` take all of it, as fast as it offers room."""
    packets: list[Packet] = []
    view = memoryview(content)
    while view:
        buffer = receiver.get_buffer()
        count = min(len(buffer), len(view))
        buffer[:count] = view[:count]
        packets += receiver.received(count)
        view = view[count:]
    return packets


def received_at_once(content: bytes, packet_bytes_max: int = PACKET_BYTES_MAX) -> list[Packet]:
    return feed(Receiver(packet_bytes_max), content)


frames = st.lists(
    st.builds(command, st.binary(max_size=100))
    | st.builds(command, st.integers(4_000, 4_200).map(bytes))
    | st.lists(st.binary(max_size=30), min_size=1, max_size=5).map(lambda v: data_frame(*v)),
    max_size=5,
)
