"""The same attacks at every door: names, plain text and TLS, tokens that end, calls that hang."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import quivermq.aio
from quivermq.addresses import split_address
from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import PROTOCOL, packet, proto
from tests.tls.stage import Certificates
from tests.transports.grpc_stage import Stub, calling, eventually, make_topic, metadata_of, refusal
from tests.transports.stage import PATIENCE_S, on_served_loop, serving, until
from tests.transports.test_grpc_session import Talk
from tests.transports.test_http_users import client_of
from tests.transports.test_users import guarded, signed_in

ANYWHERE = "127.0.0.1:0"
DOORS = {"http": ANYWHERE, "grpc": ANYWHERE}
Code = grpc.StatusCode

NAMES = {
    "a path": "../../etc/passwd",
    "two dots": "..",
    "one dot": ".",
    "a slash": "a/b",
    "a backslash": "a\\b",
    "NUL": "a\0b",
    "a new line": "a\nb",
    "nothing": "",
    "10,000 characters": "x" * 10_000,
    "another script": "\u043e\u0440\u0434\u0435\u0440\u0441",
    "no character at all": "\ufffe",
}

Ask = Callable[[str], Awaitable[str]]
"""Uses a name, and returns the code of the refusal."""


async def by_tcp(client: Any, name: str) -> list[str]:
    codes = []
    for call in (
        lambda: client.create_topic(name),
        lambda: client.produce(name, b"x"),
        lambda: client.poll("orders", group=name),
        lambda: client.delete_topic(name),
        lambda: client.create_topic("fine", dead_letter=name or "/"),
    ):
        try:
            await call()
        except quivermq.QuiverError as error:
            codes.append(error.code)
        else:
            codes.append("done")
    return codes


async def by_http(client: httpx.AsyncClient, name: str) -> list[str]:
    body = {"messages": [{"value": "x"}]}
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    answers = [
        await client.post("/v1/topics", json={"name": name}),
        await client.post(f"/v1/topics/{quoted}/messages", json=body),
        await client.post(f"/v1/topics/orders/groups/{quoted}/poll", json={"wait": 0}),
        await client.delete(f"/v1/topics/{quoted}"),
        await client.post("/v1/topics", json={"name": "fine", "dead_letter": name or "/"}),
    ]
    # A path without its name is another path, maybe one that is redirected.
    return ["done" if each.is_success else str(each.status_code) for each in answers]


async def by_grpc(stub: Stub, name: str) -> list[str]:
    codes = []
    settings = api.TopicSettings(dead_letter=name or "/")
    for call, request in (
        (stub.CreateTopic, api.CreateTopicRequest(topic=name)),
        (stub.Produce, api.ProduceRequest(topic=name, messages=[api.NewMessage(value=b"x")])),
        (stub.Poll, api.PollRequest(topic="orders", group=name)),
        (stub.DeleteTopic, api.DeleteTopicRequest(topic=name)),
        (stub.CreateTopic, api.CreateTopicRequest(topic="fine", settings=settings)),
    ):
        try:
            await call(request, timeout=PATIENCE_S)
        except grpc.aio.AioRpcError as error:
            codes.append(metadata_of(error).get("quiver-code", str(error.code())))
        else:
            codes.append("done")
    return codes


@on_served_loop
async def test_no_name_leads_anywhere_at_any_door(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with (
        calling(data, auto_create_topics=True, http=ANYWHERE) as (server, stub),
        quivermq.aio.connect(server.listen) as tcp,
        client_of(server) as http,
    ):
        await make_topic(stub)
        before = folders(tmp_path)
        for what, name in NAMES.items():
            for door, codes in (
                ("tcp", await by_tcp(tcp, name)),
                ("http", await by_http(http, name)),
                ("grpc", await by_grpc(stub, name)),
            ):
                assert "done" not in codes, (what, door, codes)
        topics = [topic.name for topic in await tcp.topics()]
        assert topics == ["orders"]
        assert folders(tmp_path) == before


def folders(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_dir()}


HELLO = proto.Request(id=1, hello=proto.Hello(protocol=PROTOCOL, client="plain"))
PLAIN = {
    "listen": b"".join(packet(HELLO.SerializeToString())),
    "http": b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
    "peer_listen": b"".join(packet(HELLO.SerializeToString())),
}
"""How a client without TLS begins at each door."""


@pytest.mark.parametrize("door", PLAIN)
@on_served_loop
async def test_plain_text_to_a_tls_port_gets_no_service(tmp_path: Path, door: str) -> None:
    certificates = Certificates(tmp_path / "tls")
    changes = {**DOORS, **certificates.settings(mutual=True), "hello_timeout_ms": 500}
    async with serving(tmp_path / "data", **changes) as server:
        reader, writer = await asyncio.open_connection(*split_address(getattr(server, door)))
        writer.write(PLAIN[door])
        heard = b""
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                heard = await reader.read()
        writer.close()
        # At most one sentence that says what is expected.
        assert b"200 OK" not in heard
        assert server.broker.membership.cluster_id.encode() not in heard
        assert heard == b"" or b"TLS" in heard or door == "grpc"
        async with quivermq.aio.connect(server.listen, tls=certificates.ca) as client:
            assert await client.topics() == []


@pytest.mark.parametrize("door", PLAIN)
@on_served_loop
async def test_tls_to_a_plain_port_fails_and_hurts_nobody(tmp_path: Path, door: str) -> None:
    async with serving(tmp_path, **DOORS, hello_timeout_ms=500, http_timeout_ms=500) as server:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(*split_address(getattr(server, door)), ssl=context)
        async with quivermq.aio.connect(server.listen) as client:
            assert await client.topics() == []


@on_served_loop
async def test_an_expiring_token_ends_streams_at_every_door(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, **DOORS) as (server, admin),
        grpc.aio.insecure_channel(server.grpc) as channel,
        AsyncExitStack() as stack,
    ):
        token = await admin.users.add("bob", expires=2.5)
        await admin.users.grant("bob", "consume")
        tcp = await signed_in(server, token)
        tcp.say(proto.Request(id=7, fetch=proto.Fetch(topic="orders", wait_ms=60_000)))
        bearer = (("authorization", f"Bearer {token}"),)
        session = Talk(Stub(channel).Session(metadata=bearer))
        await session.ask(hello=api.Hello(client="test", group="g"))
        poll = Stub(channel).Poll(
            api.PollRequest(topic="orders", group="g", wait_ms=50_000), metadata=bearer
        )
        bob = await stack.enter_async_context(client_of(server, token))
        streaming = asyncio.create_task(bob.get("/v1/topics/orders/groups/g/stream"))
        await until(lambda: len(server._http.serving.connections) == 1)  # type: ignore[union-attr]
        await tcp.until_lost()
        assert (await session.ended()).code() == Code.UNAUTHENTICATED
        assert (await refusal(poll)).code() == Code.UNAUTHENTICATED
        (ended,) = await asyncio.gather(streaming, return_exceptions=True)
        is_refused = isinstance(ended, httpx.Response) and ended.status_code == 401
        assert isinstance(ended, httpx.TransportError) or is_refused, ended
        assert (await bob.get("/v1/topics")).status_code == 401


@on_served_loop
async def test_oversized_messages_and_headers_of_grpc_are_refused(tmp_path: Path) -> None:
    limits = {"batch_bytes_max": 1 << 16, "message_bytes_max": 1 << 16}
    async with calling(tmp_path, **limits) as (server, stub):
        await make_topic(stub)
        large = api.ProduceRequest(topic="orders", messages=[api.NewMessage(value=bytes(2 << 20))])
        error = await refusal(stub.Produce(large, timeout=PATIENCE_S))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        session = Talk(stub.Session())
        await session.ask(hello=api.Hello(client="test"))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await session.say(produce=large)
        assert (await session.ended()).code() in {Code.RESOURCE_EXHAUSTED, Code.CANCELLED}
        metadata = (("x", "y" * (64 << 10)),)
        call = stub.Cluster(api.ClusterRequest(), metadata=metadata, timeout=PATIENCE_S)
        assert (await refusal(call)).code() in {Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE}
        assert await stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S)
        assert server.broker.is_ready


@on_served_loop
async def test_a_grpc_connection_that_drips_is_closed(tmp_path: Path) -> None:
    changes = {"hello_timeout_ms": 300, "idle_timeout_ms": 600}
    async with calling(tmp_path, **changes) as (server, _):
        reader, writer = await asyncio.open_connection(*split_address(server.grpc))
        writer.write(PLAIN["grpc"] + b"\0\x40\0\1\4\0\0\0\1")

        async def drip() -> None:
            # Headers of 16 KiB, a byte at a time.
            while True:
                writer.write(b"\0")
                await asyncio.sleep(0.01)

        dripping = asyncio.create_task(drip())
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionResetError):
                while await reader.read(1 << 16):
                    continue
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.close()


@asynccontextmanager
async def hanging(server: Server, method: str, count: int, **more: Any) -> AsyncIterator[list[Any]]:
    """Calls of one stranger that send their headers, and nothing else."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(server.grpc, options=options) as channel:
        call = channel.stream_stream(method)
        held = [call(**more) for _ in range(count)]
        yield held
        for each in held:
            each.cancel()


