"""A bit that changed on the way is noticed, wherever it is."""

from collections.abc import Callable

import pytest
from google.protobuf.message import Message

from quivermq.batches import encode_batch
from quivermq.errors import ConnectionFailed, QuiverError
from quivermq.wire import (
    BROKER_ENVELOPE_BYTES_MAX,
    CHECKSUM_BYTES,
    PROTOCOL,
    PROTOCOL_MIN,
    Receiver,
    packet,
    parse_peer_hello,
    parse_peer_packet,
    parse_request,
    parse_response,
    proto,
)
from quivermq.wire.receiver import LARGE_BYTES
from tests.wire.samples import PACKET_BYTES_MAX, feed, flips, packed, unchecked

SETTLE = proto.Request(
    id=300,
    settle=proto.Settle(
        topic="orders",
        group="workers",
        consumer=1 << 40,
        settlements=[proto.Settlement(lease=77, intervals=[proto.Interval(start=8, end=9)])],
    ),
)
HELLO = proto.Request(
    id=1, hello=proto.Hello(protocol=PROTOCOL, protocol_min=PROTOCOL_MIN, client="a")
)
WELCOME = proto.Response(id=1, welcome=proto.Welcome(protocol=PROTOCOL, version="9", node=3))
PRODUCED = proto.Response(id=300, produced=proto.Produced(batches=[{"first_offset": 5}]))
PEER_HELLO = proto.PeerHello(protocol=PROTOCOL, protocol_min=PROTOCOL_MIN, node=3, level_max=2)
PEER_PACKET = proto.PeerPacket(
    alive=True,
    clock_ms=1_700_000_000_000,
    peer_messages=[proto.PeerMessage(partition=bytes(16), sender=1, to=2, rouse=proto.Rouse())],
)
Parser = Callable[[memoryview], Message]


def said_protocol(first: Message) -> int:
    if isinstance(first, proto.Request):
        return first.hello.protocol
    if isinstance(first, proto.Response):
        return first.welcome.protocol
    assert isinstance(first, proto.PeerHello)
    return first.protocol


def greeted(packet_bytes_max: int = PACKET_BYTES_MAX) -> Receiver:
    """The other side has said hello, with a checksum."""
    receiver = Receiver(packet_bytes_max)
    assert len(feed(receiver, packed(b"hello"))) == 1
    receiver.check_protocol(PROTOCOL)
    return receiver


