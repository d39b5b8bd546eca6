"""Runs a broker, or a gateway, with its transports: `quiver serve`."""

import logging
from typing import TYPE_CHECKING

from quivermq.node import Broker, Gateway, Host, LoopWatch, Machine, check_exposure
from quivermq.settings import BrokerSettings
from quivermq.transports.client_connections import ClientConnections
from quivermq.transports.session import SessionSettings
from quivermq.transports.tcp import TcpListener

if TYPE_CHECKING:
    from quivermq.transports.grpc import GrpcListener
    from quivermq.transports.http import HttpListener

logger = logging.getLogger("quivermq.server")


class _Doors:
    """The listeners of a host, and the addresses that they have."""

    def __init__(self, host: Host, machine: Machine) -> None:
        self.settings = host.settings
        self.listen = ""
        self.peer_listen = ""
        self.http = ""
        self.grpc = ""
        self.client_connections: ClientConnections | None = None
        self.watch: LoopWatch | None = None
        self.host = host
        self._machine = machine
        self._tcp: TcpListener | None = None
        self._http: HttpListener | None = None
        self._grpc: GrpcListener | None = None

    async def _open_doors(self) -> None:
        settings, host = self.settings, self.host
        self.client_connections = self._make_connections()
        self.client_connections.open()
        self._tcp = TcpListener(self.client_connections, settings.connections_max, host.tls)
        self.listen = await self._tcp.listen(settings.listen)
        if settings.http:
            await self._open_http(settings.http)
        if settings.grpc:
            await self._open_grpc(settings.grpc)
        self.watch = self._machine.watch_loop(settings.stall_budget_ms / 1000, host.counters.stalls)

    async def _open_http(self, address: str) -> None:
        from quivermq.transports.http import HttpListener  # noqa: PLC0415  (see there)

        tls = self.host.tls
        self._http = HttpListener(self.host, tls.http if tls is not None else None)
        self.http = await self._http.listen(address)

    async def _open_grpc(self, address: str) -> None:
        from quivermq.transports.grpc import GrpcListener  # noqa: PLC0415  (see there)

        self._grpc = GrpcListener(self.host)
        self.grpc = await self._grpc.listen(address)

    def _make_connections(self) -> ClientConnections:
        settings, host = self.settings, self.host
        return ClientConnections(
            host.service,
            host.access,
            SessionSettings(
                node_id=host.node_id,
                limits=host.limits,
                requests_max=settings.requests_max,
                request_bytes_max=settings.request_bytes_max,
                unread_bytes_max=settings.unread_bytes_max,
                idle_timeout_s=settings.idle_timeout_ms / 1000,
                hello_timeout_s=settings.hello_timeout_ms / 1000,
            ),
            host.counters,
            settings.connections_max,
            lambda: host.cluster_id,
            self._machine.poll_busily(settings.busy_poll_us / 1_000_000),
        )

    async def _stop_listening(self) -> None:
        """Before the host stops."""
        if self.watch is not None:
            self.watch.stop()
        if self._tcp is not None:
            await self._tcp.close()
        if self._grpc is not None:
            # First: what sessions hold is given back while partitions are led here.
            await self._grpc.close()

    async def _close_connections(self) -> None:
        """Once the host has stopped."""
        if self._http is not None:
            await self._http.close()
        if self.client_connections is not None:
            await self.client_connections.close()


class Server(_Doors):
    """Start it, use `listen`, `peer_listen`, `http` and `grpc`, stop it."""

    def __init__(self, settings: BrokerSettings, machine: Machine | None = None) -> None:
        self.broker = Broker(settings, machine)
        super().__init__(self.broker, self.broker.machine)

    async def start(self) -> None:
        """Serve. Raises `QuiverError` if it cannot: the directory, an address."""
        broker = self.broker
        check_exposure(self.settings)
        try:
            await broker.start()
            self.peer_listen = broker.addresses.peer
            await self._open_doors()
            await broker.take_part(self.listen, self.http)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Hand over, flush, close."""
        await self._stop_listening()
        await self.broker.stop()
        await self._close_connections()


class GatewayServer(_Doors):
    """Start it, use `listen`, `http` and `grpc`, stop it. It serves whether brokers answer or not:
    `gateway.unready` says whether they do."""

    def __init__(self, settings: BrokerSettings, machine: Machine | None = None) -> None:
        self.gateway = Gateway(settings)
        super().__init__(self.gateway, machine or Machine())

    async def start(self) -> None:
        """Serve. Raises `QuiverError` if it cannot: a certificate, an address."""
        check_exposure(self.settings)
        try:
            await self.gateway.start()
            await self._open_doors()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Let what was asked be answered, and close."""
        await self._stop_listening()
        await self.gateway.stop()
        await self._close_connections()
