"""The standard health service: serving while the broker is ready, as `/ready` says by HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from quivermq.node import Host
from quivermq.transports.grpc.arrivals import TokenlessCalls, read_only_request
from quivermq.transports.grpc.requests import PARSED_BYTES

SERVICE: Final = "grpc.health.v1.Health"
_LOOK_S: Final = 0.25
"""There is no event for everything that makes a broker ready."""

_Context: TypeAlias = Any


def _parse(data: bytes) -> health_pb2.HealthCheckRequest:
    """Refuse what takes long to parse; these requests are a name."""
    if len(data) > PARSED_BYTES:
        raise ValueError("the request is too large")
    return health_pb2.HealthCheckRequest.FromString(data)


class Health:
    """Answers for the whole broker and for the services that it has."""

    def __init__(self, broker: Host, services: tuple[str, ...], tokenless: TokenlessCalls) -> None:
        self._broker = broker
        self._tokenless = tokenless
        self._services = frozenset(("", *services))

    def handler(self) -> grpc.GenericRpcHandler:
        write = health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # As streams, whose requests are read here: each is one.
                "Check": grpc.stream_unary_rpc_method_handler(self._check, None, write),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch, None, write),
            },
        )

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._broker.is_ready:
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING

    async def _request(self, context: _Context) -> health_pb2.HealthCheckRequest:
        return _parse(await read_only_request(context, self._tokenless.limit_s))

    async def _check(self, _: Any, context: _Context) -> health_pb2.HealthCheckResponse:
        async with self._tokenless.place(context):
            request = await self._request(context)
        if request.service not in self._services:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r}"
            )
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def _watch(
        self, _: Any, context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        async with self._tokenless.place(context):
            request = await self._request(context)
            while True:
                status = self._status(request.service)
                if status != told:
                    told = status
                    yield health_pb2.HealthCheckResponse(status=status)
                await asyncio.sleep(_LOOK_S)