@pytest.mark.parametrize(
    "method", ["/quiver.v1.Quiver/Produce", "/quiver.v1.Quiver/Poll", "/quiver.v1.Quiver/Session"]
)
@on_served_loop
async def test_calls_that_never_bring_a_request_keep_nobody_out(
    tmp_path: Path, method: str
) -> None:
    changes = {"grpc_calls_max": 20, "request_timeout_ms": 400, "hello_timeout_ms": 400}
    async with calling(tmp_path, **changes) as (server, stub), hanging(server, method, 20) as held:
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(*(each.code() for each in held))
        assert set(outcomes) == {Code.DEADLINE_EXCEEDED}

        async def is_served() -> bool:
            with suppress(grpc.aio.AioRpcError):
                return bool(await stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S))
            return False

        assert await eventually(is_served)


@on_served_loop
async def test_calls_without_a_token_are_refused_before_they_bring_anything(
    tmp_path: Path,
) -> None:
    async with (
        guarded(tmp_path, **DOORS, grpc_calls_max=20, request_timeout_ms=60_000) as (server, _),
        hanging(
            server,
            "/quiver.v1.Quiver/Produce",
            15,
            metadata=(("authorization", "Bearer qv_wrong"),),
        ) as held,
        asyncio.timeout(PATIENCE_S),
    ):
        outcomes = await asyncio.gather(*(each.code() for each in held))
        assert set(outcomes) == {Code.UNAUTHENTICATED}


