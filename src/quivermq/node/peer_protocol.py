"""One connection between brokers: a hello each way, then parcels one way.

Whoever dialled sends; whoever was dialled listens. So each pair of brokers has connections in both
directions, and a broken one is noticed by who needs it.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from quivermq.batches import Buffer, Frame, Kind, Limits
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError, UnsupportedFormat
from quivermq.wire import (
    BROKER_ENVELOPE_BYTES_MAX,
    HELLO_BYTES_MAX,
    PROTOCOL,
    Packet,
    Receiver,
    frames_of,
    packet,
    parse_parcel,
    parse_peer_hello,
    proto,
)

logger = logging.getLogger("quivermq.peers")

PARCEL_BYTES_MAX: Final = 256 << 20
"""The largest packet of a peer: many appends, each of at most a batch or a message's worth."""

_DEAD_AFTER: Final = {
    "TCP_USER_TIMEOUT": 5_000,
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}
"""The first in milliseconds, the next two in seconds."""


def parse_hello(envelope: Buffer) -> proto.PeerHello:
    """The first packet of a peer; raises `InvalidRequest` for anything else."""
    hello = parse_peer_hello(envelope)
    if hello.protocol != PROTOCOL and not hello.refusal:
        raise InvalidRequest(f"a broker that speaks protocol {hello.protocol}, we speak {PROTOCOL}")
    return hello


class PeerProtocol(asyncio.BufferedProtocol):
    """What both ends share: packets in, packets out, never an exception into the loop."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._receiver = Receiver(HELLO_BYTES_MAX)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for found in self._receiver.received(nbytes):
                self.packet_received(found)
        except QuiverError as error:
            logger.warning("a peer's connection is closed: %s", error)
            self.close()

    def packet_received(self, found: Packet) -> None:
        raise NotImplementedError

    def write(self, envelope: bytes, frames: Sequence[Frame] = ()) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(packet(envelope, frames))

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def close(self) -> None:
        """Once everything that was said is delivered."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """At once: a peer that takes nothing would never let it close."""
        if self.transport is not None:
            self.transport.abort()


class Incoming(PeerProtocol):
    """A peer dialled: hear who it is, then take its parcels."""

    def __init__(
        self,
        answer: Callable[[proto.PeerHello], proto.PeerHello],
        take: Callable[[int, proto.Parcel, list[Frame]], None],
        connections: "set[Incoming]",
        limits: Limits,
        hello_s: float,
    ) -> None:
        super().__init__()
        self.hello: proto.PeerHello | None = None
        """Who it is, once it was let in."""
        self._answer = answer
        self._take = take
        self._connections = connections
        self._limits = limits
        self._patience = asyncio.get_running_loop().call_later(hello_s, self.close)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _notice_dead_hosts(transport.get_extra_info("socket"))
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._patience.cancel()
        self._connections.discard(self)

    def packet_received(self, found: Packet) -> None:
        if self.hello is None:
            self._patience.cancel()
            hello = parse_hello(found.envelope)
            answer = self._answer(hello)
            self.write(answer.SerializeToString())
            if answer.refusal:
                self.close()
            else:
                self.hello = hello
                self._receiver.allow(PARCEL_BYTES_MAX, BROKER_ENVELOPE_BYTES_MAX)
            return
        parcel = parse_parcel(found.envelope)
        try:
            frames = frames_of(found, self._limits)
        except UnsupportedFormat as error:
            # Only the groups whose entries they are have to wait for a later release.
            logger.warning(
                "node %d sends what this release cannot read: %s", self.hello.node, error
            )
            frames = _known_frames(parcel, found, self._limits)
        self._take(self.hello.node, parcel, frames)


class Outgoing(PeerProtocol):
    """We dialled: say who we are, hear whether we are welcome, then send parcels."""

    def __init__(self, hello: proto.PeerHello) -> None:
        super().__init__()
        self._hello = hello
        loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[proto.PeerHello] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _notice_dead_hosts(transport.get_extra_info("socket"))
        self.write(self._hello.SerializeToString())

    def packet_received(self, found: Packet) -> None:
        if not self.answered.done():
            self.answered.set_result(parse_hello(found.envelope))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if not self.answered.done():
            self.answered.set_exception(ConnectionFailed("the peer closed the connection"))
            self.answered.exception()  # seen: whoever dialled may have given up
        if not self.lost.done():
            self.lost.set_result(None)


def _known_frames(parcel: proto.Parcel, found: Packet, limits: Limits) -> list[Frame]:
    """The frames in front of one of another release, for the letters that need no others; all
    other letters are taken out of the parcel, as if they had been lost on the way."""
    frames: list[Frame] = []
    with suppress(UnsupportedFormat):
        for frame in Frame.parse_all(found.batches, limits):
            if frame.header.kind == Kind.MARK:
                raise InvalidRequest("a mark belongs to the log that wrote it and is never sent")
            frames.append(frame)
    kept, end = [], 0
    for letter in parcel.letters:
        end += letter.frames
        if end <= len(frames) or not letter.frames:
            kept.append(letter)
    del frames[sum(letter.frames for letter in kept) :]
    del parcel.letters[:]
    parcel.letters.extend(kept)
    return frames


def _notice_dead_hosts(connection: socket.socket | None) -> None:
    """A host that lost its power says no goodbye: give up what it does not acknowledge, and ask
    one that is silent whether it is there."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _DEAD_AFTER.items():
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