@pytest.mark.parametrize("message", [SETTLE, PRODUCED, PEER_PACKET], ids=["ask", "say", "peer"])
@pytest.mark.parametrize("frames", [[], [encode_batch([b"value"])]], ids=["alone", "batches"])
def test_no_flipped_bit_gives_another_message(message: Message, frames: list) -> None:
    envelope = message.SerializeToString()
    content = packed(envelope, frames)
    [whole] = feed(greeted(), content)
    assert bytes(whole.envelope) == envelope, "nothing of the checksum is left in it"
    refused = 0
    for changed in flips(content[: 8 + len(envelope) + CHECKSUM_BYTES]):
        receiver = greeted(4_096)
        try:
            got = feed(receiver, changed + content[len(changed) :])
        except QuiverError:
            refused += 1
        else:
            # A length that has grown: what comes next is taken for a part of it, and gives it away.
            assert got == []
            with pytest.raises(QuiverError):
                feed(receiver, content * (1 + 4_096 // len(content)))
    assert refused > 8 * len(envelope)


@pytest.mark.parametrize(
    ("first", "parser"),
    [(HELLO, parse_request), (WELCOME, parse_response), (PEER_HELLO, parse_peer_hello)],
    ids=["hello", "welcome", "peer"],
)
def test_no_flipped_bit_of_a_first_packet_is_taken_for_protocol_1(
    first: Message, parser: Parser
) -> None:
    for changed in flips(packed(first.SerializeToString())):
        receiver = Receiver(PACKET_BYTES_MAX)
        try:
            got = feed(receiver, changed)
            said = [said_protocol(parser(found.envelope)) for found in got]
            for protocol in said:
                receiver.check_protocol(protocol)
        except QuiverError:
            continue
        # Without a protocol it is no first packet, and refused for that.
        assert said in ([], [0]), f"{changed.hex()} was read"


def test_a_damaged_large_packet_is_noticed() -> None:
    content = packed(SETTLE.SerializeToString(), [encode_batch([bytes(2 * LARGE_BYTES)])])
    assert parse_request(feed(greeted(), content)[0].envelope) == SETTLE
    # Either length, the envelope, the tag of the checksum and its last byte.
    for at in (3, 7, 12, 8 + SETTLE.ByteSize(), 13 + SETTLE.ByteSize()):
        changed = bytearray(content)
        changed[at] ^= 1
        with pytest.raises(QuiverError):
            feed(greeted(), bytes(changed) + content)


def test_after_a_first_checksum_every_packet_needs_one() -> None:
    with pytest.raises(ConnectionFailed, match="no checksum"):
        feed(greeted(), unchecked(SETTLE.SerializeToString()))
    with pytest.raises(ConnectionFailed, match="no checksum"):
        feed(greeted(), unchecked(b""))


def test_a_hello_of_protocol_2_needs_a_checksum() -> None:
    receiver = Receiver(PACKET_BYTES_MAX)
    [found] = feed(receiver, unchecked(HELLO.SerializeToString()))
    assert parse_request(found.envelope) == HELLO
    receiver.check_protocol(1)
    with pytest.raises(ConnectionFailed, match="no checksum"):
        receiver.check_protocol(2)


def test_a_first_packet_with_a_wrong_checksum_is_never_one_of_protocol_1() -> None:
    said = proto.Response(error=proto.Error(code="Overloaded", message="later"))
    content = bytearray(packed(said.SerializeToString()))
    content[14] ^= 4
    with pytest.raises(ConnectionFailed, match="fails its checksum"):
        feed(Receiver(PACKET_BYTES_MAX), bytes(content))


def test_protocol_1_needs_no_checksums() -> None:
    receiver = Receiver(PACKET_BYTES_MAX)
    sent = [SETTLE.SerializeToString(), b"", PEER_PACKET.SerializeToString()]
    got = feed(receiver, b"".join(map(unchecked, sent)))
    assert [bytes(found.envelope) for found in got] == sent


def test_a_checksum_of_an_earlier_connection_is_ignored() -> None:
    """A broker of protocol 1 keeps fields that it does not know in what it passes on."""
    front = SETTLE.SerializeToString()
    passed_on = front + b"\xc5\x3e1234"
    receiver = Receiver(PACKET_BYTES_MAX)
    *_, found = feed(receiver, unchecked(b"hello") + unchecked(passed_on))
    assert parse_request(found.envelope).settle == SETTLE.settle
    # Passed on once more, by a broker that adds a checksum of its own.
    [found] = feed(greeted(), packed(passed_on))
    assert parse_request(found.envelope).settle == SETTLE.settle


def test_earlier_builds_read_what_has_a_checksum() -> None:
    for message, parser in (
        (SETTLE, parse_request),
        (PRODUCED, parse_response),
        (PEER_HELLO, parse_peer_hello),
        (PEER_PACKET, parse_peer_packet),
    ):
        content = b"".join(packet(message.SerializeToString()))
        read = parser(memoryview(content)[8:])
        read.DiscardUnknownFields()  # type: ignore[attr-defined]
        assert read == message


def test_no_message_uses_the_number_of_the_checksum() -> None:
    for kind in (proto.Request, proto.Response, proto.PeerHello, proto.PeerPacket):
        assert 1000 not in kind.DESCRIPTOR.fields_by_number


def test_the_limit_of_an_envelope_counts_its_checksum() -> None:
    largest = bytes(BROKER_ENVELOPE_BYTES_MAX - CHECKSUM_BYTES)
    receiver = Receiver(PACKET_BYTES_MAX, BROKER_ENVELOPE_BYTES_MAX)
    assert len(feed(receiver, packed(largest))[0].envelope) == len(largest)
    with pytest.raises(QuiverError, match="above the limit"):
        feed(receiver, packed(largest + b"\0"))
