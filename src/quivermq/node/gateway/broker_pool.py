"""Connections of a gateway to brokers: several to each, shared by all its clients.

A broker takes so many requests on one connection, and no more; so requests spread over lanes. A
lane has one connection to each broker. Batches for one partition always take the same lane, in the
order in which they came: a producer numbers them, and brokers refuse gaps.
"""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from zlib import crc32

from quivermq.batches import Frame, Limits
from quivermq.client import AsyncioConnection, AsyncioTransport
from quivermq.errors import BrokenInvariant, ConnectionFailed, Overloaded, QuiverError, Timeout
from quivermq.node.cluster_secret import BrokerProof, ClusterSecret
from quivermq.node.service import Answer
from quivermq.wire import frames_of, proto

ORDERED_LANES: Final = 4
"""For batches."""
LANES_MAX: Final = 32
"""For everything else; the first ones are used first."""
LANE_REQUESTS_MAX: Final = 200
LANE_BYTES_MAX: Final = 16 << 20
"""Of the requests that are open on a connection: past either, the next lane is used."""
_CONNECT_S: Final = 3.0


class Unsent(Exception):
    """A request did not leave this process: it can be sent again, to any broker."""

    def __init__(self, error: QuiverError) -> None:
        super().__init__(str(error))
        self.error = error


class _Load:
    """The open requests of one connection."""

    def __init__(self) -> None:
        self.requests = 0
        self.bytes = 0
        self.requests_max = LANE_REQUESTS_MAX
        self.turn = asyncio.Lock()
        """Whoever came first writes first."""

    @property
    def is_full(self) -> bool:
        return self.requests >= self.requests_max or self.bytes >= LANE_BYTES_MAX


class _Lane(AsyncioTransport):
    """One connection to each broker."""

    def __init__(
        self,
        client: str,
        make_tls: Callable[[], ssl.SSLContext | None],
        secret: ClusterSecret | None,
    ) -> None:
        prove = (lambda: BrokerProof(secret)) if secret is not None else None
        super().__init__(token=None, tls=None, client_name=client, prove=prove)
        self._make_tls = make_tls
        self.loads: defaultdict[str, _Load] = defaultdict(_Load)

    async def _open(self, address: str, deadline: float) -> AsyncioConnection:
        # Certificates are replaced while a gateway runs.
        self.tls = self._make_tls()
        return await super()._open(address, min(deadline, self.now() + _CONNECT_S))


class BrokerPool:
    """Sends requests to brokers, by address."""

    def __init__(
        self,
        client: str,
        limits: Limits,
        make_tls: Callable[[], ssl.SSLContext | None],
        secret: ClusterSecret | None,
    ) -> None:
        """With a secret, each side proves to the other that it belongs to the cluster."""
        self._limits = limits
        self._make_lane = partial(_Lane, client, make_tls, secret)
        self._ordered = [self._make_lane() for _ in range(ORDERED_LANES)]
        self._lanes = [self._make_lane()]

    @property
    def transport(self) -> AsyncioTransport:
        """For what the gateway itself asks."""
        return self._lanes[0]

    @property
    def open_requests(self) -> int:
        """Requests that brokers have not answered."""
        lanes = (*self._ordered, *self._lanes)
        return sum(load.requests for lane in lanes for load in lane.loads.values())

    async def send(
        self, address: str, request: proto.Request, frames: Sequence[Frame], deadline: float
    ) -> Answer:
        """The answer of the broker at an address; raises `Unsent`, or `ConnectionFailed` or
        `Timeout` if its outcome is unknown."""
        lane = self._lane_for(address, request)
        load = lane.loads[address]
        size = request.ByteSize() + sum(map(len, frames))
        load.requests += 1
        load.bytes += size
        try:
            try:
                connection = await lane.connection(address, deadline)
                accepted = connection.welcome.requests_max or LANE_REQUESTS_MAX
                load.requests_max = min(LANE_REQUESTS_MAX, accepted)
                async with load.turn:
                    number = await connection.post(request, frames, deadline)
            except (ConnectionFailed, Timeout) as error:
                raise Unsent(error) from error
            reply = await connection.take(number, deadline)
        finally:
            load.requests -= 1
            load.bytes -= size
        found = frames_of(reply.packet, self._limits) if reply.packet.batches else ()
        return reply.response, found

    def _lane_for(self, address: str, request: proto.Request) -> _Lane:
        if request.WhichOneof("body") == "produce":
            partition = f"{request.produce.topic}/{request.produce.partition}"
            return self._ordered[crc32(partition.encode()) % ORDERED_LANES]
        for lane in self._lanes:
            if not lane.loads[address].is_full:
                return lane
        if len(self._lanes) >= LANES_MAX:
            raise Overloaded(
                f"too many requests of this gateway wait for the broker at {address}; try again "
                "later, or start more gateways"
            )
        self._lanes.append(self._make_lane())
        return self._lanes[-1]

    # As a `Forwarder`, of which a gateway's service needs only this.

    def address_of(self, node: int) -> str:  # noqa: ARG002
        """Clients of a gateway are not told where brokers are."""
        return ""

    async def forward(self, *_: object) -> Answer:
        raise BrokenInvariant("a gateway sends requests by address")

    async def close(self) -> None:
        for lane in (*self._ordered, *self._lanes):
            await lane.close()
