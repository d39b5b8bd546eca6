"""Packets between brokers that were damaged on their way, or have no checksum."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from quivermq.addresses import split_address
from quivermq.batches import DEFAULT_LIMITS, Frame, encode_batch
from quivermq.errors import ConnectionFailed
from quivermq.node.peer_connection import Incoming, IncomingConnections, Outgoing, PeerProtocol
from quivermq.wire import PROTOCOL, PROTOCOL_MIN, proto
from tests.node.test_peer_limits import Caller
from tests.node.test_peers import GROUP, Broker, broker
from tests.transports.stage import on_loop, until
from tests.wire.samples import flips, packed, unchecked

HELLO = proto.PeerHello(protocol=PROTOCOL, protocol_min=PROTOCOL_MIN, node=2, level_max=2)
LETTER = proto.PeerMessage(partition=GROUP, sender=2, to=1, frames=1, rouse=proto.Rouse())
FRAME = encode_batch([b"value"])
SENT = proto.PeerPacket(alive=True, clock_ms=1_700_000_000_000, peer_messages=[LETTER])
LEADS = proto.PeerPacket(leads=[proto.Leadership(partition=GROUP)]).SerializeToString()


class Wire:
    """In place of a socket: whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.is_closed

    def is_reading(self) -> bool:
        return True

    def writelines(self, buffers: object) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    abort = close


def hear(protocol: PeerProtocol, content: bytes) -> None:
    protocol.get_buffer(0)[: len(content)] = content
    protocol.buffer_updated(len(content))


def incoming(taken: list[proto.PeerPacket]) -> tuple[Incoming, Wire]:
    def take(node: int, peer_packet: proto.PeerPacket, frames: list[Frame]) -> Iterator[None]:
        taken.append(peer_packet)
        yield

    wire: Any = Wire()
    here = Incoming(lambda _: HELLO, take, IncomingConnections(10), DEFAULT_LIMITS, 60.0)
    here.connection_made(wire)
    return here, wire


@on_loop
async def test_no_flipped_bit_gives_a_broker_another_packet() -> None:
    taken: list[proto.PeerPacket] = []
    content = packed(SENT.SerializeToString(), [FRAME])
    closed = 0
    for changed in flips(content[: -len(FRAME)]):
        here, wire = incoming(taken)
        hear(here, packed(HELLO.SerializeToString()))
        assert here.hello == HELLO
        hear(here, changed + content[len(changed) :])
        closed += wire.is_closed
        assert taken == [], changed.hex()
        here.connection_lost(None)
    assert closed > 8 * SENT.ByteSize()
    here, _ = incoming(taken)
    hear(here, packed(HELLO.SerializeToString()) + content)
    assert taken == [SENT]
    here.connection_lost(None)


@on_loop
async def test_no_flipped_bit_of_a_hello_lets_a_broker_in() -> None:
    for changed in flips(packed(HELLO.SerializeToString())):
        here, _ = incoming([])
        hear(here, changed)
        assert here.hello is None, changed.hex()
        here.connection_lost(None)
        wire: Any = Wire()
        there = Outgoing(HELLO)
        there.connection_made(wire)
        hear(there, changed)
        there.connection_lost(None)
        assert isinstance(there.answered.exception(), ConnectionFailed), changed.hex()


async def call(other: Broker, hello: bytes) -> Caller:
    caller = Caller(*await asyncio.open_connection(*split_address(other.address)))
    caller.writer.write(hello)
    return caller


@on_loop
async def test_a_peer_of_protocol_2_without_checksums_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker(1) as one:
        caller = await call(one, unchecked(HELLO.SerializeToString()) + unchecked(LEADS))
        assert await caller.is_closed()
        caller.hang_up()
        caller = await Caller.to(one, node=2)
        caller.writer.write(unchecked(LEADS))
        assert await caller.is_closed()
        caller.hang_up()
        assert not one.leads
        assert caplog.text.count("connection is closed: a packet has no checksum") == 2


@on_loop
async def test_a_peer_of_protocol_1_is_heard_as_before() -> None:
    async with broker(1) as one:
        earlier = proto.PeerHello(protocol=1, node=2).SerializeToString()
        caller = await call(one, unchecked(earlier))
        caller.writer.write(unchecked(LEADS))
        await until(lambda: one.leads == [(2, GROUP)])
        caller.hang_up()


@on_loop
async def test_a_damaged_length_ends_the_connection_that_waits_for_the_rest() -> None:
    """Or every heartbeat would be taken for a part of the packet, for hours."""
    taken: list[proto.PeerPacket] = []
    here, wire = incoming(taken)
    hear(here, packed(HELLO.SerializeToString()))
    beat = packed(proto.PeerPacket(alive=True).SerializeToString())
    damaged = bytearray(beat)
    damaged[1] ^= 1
    damaged[5] ^= 1  # of the envelope, too: its checksum does not arrive
    hear(here, bytes(damaged))
    for now_s in range(5):
        hear(here, beat)
        here.look(float(now_s))
    assert not wire.is_closed
    here.look(7.0)
    assert wire.is_closed
    assert not taken
