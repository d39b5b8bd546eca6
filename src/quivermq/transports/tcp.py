"""The TCP transport: packets over sockets, with TLS or without."""

import asyncio
from typing import Final

from quivermq.addresses import join_address, split_address
from quivermq.errors import ConnectionFailed
from quivermq.node import Accepted, TlsListener, close_listener, listening_at
from quivermq.tls import BrokerTls
from quivermq.transports.client_connections import ClientConnections
from quivermq.wire import error_to_proto, packet, proto

TLS_EXPECTED: Final = (
    "this broker expects TLS: connect(tls='ca.pem') with the certificate of its CA; for commands "
    "--tls-ca or QUIVER_TLS_CA"
)


class TcpListener:
    """The listener for clients."""

    def __init__(
        self,
        client_connections: ClientConnections,
        connections_max: int,
        tls: BrokerTls | None = None,
    ) -> None:
        self._client_connections = client_connections
        self._connections_max = connections_max
        self._tls = tls
        self._server: asyncio.Server | TlsListener | None = None

    async def listen(self, address: str) -> str:
        """Accept clients; returns the address with its real port."""
        if self._tls is not None:
            return await self._listen_with(self._tls, address)
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        with listening_at(address):
            self._server = await loop.create_server(
                self._client_connections.client, host, port, backlog=1024
            )
        return join_address(host, self._server.sockets[0].getsockname()[1])

    async def _listen_with(self, tls: BrokerTls, address: str) -> str:
        refusal = proto.Response(error=error_to_proto(ConnectionFailed(TLS_EXPECTED)))
        self._server = TlsListener(
            self._client_connections.client,
            lambda: tls.clients,
            Accepted(self._connections_max),
            self._client_connections.settings.hello_timeout_s,
            b"".join(packet(refusal.SerializeToString())),
        )
        return await self._server.listen(address)

    async def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            await close_listener(self._server)
