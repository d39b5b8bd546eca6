"""The TCP transport: packets over sockets."""

import asyncio
import ssl

from quivermq.addresses import join_address, split_address
from quivermq.node import listening_at
from quivermq.transports.client_connections import ClientConnections


class TcpListener:
    """The listener for clients."""

    def __init__(
        self, client_connections: ClientConnections, tls: ssl.SSLContext | None = None
    ) -> None:
        self._client_connections = client_connections
        self._tls = tls
        self._server: asyncio.Server | None = None

    async def listen(self, address: str) -> str:
        """Accept clients; returns the address with its real port."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        with listening_at(address):
            self._server = await loop.create_server(
                self._client_connections.client, host, port, ssl=self._tls, backlog=1024
            )
        return join_address(host, self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections; those that are open stay."""
        if self._server is not None:
            self._server.close()