@on_served_loop
async def test_calls_that_need_no_token_leave_room_for_others(tmp_path: Path) -> None:
    changes = {"grpc_calls_max": 40, "request_timeout_ms": 60_000}
    async with calling(tmp_path, **changes) as (server, stub):
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            watches = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(30)]
            codes = await asyncio.gather(*(first_of(watch) for watch in watches))
            assert codes.count(None) == 4
            assert set(codes) == {None, Code.RESOURCE_EXHAUSTED}
            # The same places.
            reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
            # It may be refused before it has brought anything.
            with suppress(grpc.aio.AioRpcError):
                await reflected.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            async with asyncio.timeout(PATIENCE_S):
                assert await reflected.code() == Code.RESOURCE_EXHAUSTED
            assert await stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S)
            for watch in watches:
                watch.cancel()

        async def is_answered() -> bool:
            async with grpc.aio.insecure_channel(server.grpc) as again:
                check = health_pb2_grpc.HealthStub(again).Check
                with suppress(grpc.aio.AioRpcError):
                    return bool(await check(health_pb2.HealthCheckRequest(), timeout=PATIENCE_S))
                return False

        assert await eventually(is_answered)


async def first_of(call: Any) -> Any:
    """The status of a call that is refused; None if it answers."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            answer = await call.read()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None if answer is not grpc.aio.EOF else await call.code()
