"""The standard health service: serving while the broker is ready, as `/ready` says by HTTP."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from quivermq.node import Host
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

    def __init__(self, broker: Host, services: tuple[str, ...]) -> None:
        self._broker = broker
        self._services = frozenset(("", *services))

    def handler(self) -> grpc.GenericRpcHandler:
        parse = _parse
        write = health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check, parse, write),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch, parse, write),
            },
        )

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        if self._broker.is_ready:
            return health_pb2.HealthCheckResponse.SERVING
        return health_pb2.HealthCheckResponse.NOT_SERVING

    async def _check(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {request.service[:100]!r}"
            )
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, _: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(_LOOK_S)
