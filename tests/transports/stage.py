"""Brokers in the test's own process, and clients that say what they like to them."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from quivermq.addresses import split_address
from quivermq.batches import Frame, encode_batch
from quivermq.node import AccessControl
from quivermq.node.time_slices import Slices
from quivermq.settings import BrokerSettings
from quivermq.testing.memory_transport import connect
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, Receiver, packet, parse_response, proto

PATIENCE_S = 20.0
"""Far above what anything here takes: only a test that fails waits so long."""

UNKNOWN_BODY = b"\xa2\x3f\x00"
"""A field of a request that no build knows."""


Test = Callable[..., Awaitable[None]]


def on_loop(test: Test) -> Callable[..., None]:
    """A test as a coroutine; fails if it leaves tasks behind."""
    return _on(test, None)


def on_served_loop(test: Test) -> Callable[..., None]:
    """The same on the event loop that `quiver serve` uses."""
    return _on(test, uvloop.new_event_loop)


def _on(
    test: Test, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def whole() -> None:
            async with asyncio.timeout(6 * PATIENCE_S):
                await test(*arguments, **named)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"

        with asyncio.Runner(loop_factory=loop_factory) as scheduler:
            scheduler.run(whole())

    return run


def settings(folder: Path, **changes: Any) -> BrokerSettings:
    """A broker that hurries, on free ports."""
    usual = {
        "data_dir": str(folder),
        "listen": "127.0.0.1:0",
        "peer_listen": "127.0.0.1:0",
        "http": "",
        "grpc": "",
        "events": False,
        "fsync": "never",
        "tick_ms": 20,
        "election_ticks": 5,
    }
    return BrokerSettings.model_validate({**usual, **changes})


PATIENT = {"tick_ms": 50, "election_ticks": 10}
"""For brokers that depend on each other: a busy machine must not make them hold elections."""


@asynccontextmanager
async def serving(folder: Path, **changes: Any) -> AsyncIterator[Server]:
    """A broker that is ready."""
    server = Server(settings(folder, **changes))
    await server.start()
    try:
        await until(lambda: server.broker.is_ready)
        yield server
    finally:
        await server.stop()


def no_users() -> AccessControl:
    """Lets everybody in."""

    async def catch_up() -> None: ...

    return AccessControl(BrokerSettings(), b"", catch_up, lambda: True, lambda: 0, Slices())


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  (there is no event for everything)
            await asyncio.sleep(0.005)


async def hears_only_the_end(protocol: Callable[[], asyncio.BaseProtocol]) -> bool:
    """Whether a connection that was accepted, and is made only now, is closed at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        accepted, _ = listener.accept()
    await asyncio.get_running_loop().connect_accepted_socket(protocol, accepted)
    async with asyncio.timeout(PATIENCE_S):
        said = await reader.read()
    writer.close()
    return said == b""


class Talker(asyncio.BufferedProtocol):
    """A client without manners: sends what it is told to, and keeps all that it hears."""

    def __init__(self) -> None:
        self.heard: list[proto.Response] = []
        self.batches_bytes = 0
        self.lost = asyncio.Event()
        self.transport: Any = None
        self._receiver = Receiver(64 << 20)
        self._more = asyncio.Event()

    @classmethod
    async def in_memory(cls, server: Server, *, hello: bool = True) -> "Talker":
        talker = cls()
        assert server.client_connections is not None
        connect(talker, server.client_connections.client())
        if hello:
            await talker.greet()
        return talker

    @classmethod
    async def by_socket(cls, server: Server, *, hello: bool = True, **options: Any) -> "Talker":
        talker = cls()
        host, port = split_address(server.listen)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: talker, host, port, **options)
        if hello:
            await talker.greet()
        return talker

    async def greet(self) -> None:
        greeting = proto.Hello(protocol=PROTOCOL, client="talker")
        answer = await self.ask(proto.Request(id=1, hello=greeting))
        assert answer.WhichOneof("body") == "welcome"

    def say(self, request: proto.Request, *frames: Frame) -> None:
        self.transport.writelines(packet(request.SerializeToString(), frames))

    def say_envelope(self, envelope: bytes) -> None:
        self.transport.writelines(packet(envelope))

    async def ask(self, request: proto.Request, *frames: Frame) -> proto.Response:
        """Say it, and wait for its answer."""
        self.say(request, *frames)
        return await self.hear(request.id)

    async def hear(self, number: int) -> proto.Response:
        """The first answer to a request that was not taken yet."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for response in self.heard:
                    if response.id == number:
                        self.heard.remove(response)
                        return response
                self._more.clear()
                await self._more.wait()

    async def until_lost(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.lost.wait()

    def close(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for found in self._receiver.received(nbytes):
            self.heard.append(parse_response(found.envelope))
            self.batches_bytes += len(found.batches)
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def make_topic(talker: Talker, name: str = "orders", partitions: int = 1) -> None:
    creation = proto.CreateTopic(name=name, partitions=partitions)
    answer = await talker.ask(proto.Request(id=2, create_topic=creation))
    assert answer.WhichOneof("body") == "done", answer


async def store(
    talker: Talker, *values: bytes, topic: str = "orders", partition: int = 0
) -> proto.Response:
    produce = proto.Produce(topic=topic, partition=partition)
    answer = await talker.ask(proto.Request(id=3, produce=produce), encode_batch(values))
    assert answer.WhichOneof("body") == "produced", answer
    return answer


def waiting_fetch(number: int, wait_ms: int = 60_000) -> proto.Request:
    """A fetch of what is not there yet."""
    return proto.Request(id=number, fetch=proto.Fetch(topic="orders", wait_ms=wait_ms))
