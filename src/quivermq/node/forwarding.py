"""Forwards requests to other brokers: the one part of a broker that is a client."""

import asyncio
import ssl
from collections.abc import Callable, Sequence

from quivermq.batches import Frame, Limits
from quivermq.client import AsyncioTransport
from quivermq.errors import NotLeader
from quivermq.node.cluster_secret import BrokerProof, ClusterSecret
from quivermq.node.service import Answer
from quivermq.wire import frames_of, proto


class Forwarding:
    """Connections to other brokers, made when they are needed."""

    def __init__(
        self,
        address_of: Callable[[int], str],
        limits: Limits,
        client: str,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        secret: ClusterSecret | None = None,
    ) -> None:
        """`tls` is asked for each request: certificates are replaced while a broker runs. With a
        secret, each side proves to the other that it is a broker of the cluster."""
        self.address_of = address_of
        self._tls = tls
        self._limits = limits
        prove = (lambda: BrokerProof(secret)) if secret is not None else None
        self._transport = AsyncioTransport(token=None, tls=None, client_name=client, prove=prove)

    async def forward(
        self, node: int, request: proto.Request, frames: Sequence[Frame], timeout_s: float
    ) -> Answer:
        """The answer of a broker; raises `ConnectionFailed` or `Timeout` if there is none."""
        address = self.address_of(node)
        if not address:
            raise NotLeader(f"the address of node {node} is not known yet; try again")
        return await self.send(address, request, frames, timeout_s)

    async def send(
        self,
        address: str,
        request: proto.Request,
        frames: Sequence[Frame] = (),
        timeout_s: float = 5.0,
    ) -> Answer:
        """The answer of the broker that listens at `address`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        self._transport.tls = self._tls()
        connection = await self._transport.connection(address, deadline)
        try:
            number = await connection.post(request, frames, deadline)
            reply = await connection.take(number, deadline)
        finally:
            self._transport.release(connection)
        response = reply.response
        return response, frames_of(reply.packet, self._limits) if reply.packet.batches else ()

    async def close(self) -> None:
        await self._transport.close()
