"""Runs a gRPC server inside a broker: on its event loop, started and stopped with it."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from quivermq.addresses import join_address, split_address
from quivermq.errors import ConnectionFailed
from quivermq.node import Host
from quivermq.settings import BrokerSettings
from quivermq.tls import BrokerTls
from quivermq.transports.grpc import health
from quivermq.transports.grpc.arrivals import TokenlessCalls, read_request
from quivermq.transports.grpc.calls import Calls
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.grpc.parts import serialize
from quivermq.transports.grpc.requests import PARSED_BYTES
from quivermq.transports.grpc.session import Sessions

_QUIVER: Final = api.DESCRIPTOR.services_by_name["Quiver"]
_REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
_ENVELOPE_BYTES: Final = 1 << 20
"""Of a request, beside the largest batch."""
_HEADERS_BYTES_MAX: Final = 16 << 10
_FINISH_S: Final = 1.0
"""How long calls that are under way may take once the listener closes."""


class GrpcListener:
    """The listener for gRPC."""

    def __init__(self, broker: Host) -> None:
        settings = broker.settings
        self._tls = broker.tls
        self.calls = Calls(broker)
        self._sessions = Sessions(self.calls, request_bytes_max(settings))
        self._server = grpc.aio.server(
            options=_options(settings), maximum_concurrent_rpcs=settings.grpc_calls_max
        )
        self._is_started = False
        services = (_QUIVER.full_name, health.SERVICE)
        tokenless = TokenlessCalls(settings)
        self._server.add_generic_rpc_handlers(
            (
                _quiver_handler({**self.calls.methods(), "Session": self._sessions.run}),
                health.Health(broker, services, tokenless).handler(),
                *_reflection_handlers((*services, *_REFLECTION), tokenless),
            )
        )

    async def listen(self, address: str) -> str:
        """Answer calls; returns the address with its real port."""
        host, port = split_address(address)
        try:
            if self._tls is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, _credentials(self._tls))
        except RuntimeError as error:
            # All that gRPC tells is that it could not.
            raise ConnectionFailed(
                f"cannot listen at {address} for gRPC: stop what uses the address, or choose "
                "another"
            ) from error
        await self._server.start()
        self._is_started = True
        return join_address(host, bound or port)

    async def close(self) -> None:
        """Accept no more calls, finish what is under way, and close."""
        self.calls.close()
        if self._is_started:
            await self._server.stop(_FINISH_S)
        await self.calls.closed()


def request_bytes_max(settings: BrokerSettings) -> int:
    """The largest request: one batch as large as allowed, and an envelope."""
    return settings.batch_bytes_max + _ENVELOPE_BYTES


def _credentials(tls: BrokerTls) -> grpc.ServerCredentials:
    """The latest certificate, asked for at each handshake, in a thread of gRPC."""

    def latest() -> grpc.ServerCertificateConfiguration:
        pem = tls.pem
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.chain)])

    return grpc.dynamic_ssl_server_credentials(latest(), latest)


def _options(settings: BrokerSettings) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", request_bytes_max(settings)),
        # An answer is as large as was asked for; the client has a limit of its own.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", settings.grpc_calls_max),
        ("grpc.max_allowed_incoming_connections", settings.connections_max),
        ("grpc.server_handshake_timeout_ms", settings.hello_timeout_ms),
        ("grpc.max_connection_idle_ms", settings.idle_timeout_ms),
        ("grpc.max_metadata_size", _HEADERS_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", _HEADERS_BYTES_MAX),
        # A second broker at the same address would get half of the calls.
        ("grpc.so_reuseport", 0),
        # A peer that is gone without a word is noticed: its sessions hold leases.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # Clients may ask whether the connection is alive as often as every 10 seconds.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def _quiver_handler(methods: Mapping[str, Any]) -> grpc.GenericRpcHandler:
    """Handlers for all calls that the protocol names."""
    handlers: dict[str, Any] = {}
    for method in _QUIVER.methods:
        kind = (
            grpc.stream_stream_rpc_method_handler
            if method.server_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        # All as streams, also those of one request, which are read within their time; as bytes,
        # which are looked at before they are parsed.
        handlers[method.name] = kind(methods[method.name], None, serialize)
    return grpc.method_handlers_generic_handler(_QUIVER.full_name, handlers)


def _parse_reflection(data: bytes) -> Any:
    """Refuse what takes long to parse; these requests are a few names."""
    if len(data) > PARSED_BYTES:
        raise ValueError("the request is too large")
    return reflection_pb2.ServerReflectionRequest.FromString(data)


def _reflection_handlers(
    services: tuple[str, ...], tokenless: TokenlessCalls
) -> list[grpc.GenericRpcHandler]:
    """By both names that tools ask for: the messages are the same."""
    servicer = reflection.aio.ReflectionServicer(services)

    async def requests(context: Any) -> AsyncIterator[Any]:
        while (data := await read_request(context, tokenless.limit_s)) is not None:
            yield _parse_reflection(data)

    async def reflect(_: Any, context: Any) -> AsyncIterator[Any]:
        async with tokenless.place(context):
            async for response in servicer.ServerReflectionInfo(requests(context), context):
                yield response

    handler = grpc.stream_stream_rpc_method_handler(
        reflect,
        None,
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [
        grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler})
        for name in _REFLECTION
    ]
