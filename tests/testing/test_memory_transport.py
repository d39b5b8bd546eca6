"""The door without sockets behaves like one with them."""

import asyncio
from pathlib import Path

import pytest

from quivermq.batches import Frame, decode_batch, encode_batch
from quivermq.client.asyncio_transport import AsyncioConnection
from quivermq.errors import ConnectionFailed
from quivermq.testing.memory_transport import MemoryTransport, connect, memory_client
from quivermq.wire import frames_of, proto
from tests.transports.stage import PATIENCE_S, PATIENT, on_loop, serving, until


class Client:
    """Requests through a door, one after another."""

    def __init__(self, transport: MemoryTransport, address: str) -> None:
        self._transport = transport
        self._address = address
        self._deadline = transport.now() + PATIENCE_S
        self.frames: list[Frame] = []

    async def connection(self) -> AsyncioConnection:
        return await self._transport.connection(self._address, self._deadline)

    async def ask(self, *frames: Frame, **body: object) -> proto.Response:
        connection = await self.connection()
        number = await connection.post(proto.Request(**body), frames, self._deadline)  # type: ignore[arg-type]
        reply = await connection.take(number, self._deadline)
        self.frames = frames_of(reply.packet)
        return reply.response


@on_loop
async def test_messages_go_in_and_come_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        transport = MemoryTransport([server])
        client = Client(transport, server.listen)
        await client.ask(create_topic=proto.CreateTopic(name="orders"))
        # Larger than any buffer on the way.
        values = [bytes([number]) * 900_000 for number in range(6)]
        produce = proto.Produce(topic="orders")
        for value in values:
            stored = await client.ask(encode_batch([value]), produce=produce)
            assert stored.WhichOneof("body") == "produced"
        found: list[bytes] = []
        while len(found) < len(values):
            fetch = proto.Fetch(topic="orders", offset=len(found), bytes_max=2_000_000)
            fetched = await client.ask(fetch=fetch)
            for frame in client.frames:
                found += decode_batch(frame).column("value").to_pylist()
            assert fetched.fetched.next_offset == len(found)
        assert found == values
        await transport.close()


@on_loop
async def test_a_fetch_that_has_an_end_brings_nothing_that_begins_behind_it(tmp_path: Path) -> None:
    # Two batches to a segment, and the end of a range may be in another than its start.
    async with serving(tmp_path, segment_bytes=64 << 10) as server:
        transport = MemoryTransport([server])
        client = Client(transport, server.listen)
        await client.ask(create_topic=proto.CreateTopic(name="orders"))
        for _ in range(5):
            batch = encode_batch([b"x" * 4_000] * 10)
            await client.ask(batch, produce=proto.Produce(topic="orders"))

        async def fetched(offset: int, stop: int) -> list[int]:
            await client.ask(fetch=proto.Fetch(topic="orders", offset=offset, stop=stop))
            return [frame.header.base_offset for frame in client.frames]

        assert await fetched(5, 0) == [0, 10, 20, 30, 40]
        assert await fetched(5, 21) == [0, 10, 20]
        assert await fetched(5, 20) == [0, 10]
        assert await fetched(19, 20) == [10]
        # An end that makes no sense, or that is not there yet, is none.
        assert await fetched(20, 20) == [20, 30, 40]
        assert await fetched(30, 99) == [30, 40]
        await transport.close()


