"""What clients and brokers send each other: packets, peer messages, frames, batches."""

from contextlib import suppress

from crc32c import crc32c

from quivermq.batches import Frame, FrameKind, Header, Index, Offset, encode_batch
from quivermq.errors import InvalidRequest
from quivermq.node.peer_codec import TRAVELLING, decode_mail, encode_mail
from quivermq.raft import (
    Act,
    Change,
    Configuration,
    Entry,
    EntryKind,
    MembershipChange,
    Message,
    MessageKind,
    Snapshot,
)
from quivermq.replica import (
    Chunk,
    ChunkRequest,
    Consensus,
    EntriesReply,
    EntriesRequest,
    Mail,
    Offer,
    Rouse,
    Sleep,
    TransferEnded,
)
from quivermq.wire import (
    Packet,
    Receiver,
    frames_of,
    packet,
    parse_peer_packet,
    parse_request,
    parse_response,
    proto,
)
from tests.batches.lies import outcome
from tests.batches.samples import COLUMN_SETS, COMPRESSIONS, frame_of
from tests.fuzz.seals import seal_frames, seal_packets
from tests.fuzz.target import Target

PACKET_BYTES_MAX = 1 << 20


def _received(data: bytes) -> list[Packet]:
    receiver = Receiver(PACKET_BYTES_MAX, PACKET_BYTES_MAX, 1 << 18)
    found: list[Packet] = []
    left = memoryview(data)
    while left:
        buffer = receiver.get_buffer()
        size = min(len(buffer), len(left))
        buffer[:size] = left[:size]
        left = left[size:]
        found += receiver.received(size)
    return found


def _bytes_of(envelope: bytes, frames: list[Frame] | None = None) -> bytes:
    return b"".join(map(bytes, packet(envelope, frames or [])))


# Packets, as a broker and a client receive them.


def _packets() -> list[bytes]:
    frames = [
        encode_batch([b"one"]),
        encode_batch([b"one", b"", b"three" * 20], keys=[b"k", None, b"l"]),
        encode_batch([b"x" * 50] * 20, compression="zstd"),
    ]
    hello = proto.Request(id=1, hello=proto.Hello(protocol=2, protocol_min=1, client="fuzz"))
    produce = proto.Request(id=2, produce=proto.Produce(topic="orders", partition=1))
    poll = proto.Request(id=3, poll=proto.Poll(topic="orders", group="g", messages_max=10))
    stored = proto.Response(id=2, produced=proto.Produced(batches=[proto.Stored(count=1)]))
    two = _bytes_of(poll.SerializeToString()) + _bytes_of(stored.SerializeToString())
    return [
        _bytes_of(hello.SerializeToString()),
        _bytes_of(produce.SerializeToString(), frames),
        two,
        _bytes_of(produce.SerializeToString(), [encode_batch([b"large" * 20_000])]),
    ]


def _read_packets(data: bytes) -> None:
    for found in _received(data):
        frames_of(found)
        for parse in (parse_request, parse_response):
            with suppress(InvalidRequest):
                parse(found.envelope)


# Peer messages, in packets of their own.


def _mails() -> list[Mail]:
    """Every kind."""

    def stamped(index: int) -> Frame:
        frame = encode_batch([b"entry"])
        return frame.stamped(term=2, index=Index(index), base_offset=Offset(index), timestamp_ms=5)

    change = MembershipChange((Change(Act.ADD_VOTER, 4),)).encode()
    entries = [
        Entry(2, 8, data=stamped(8)),
        Entry(2, 9),
        Entry(2, 10, EntryKind.MEMBERSHIP, change),
        Entry(2, 11, data=stamped(11)),
    ]
    append = Message(MessageKind.APPEND, 1, 2, 2, 2, 7, entries, 7)
    configuration = Configuration(voters=(1, 2), outgoing=(2, 3), learners_next=(3,))
    snapshot = Message(MessageKind.SNAPSHOT, 1, 2, 3, snapshot=Snapshot(7, 2, configuration))
    others = [kind for kind in TRAVELLING.values() if kind is not MessageKind.APPEND]
    return [
        *(Consensus(Message(kind, 1, 2, 3, 2, 7)) for kind in others),
        Consensus(append),
        Offer(snapshot, 100, 7),
        ChunkRequest(Index(7), 5, 0),
        Chunk(Index(7), 5, 0, b"part"),
        TransferEnded(Index(7), True),
        EntriesRequest(Index(3), Index(9)),
        EntriesReply(Index(8), (stamped(8), stamped(9)), Index(1)),
        Rouse(),
        Sleep(7, 7),
    ]


def _peer_packets() -> list[bytes]:
    encoded = [encode_mail(bytes(16), 2, 1, mail) for mail in _mails()]
    groups = [[one] for one in encoded] + [encoded]
    return [
        _bytes_of(
            proto.PeerPacket(
                peer_messages=[message for message, _ in group], alive=True, clock_ms=7
            ).SerializeToString(),
            [frame for _, frames in group for frame in frames],
        )
        for group in groups
    ]


def _read_peer_packets(data: bytes) -> None:
    for found in _received(data):
        frames = frames_of(found)
        at = 0
        for message in parse_peer_packet(found.envelope).peer_messages:
            # Other messages of a packet are decoded where one is not well-formed.
            with suppress(InvalidRequest):
                decode_mail(message, frames[at : at + message.frames])
            at += message.frames


# Frames and batches.


def _frames() -> list[bytes]:
    frames = [frame_of(flags, compression, 4) for flags in (0, 7) for compression in COMPRESSIONS]
    frames += [Frame.of(FrameKind.COMMAND, b"command"), Frame.of(FrameKind.NOOP)]
    return [bytes(frame) for frame in frames] + [b"".join(map(bytes, frames[:3]))]


def _read_frames(data: bytes) -> None:
    outcome(data)
    for frame in Frame.parse_all(memoryview(data)):
        assert Header.unpack(frame.header.pack()) == frame.header


def _batches() -> list[bytes]:
    """Flags, count, and how much it claims to decompress to, then a body."""
    return [
        bytes([frame.header.flags, rows]) + bytes(frame.body)
        for flags in COLUMN_SETS
        for compression in COMPRESSIONS
        for rows in (1, 5)
        for frame in [frame_of(flags, compression, rows)]
    ]


def _read_batch(data: bytes) -> None:
    """A body under a header with right checksums: every input reaches the decoder."""
    if len(data) < 2:
        return
    flags, count, body = data[0] % 32, data[1], data[2:]
    is_compressed = bool(flags & 24)
    header = Header(
        FrameKind.DATA,
        flags=flags,
        body_bytes=len(body),
        body_crc=crc32c(body),
        count=count,
        decoded_bytes=1 << 20 if is_compressed else len(body),
    )
    outcome(header.pack() + body)


WIRE_TARGETS = {
    "packet": Target(_packets, _read_packets, seal_packets),
    "peer": Target(_peer_packets, _read_peer_packets, seal_packets),
    "frame": Target(_frames, _read_frames, seal_frames),
    "batch": Target(_batches, _read_batch),
}
