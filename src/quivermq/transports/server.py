"""Runs a broker with its transports: `quiver serve`."""

import logging
from typing import TYPE_CHECKING

from quivermq.node import Broker, LoopWatch, Machine, check_exposure
from quivermq.settings import BrokerSettings
from quivermq.transports.client_connections import ClientConnections
from quivermq.transports.session import SessionSettings
from quivermq.transports.tcp import TcpListener

if TYPE_CHECKING:
    from quivermq.transports.grpc import GrpcListener
    from quivermq.transports.http import HttpListener

logger = logging.getLogger("quivermq.server")


class Server:
    """Start it, use `listen`, `peer_listen`, `http` and `grpc`, stop it."""

    def __init__(self, settings: BrokerSettings, machine: Machine | None = None) -> None:
        self.settings = settings
        self.broker = Broker(settings, machine)
        self.listen = ""
        self.peer_listen = ""
        self.http = ""
        self.grpc = ""
        self.client_connections: ClientConnections | None = None
        self.watch: LoopWatch | None = None
        self._tcp: TcpListener | None = None
        self._http: HttpListener | None = None
        self._grpc: GrpcListener | None = None

    async def start(self) -> None:
        """Serve. Raises `QuiverError` if it cannot: the directory, an address."""
        settings, broker = self.settings, self.broker
        check_exposure(settings)
        try:
            await broker.start()
            self.peer_listen = broker.addresses.peer
            self.client_connections = self._make_connections()
            self.client_connections.open()
            self._tcp = TcpListener(self.client_connections, settings.connections_max, broker.tls)
            self.listen = await self._tcp.listen(settings.listen)
            if settings.http:
                await self._open_http(settings.http)
            if settings.grpc:
                await self._open_grpc(settings.grpc)
            self.watch = broker.machine.watch_loop(
                settings.stall_budget_ms / 1000, broker.counters.stalls
            )
            await broker.take_part(self.listen, self.http)
        except BaseException:
            await self.stop()
            raise

    async def _open_http(self, address: str) -> None:
        from quivermq.transports.http import HttpListener  # noqa: PLC0415  (see there)

        tls = self.broker.tls
        self._http = HttpListener(self.broker, tls.http if tls is not None else None)
        self.http = await self._http.listen(address)

    async def _open_grpc(self, address: str) -> None:
        from quivermq.transports.grpc import GrpcListener  # noqa: PLC0415  (see there)

        self._grpc = GrpcListener(self.broker)
        self.grpc = await self._grpc.listen(address)

    def _make_connections(self) -> ClientConnections:
        settings, broker = self.settings, self.broker
        return ClientConnections(
            broker.service,
            broker.access,
            SessionSettings(
                node_id=settings.node_id,
                limits=broker.limits,
                requests_max=settings.requests_max,
                request_bytes_max=settings.request_bytes_max,
                unread_bytes_max=settings.unread_bytes_max,
                idle_timeout_s=settings.idle_timeout_ms / 1000,
                hello_timeout_s=settings.hello_timeout_ms / 1000,
            ),
            broker.counters,
            settings.connections_max,
            lambda: broker.membership.cluster_id,
        )

    async def stop(self) -> None:
        """Hand over, flush, close."""
        if self.watch is not None:
            self.watch.stop()
        if self._tcp is not None:
            self._tcp.close()
        if self._grpc is not None:
            # First: what sessions hold is given back while partitions are led here.
            await self._grpc.close()
        await self.broker.stop()
        if self._http is not None:
            await self._http.close()
        if self.client_connections is not None:
            await self.client_connections.close()
