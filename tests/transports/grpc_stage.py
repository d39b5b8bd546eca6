"""A broker with gRPC in the test's own process, and a client made from the protocol alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass

from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.stage import PATIENCE_S, serving

SERVICE = api.DESCRIPTOR.services_by_name["Quiver"]

T = TypeVar("T")

# With its first array of Python values Arrow imports pandas, for which a broker's process has no
# use (`refuse_pandas`). Here it would hold the loop of the first broker.
pa.array([b""])


class Stub:
    """The calls of the service by name, as generated stubs have them."""

    def __init__(self, channel: Any) -> None:
        for method in SERVICE.methods:
            make = channel.stream_stream if method.client_streaming else channel.unary_unary
            call = make(
                f"/{SERVICE.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the protocol has no call {name}")


@asynccontextmanager
async def calling(folder: Path, **changes: Any) -> AsyncIterator[tuple[Server, Stub]]:
    """A broker that is ready, and a stub for it."""
    async with (
        serving(folder, **{"grpc": "127.0.0.1:0", **changes}) as server,
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        yield server, Stub(channel)


async def eventually(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the answer is true."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await ask():
                return found
            await asyncio.sleep(0.01)


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """The error that a call fails with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def metadata_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    return dict(error.trailing_metadata() or ())


def plain(*values: bytes) -> list[api.NewMessage]:
    return [api.NewMessage(value=value) for value in values]


async def store(stub: Stub, *values: bytes, topic: str = "orders") -> api.ProduceResponse:
    request = api.ProduceRequest(topic=topic, partition=0, messages=plain(*values))
    return await stub.Produce(request, timeout=PATIENCE_S)


async def make_topic(stub: Stub, name: str = "orders", partitions: int = 1) -> None:
    await stub.CreateTopic(
        api.CreateTopicRequest(topic=name, partitions=partitions), timeout=PATIENCE_S
    )


async def poll(stub: Stub, group: str = "g", **more: Any) -> api.PollResponse:
    request = api.PollRequest(topic="orders", group=group, **more)
    return await stub.Poll(request, timeout=PATIENCE_S)


async def in_flight(stub: Stub, group: str = "g") -> int:
    found = await stub.ListGroups(api.ListGroupsRequest(topic="orders", group=group))
    return sum(each.in_flight for each in found.groups)


def whole(*deliveries: api.Delivery) -> list[api.Selection]:
    return [api.Selection(lease=delivery.lease) for delivery in deliveries]


def stream(table: Any, **options: Any) -> bytes:
    """An Arrow IPC stream, as any Arrow library writes it."""
    sink = pa.BufferOutputStream()
    write = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(sink, table.schema, options=write) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