@on_loop
async def test_the_asyncio_client_works_over_it(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "1", **PATIENT) as first,
        serving(tmp_path / "2", node_id=2, join=first.listen, **PATIENT) as second,
    ):
        client = memory_client([first, second])
        await client.create_topic("orders", partitions=4, replication=1)
        values = [b"%d" % number for number in range(40)]
        for number, value in enumerate(values):
            receipt = await client.produce("orders", value, partition=number % 4)
            assert (receipt.partition, receipt.offset) == (number % 4, number // 4)
        found = []
        for partition in range(4):
            end = len(values) // 4
            async for message in client.read("orders", partition, stop=end):
                found.append(message.value)  # noqa: PERF401  (a list of them would hide the loop)
        assert sorted(found, key=int) == values
        nodes = (await client.cluster()).nodes
        assert [node.leaders for node in nodes] == [2, 2]
        await client.close()


@on_loop
async def test_a_door_shares_one_connection_and_opens_another_when_it_is_lost(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        transport = MemoryTransport([server])
        client = Client(transport, server.listen)
        first, second = await asyncio.gather(client.connection(), client.connection())
        assert first is second
        assert first.welcome.node == 1
        assert server.client_connections is not None
        for connection in list(server.client_connections.connections):
            connection.close()
        await until(lambda: not first.is_open)
        third = await client.connection()
        assert third is not first
        assert third.is_open
        await transport.close()
        await until(lambda: not server.client_connections.connections)  # type: ignore[union-attr]


@on_loop
async def test_a_connection_to_an_unknown_address_fails(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        transport = MemoryTransport([server])
        with pytest.raises(ConnectionFailed, match="no broker listens"):
            await transport.connection("127.0.0.1:1", transport.now() + 1)
    with pytest.raises(ConnectionFailed, match="no broker listens"):
        await transport.connection(server.listen, transport.now() + 1)


@on_loop
async def test_a_door_that_is_closed_opens_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        transport = MemoryTransport([server])
        await transport.close()
        with pytest.raises(ConnectionFailed, match="closed"):
            await transport.connection(server.listen, transport.now() + 1)


class Recorder(asyncio.BufferedProtocol):
    """Writes down everything that a transport does to it."""

    def __init__(self, buffer_bytes: int = 10) -> None:
        self.story: list[str] = []
        self.received = b""
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray(buffer_bytes)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.story.append("made")

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def eof_received(self) -> None:
        self.story.append("end")

    def pause_writing(self) -> None:
        self.story.append("full")

    def resume_writing(self) -> None:
        self.story.append("room")

    def connection_lost(self, exc: Exception | None) -> None:
        self.story.append(f"lost {type(exc).__name__}" if exc else "lost")

    @property
    def end(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport


def two() -> tuple[Recorder, Recorder]:
    one, other = Recorder(), Recorder()
    connect(one, other)
    return one, other


@on_loop
async def test_a_writer_is_told_to_wait_and_to_go_on() -> None:
    one, other = two()
    one.end.set_write_buffer_limits(high=40, low=20)
    other.end.pause_reading()
    one.end.write(b"a" * 30)
    assert one.story == ["made"]
    one.end.write(b"b" * 30)
    assert one.story == ["made", "full"]
    assert one.end.get_write_buffer_size() == 60
    await asyncio.sleep(0.01)
    assert other.received == b""
    other.end.resume_reading()
    await until(lambda: len(other.received) == 60)
    assert other.received == b"a" * 30 + b"b" * 30
    assert one.story == ["made", "full", "room"]
    one.end.abort()
    await until(lambda: "lost" in one.story)


@on_loop
async def test_a_close_delivers_everything_first() -> None:
    one, other = two()
    one.end.write(b"last words")
    one.end.close()
    one.end.write(b"too late")
    await until(lambda: "lost" in one.story and "lost" in other.story)
    assert other.received == b"last words"
    assert other.story == ["made", "end", "lost"]
    assert one.story == ["made", "lost"]


@on_loop
async def test_a_close_waits_for_a_reader_that_is_slow() -> None:
    one, other = two()
    other.end.pause_reading()
    one.end.write(b"last words")
    one.end.close()
    await asyncio.sleep(0.01)
    assert one.story == ["made"]
    other.end.resume_reading()
    await until(lambda: "lost" in one.story)
    assert other.received == b"last words"


@on_loop
async def test_an_abort_loses_bytes_on_their_way() -> None:
    one, other = two()
    one.end.write(b"never seen")
    one.end.abort()
    await until(lambda: "lost" in one.story and len(other.story) > 1)
    assert other.received == b""
    assert other.story == ["made", "lost ConnectionResetError"]


@on_loop
async def test_nothing_is_kept_for_an_end_that_is_closed() -> None:
    one, other = two()
    other.end.close()
    one.end.write(b"x" * 1000)
    assert one.end.get_write_buffer_size() == 0
    await until(lambda: "lost" in one.story and "lost" in other.story)
