"""What a client does with answers that were damaged on their way, or have no checksum."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

import quivermq
from quivermq.client.asyncio_transport import AsyncioConnection, AsyncioTransport
from quivermq.client.blocking_transport import BlockingConnection, BlockingTransport
from quivermq.client.connect_options import HELLO_ID
from quivermq.client.transport import run
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.wire import PROTOCOL, proto, receiver
from tests.client.stand_in import StandIn
from tests.wire.samples import flips, packed

SOON = 1e9
WELCOME = proto.Response(id=HELLO_ID, welcome=proto.Welcome(protocol=PROTOCOL, version="9"))
FIRST_POSTED = 3
PRODUCED = proto.Response(
    id=FIRST_POSTED, produced=proto.Produced(batches=[{"first_offset": 5, "count": 2}])
)


def produce() -> proto.Request:
    return proto.Request(produce=proto.Produce(topic="t"))


class Sink:
    """Takes what is written, for a connection without a socket."""

    def set_write_buffer_limits(self, high: int) -> None: ...

    def write(self, content: bytes) -> None: ...

    def abort(self) -> None: ...


def hear(connection: AsyncioConnection, content: bytes) -> None:
    connection.get_buffer(0)[: len(content)] = content
    connection.buffer_updated(len(content))


async def greeted(welcome: bytes) -> AsyncioConnection:
    connection = AsyncioConnection("a:1")
    sink: Any = Sink()
    connection.connection_made(sink)
    asyncio.get_running_loop().call_soon(hear, connection, welcome)
    await connection.greet(None, "test", asyncio.get_running_loop().time() + 0.02)
    return connection


def test_no_flipped_bit_gives_an_asyncio_client_another_answer() -> None:
    async def all_flips() -> None:
        closed = 0
        for changed in flips(packed(PRODUCED.SerializeToString())):
            connection = await greeted(packed(WELCOME.SerializeToString()))
            number = await connection.post(produce(), (), SOON)
            assert number == FIRST_POSTED
            hear(connection, changed)
            if connection.is_open:
                assert not connection.is_answered(number), changed.hex()
            else:
                closed += 1
                with pytest.raises(ConnectionFailed):
                    await connection.take(number, asyncio.get_running_loop().time() + 1)
        assert closed > 8 * PRODUCED.ByteSize()

    asyncio.run(all_flips())


def test_no_flipped_bit_of_a_welcome_is_taken_for_one() -> None:
    async def all_flips() -> None:
        for changed in flips(packed(WELCOME.SerializeToString())):
            with pytest.raises(QuiverError) as refused:
                await greeted(changed)
            assert refused.value.retriable, changed.hex()

    asyncio.run(all_flips())


def test_no_flipped_bit_gives_a_blocking_client_another_answer() -> None:
    closed = 0
    for changed in flips(packed(PRODUCED.SerializeToString())):
        here, there = socket.socketpair()
        with there:
            connection = BlockingConnection("a:1", here)
            there.sendall(packed(WELCOME.SerializeToString()))
            connection.greet(None, "test", SOON)
            number = run(connection.post(produce(), (), SOON))
            there.sendall(changed)
            connection.receive()
            closed += not connection.is_open
            assert connection._answers == {}, changed.hex()
            connection.close()
    assert closed > 8 * PRODUCED.ByteSize()
    assert number == FIRST_POSTED


def connect_blocking(address: str) -> None:
    transport = BlockingTransport(token=None, tls=None, client_name="test")
    run(transport.connection(address, transport.now() + 10))


def connect_asyncio(address: str) -> None:
    async def connect() -> None:
        transport = AsyncioTransport(token=None, tls=None, client_name="test")
        try:
            await transport.connection(address, transport.now() + 10)
        finally:
            await transport.close()

    asyncio.run(connect())


@pytest.mark.parametrize("connect", [connect_blocking, connect_asyncio])
def test_a_broker_of_protocol_2_without_checksums_is_refused(
    connect: Callable[[str], None],
) -> None:
    with StandIn() as stand_in:
        stand_in.has_checksums = False
        with pytest.raises(ConnectionFailed, match="no checksum"):
            connect(stand_in.address)


def test_a_broker_that_stops_sending_checksums_is_asked_on_another_connection() -> None:
    def without(_: proto.Request) -> proto.Response:
        stand_in.has_checksums = False
        return proto.Response(
            produced=proto.Produced(batches=[{"first_offset": 5_000, "count": 1}])
        )

    def hello(_: proto.Request) -> proto.Response:
        stand_in.has_checksums = True
        return proto.Response(welcome=proto.Welcome(protocol=PROTOCOL, version="9.9"))

    with StandIn() as stand_in, quivermq.connect(stand_in.address) as client:
        client.produce("t", b"one")
        stand_in.script("produce", without)
        stand_in.script("hello", hello)
        assert client.produce("t", b"two").offset == 1, "not what had no checksum"
        assert stand_in.log().values == [b"one", b"two"]


def test_a_broker_of_protocol_1_is_used_as_before() -> None:
    with StandIn(protocol=1) as stand_in, quivermq.connect(stand_in.address) as client:
        client.produce("t", b"one")
        client.produce("t", b"two")
        assert stand_in.log().values == [b"one", b"two"]

        async def produced() -> None:
            async with quivermq.aio.connect(stand_in.address) as other:
                await other.produce("t", b"three")

        asyncio.run(produced())
        assert stand_in.log().values[-1] == b"three"
        assert {hello.protocol_min for hello in stand_in.hellos} == {1}


def test_a_damaged_length_ends_the_connection_of_a_client_that_waits_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "STALLED_S", 0.05)

    async def waits() -> None:
        connection = await greeted(packed(WELCOME.SerializeToString()))
        damaged = bytearray(packed(PRODUCED.SerializeToString()))
        damaged[1] ^= 1
        damaged[5] ^= 1  # of the envelope, too: its checksum does not arrive
        hear(connection, bytes(damaged))
        for _ in range(5):
            number = await connection.post(produce(), (), SOON)
            with pytest.raises((Timeout, ConnectionFailed)):
                await connection.take(number, asyncio.get_running_loop().time() + 0.03)
            if not connection.is_open:
                return
        raise AssertionError("it waits for ever")

    asyncio.run(waits())
