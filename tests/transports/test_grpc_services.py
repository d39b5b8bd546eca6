"""The standard services beside `Quiver`: health, and reflection as tools use it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from quivermq.addresses import split_address
from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import Stub, calling
from tests.transports.stage import PATIENCE_S, on_served_loop


def channel_to(server: Server) -> Any:
    return grpc.aio.insecure_channel(server.grpc)


Health = health_pb2.HealthCheckResponse


@on_served_loop
async def test_health_follows_readiness(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, _), channel_to(server) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == Health.SERVING
        for service in ("", "quiver.v1.Quiver", "grpc.health.v1.Health"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert (await stub.Check(request)).status == Health.SERVING
        server.broker.membership.refusal = "for a test"
        request = health_pb2.HealthCheckRequest(service="quiver.v1.Quiver")
        assert (await stub.Check(request)).status == Health.NOT_SERVING
        async with asyncio.timeout(PATIENCE_S):
            assert (await watch.read()).status == Health.NOT_SERVING
        unknown = health_pb2.HealthCheckRequest(service="nope")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(unknown)
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        assert (await stub.Watch(unknown).read()).status == Health.SERVICE_UNKNOWN
        watch.cancel()


@on_served_loop
async def test_connections_that_say_nothing_are_closed(tmp_path: Path) -> None:
    changes = {"hello_timeout_ms": 300, "idle_timeout_ms": 600}
    async with calling(tmp_path, **changes) as (server, _), asyncio.timeout(PATIENCE_S):
        host, port = split_address(server.grpc)
        for said in (b"", _PREFACE):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            # Until the broker closes it.
            await reader.read()
            writer.close()


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins: with this, and settings, of which there are none."""


@on_served_loop
async def test_there_are_only_so_many_connections(tmp_path: Path) -> None:
    async with calling(tmp_path, connections_max=2) as (server, _), AsyncExitStack() as channels:
        stubs = []
        for _ in range(5):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.aio.insecure_channel(server.grpc, options=options)
            stubs.append(Stub(await channels.enter_async_context(channel)))
        calls = (stub.Cluster(api.ClusterRequest(), timeout=PATIENCE_S) for stub in stubs)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
        assert len(outcomes) - len(refused) == 2
        assert {each.code() for each in refused} == {grpc.StatusCode.UNAVAILABLE}


@on_served_loop
async def test_tools_find_and_call_everything_by_reflection(tmp_path: Path) -> None:
    """As grpcurl does it: with nothing but the address."""
    async with calling(tmp_path) as (server, _):
        services, topics = await asyncio.to_thread(_call_by_reflection, server.grpc)
        assert {"quiver.v1.Quiver", "grpc.health.v1.Health"} <= set(services)
        assert topics == ["orders"]


def _call_by_reflection(address: str) -> tuple[list[str], list[str]]:
    with grpc.insecure_channel(address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("quiver.v1.Quiver")

        def call(name: str, **fields: Any) -> Any:
            method = service.methods_by_name[name]
            invoke = channel.unary_unary(
                f"/{service.full_name}/{name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            return invoke(GetMessageClass(method.input_type)(**fields), timeout=PATIENCE_S)

        call("CreateTopic", topic="orders", partitions=1)
        topics = [topic.name for topic in call("ListTopics").topics]
        return list(database.get_services()), topics


@on_served_loop
async def test_reflection_has_its_newer_name_too(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, _), channel_to(server) as channel:
        ask = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await ask.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        found = await ask.read()
        names = [service.name for service in found.list_services_response.service]
        assert "quiver.v1.Quiver" in names
        await ask.done_writing()
