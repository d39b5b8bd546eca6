"""A peer of a later release sends what this one cannot read: nobody else is harmed."""

from collections.abc import Iterator

from crc32c import crc32c

from quivermq.batches import DEFAULT_LIMITS, Frame, encode_batch
from quivermq.node.peer_connection import Incoming
from quivermq.wire import PROTOCOL, Packet, proto
from tests.transports.stage import on_loop

FRAME_VERSION_AT = 2


def later(frame: Frame) -> bytes:
    header = bytearray(frame.packed_header[:-4])
    header[FRAME_VERSION_AT] += 1
    return bytes(header) + crc32c(header).to_bytes(4, "little") + bytes(frame.body)


@on_loop
async def test_letters_beside_a_frame_of_a_later_release_arrive() -> None:
    taken: list[tuple[list[bytes], list[Frame]]] = []

    def take(node: int, peer_packet: proto.PeerPacket, frames: list[Frame]) -> Iterator[None]:
        assert node == 2
        taken.append(([letter.partition for letter in peer_packet.peer_messages], frames))
        yield

    incoming = Incoming(lambda hello: hello, take, set(), DEFAULT_LIMITS, 60.0)
    incoming.hello = proto.PeerHello(protocol=PROTOCOL, node=2)
    first, second, third = (encode_batch([word]) for word in (b"a", b"b", b"c"))
    letters = [
        proto.PeerMessage(partition=b"with one", frames=1),
        proto.PeerMessage(partition=b"of a later release", frames=2),
        proto.PeerMessage(partition=b"without any"),
        proto.PeerMessage(partition=b"behind it", frames=1),
    ]
    envelope = proto.PeerPacket(peer_messages=letters).SerializeToString()
    batches = bytes(first) + bytes(second) + later(second) + bytes(third)
    incoming.packet_received(Packet(memoryview(envelope), memoryview(batches)))
    assert taken == [([b"with one", b"without any"], [first])]
    whole = bytes(first) + bytes(second) + bytes(second) + bytes(third)
    incoming.packet_received(Packet(memoryview(envelope), memoryview(whole)))
    assert len(taken[1][0]) == len(taken[1][1]) == 4
