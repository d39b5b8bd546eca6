"""One connection between brokers: a hello each way, then packets one way.

The broker that dialled sends; the other listens. So each pair of brokers has connections in both
directions, and a broken one is noticed by the broker that needs it.
"""

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from quivermq.batches import Frame, FrameKind, Limits
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    QuiverError,
    Unauthenticated,
    UnsupportedFormat,
)
from quivermq.node.cluster_secret import NONCE_BYTES, Challenge, ClusterSecret
from quivermq.node.listener import Accepted, address_of
from quivermq.tls import shows_broker
from quivermq.wire import (
    HELLO_BYTES_MAX,
    PROTOCOL,
    Packet,
    Receiver,
    StallWatch,
    frames_of,
    packet,
    parse_peer_hello,
    parse_peer_packet,
    proto,
)

logger = logging.getLogger("quivermq.peers")

PEER_PACKET_BYTES_MAX: Final = 256 << 20
"""The largest packet of a peer: many appends, each of at most a batch or a message's worth."""
PEER_PACKET_ENVELOPE_BYTES_MAX: Final = 2 << 20
"""Its envelope: a part of a checkpoint takes half of that. Four times as much, all of it empty
messages, would hold the loop for as long as an election takes."""
PEER_PACKET_FRAMES_MAX: Final = 16_384
"""One message holds 12,000 at most: entries of 1 MiB, each with a header of 88 bytes."""
STRANGERS_MAX: Final = 64
"""Connections that have not said hello."""
STRANGERS_OF_ADDRESS_MAX: Final = 16
LINKS_OF_NODE_MAX: Final = 4
"""Two are in use, two more may be dead without being noticed yet."""
_SLICE_S: Final = 0.01
"""For so long messages are decoded before others on the loop go on."""

_DEAD_AFTER: Final = {
    "TCP_USER_TIMEOUT": 5_000,
    "TCP_KEEPIDLE": 5,
    "TCP_KEEPALIVE": 5,
    "TCP_KEEPINTVL": 5,
    "TCP_KEEPCNT": 3,
}
"""The first in milliseconds, the next three in seconds. macOS has the third for the second, and
nothing for the first."""


class PeerProtocol(asyncio.BufferedProtocol):
    """The part that both ends share: packets in, packets out, never an exception into the loop."""

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

    def _parse_hello(self, found: Packet) -> proto.PeerHello:
        """The first packet of a peer; raises for anything else, or if it was damaged."""
        hello = parse_peer_hello(found.envelope)
        if not hello.protocol and not hello.refusal:
            raise InvalidRequest("the first word of a peer is no hello")
        self._receiver.check_protocol(hello.protocol)
        return hello

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
    """A peer dialled: hear who it is, then take its packets."""

    def __init__(
        self,
        answer: Callable[[proto.PeerHello], proto.PeerHello],
        take: Callable[[int, proto.PeerPacket, list[Frame]], Iterator[None]],
        connections: "IncomingConnections",
        limits: Limits,
        hello_s: float,
        secret: ClusterSecret | None = None,
        *,
        needs_certificate: bool = False,
    ) -> None:
        """`take` decodes one message of a packet with each step. With a secret, nothing is taken
        from a peer, and nothing is believed of its hello, before it has proved to know it."""
        super().__init__()
        self._hello_s = hello_s
        self._needs_certificate = needs_certificate
        self._is_refused = False
        self._secret = secret
        self._claimed = proto.PeerHello()
        self._challenge: Challenge | None = None
        self.hello: proto.PeerHello | None = None
        """The hello of the broker, once it was let in."""
        self._answer = answer
        self._take = take
        self._connections = connections
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._patience: asyncio.TimerHandle | None = None
        self._stall = StallWatch(self._receiver)
        # Packets that are being decoded, in their order.
        self._decoding: deque[Iterator[None]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _notice_dead_hosts(transport.get_extra_info("socket"))
        self.address = address_of(transport)
        self._connections.enter(self)
        self._patience = self._loop.call_later(self._hello_s, self.abort)
        if self._needs_certificate and not shows_broker(transport):
            logger.warning("%s shows a certificate that is no broker's", self.address)
            self._is_refused = True
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._end_patience()
        self._decoding.clear()
        self._connections.leave(self)

    def packet_received(self, found: Packet) -> None:
        if self._is_refused:
            # It may have arrived together with the end of the handshake.
            return
        if self.hello is None:
            hello = self._hear_hello(found)
            if hello is None:
                return
            self._end_patience()
            answer = self._answer(hello)
            self.write(answer.SerializeToString())
            if answer.refusal:
                self.close()
            else:
                self.hello = hello
                self._connections.greeted(self, hello.node)
                self._receiver.allow(PEER_PACKET_BYTES_MAX, PEER_PACKET_ENVELOPE_BYTES_MAX)
            return
        peer_packet = parse_peer_packet(found.envelope)
        try:
            frames = frames_of(found, self._limits, PEER_PACKET_FRAMES_MAX)
        except UnsupportedFormat as error:
            # Only the partitions whose entries they are have to wait for a later release.
            logger.warning(
                "node %d sends what this release cannot read: %s", self.hello.node, error
            )
            frames = _known_frames(peer_packet, found, self._limits)
        self._decoding.append(self._take(self.hello.node, peer_packet, frames))
        if len(self._decoding) == 1:
            self._decode_some()

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()

    def _hear_hello(self, found: Packet) -> proto.PeerHello | None:
        """The hello of a peer that may be believed; None if there is none yet, or never."""
        if self.transport is None or self.transport.is_closing():
            return None
        if self._challenge is not None:
            try:
                self._challenge.check(parse_peer_hello(found.envelope).proof)
            except Unauthenticated as error:
                self._refuse(str(error))
                return None
            return self._claimed
        hello = self._parse_hello(found)
        if self._secret is None:
            return hello
        if not hello.nonce:
            self._refuse("this cluster has a secret: set cluster_secret on every broker")
            return None
        self._claimed, self._challenge = hello, self._secret.challenge(hello.nonce)
        challenge = proto.PeerHello(
            protocol=PROTOCOL, nonce=self._challenge.nonce, proof=self._challenge.proof
        )
        self.write(challenge.SerializeToString())
        return None

    def _refuse(self, reason: str) -> None:
        logger.warning("a stranger at %s is no broker of this cluster: %s", self.address, reason)
        self.write(proto.PeerHello(protocol=PROTOCOL, refusal=reason).SerializeToString())
        self.close()

    def _decode_some(self) -> None:
        """Decode messages for a while; if some are left, read nothing more until they are."""
        until = time.perf_counter() + _SLICE_S
        while self._decoding:
            for _ in self._decoding[0]:
                if time.perf_counter() > until:
                    self._listen(is_wanted=False)
                    self._loop.call_soon(self._decode_more)
                    return
            self._decoding.popleft()
        self._listen(is_wanted=True)

    def _decode_more(self) -> None:
        try:
            self._decode_some()
        except QuiverError as error:
            logger.warning("a peer's connection is closed: %s", error)
            self.close()
        except BaseException:
            self.abort()
            raise

    def look(self, now_s: float) -> None:
        """With every tick: end a connection on which nothing is understood any more."""
        if self._decoding:
            self._stall.forget(now_s)
        elif self._stall.is_stalled(now_s):
            node = self.hello.node if self.hello else 0
            logger.warning("a packet of node %d does not arrive: the connection is closed", node)
            self.abort()

    def _listen(self, *, is_wanted: bool) -> None:
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading() == is_wanted:
            return
        if is_wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()


class IncomingConnections:
    """Connections of brokers, and of strangers that have not said hello yet.

    Neither can be kept out by a client that takes all places: of too many the oldest goes. A broker
    says hello at once, and dials anew only if it has lost its link.
    """

    def __init__(self, connections_max: int) -> None:
        self._all: dict[Incoming, None] = {}
        self._strangers: Accepted[Incoming] = Accepted(STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX)
        # By node, as if it were an address.
        self._brokers: Accepted[Incoming] = Accepted(connections_max, LINKS_OF_NODE_MAX)
        self._is_closed = False

    def __iter__(self) -> Iterator[Incoming]:
        return iter(list(self._all))

    def enter(self, connection: Incoming) -> None:
        self._all[connection] = None
        self._make_room(self._strangers, connection.address)
        self._strangers.enter(connection, connection.address)
        if self._is_closed:
            # It was accepted before the listener was closed, and is made only now.
            connection.abort()

    def close(self) -> None:
        """End all of them, and whatever comes after."""
        self._is_closed = True
        for connection in self:
            connection.abort()

    def greeted(self, connection: Incoming, node: int) -> None:
        self._strangers.leave(connection)
        self._make_room(self._brokers, str(node))
        self._brokers.enter(connection, str(node))

    def _make_room(self, accepted: Accepted[Incoming], address: str) -> None:
        oldest = accepted.surplus(address)
        if oldest is not None:
            accepted.leave(oldest)
            oldest.abort()

    def count(self, node: int) -> int:
        """How many a broker has."""
        return sum(each.hello is not None and each.hello.node == node for each in self._all)

    def leave(self, connection: Incoming) -> None:
        self._all.pop(connection, None)
        self._strangers.leave(connection)
        self._brokers.leave(connection)


class Outgoing(PeerProtocol):
    """We dialled: say who we are, hear whether we are welcome, then send packets."""

    def __init__(self, hello: proto.PeerHello, secret: ClusterSecret | None = None) -> None:
        super().__init__()
        self._hello = hello
        self._secret = secret
        if secret is not None:
            hello.nonce = secrets.token_bytes(NONCE_BYTES)
        loop = asyncio.get_running_loop()
        self.answered: asyncio.Future[proto.PeerHello] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        _notice_dead_hosts(transport.get_extra_info("socket"))
        self.write(self._hello.SerializeToString())

    def packet_received(self, found: Packet) -> None:
        if self.answered.done():
            return
        answer = self._parse_hello(found)
        if self._secret is None or answer.refusal:
            self.answered.set_result(answer)
            return
        secret, self._secret = self._secret, None
        try:
            proof = secret.proof_of_dialler(self._hello.nonce, answer.nonce, answer.proof)
        except Unauthenticated as error:
            self.answered.set_result(proto.PeerHello(refusal=str(error)))
            return
        self.write(proto.PeerHello(protocol=PROTOCOL, proof=proof).SerializeToString())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            # With TLS 1.3 a refused certificate is heard of only after the handshake.
            closed = ConnectionFailed("the peer closed the connection")
            self.answered.set_exception(exc if isinstance(exc, ssl.SSLError) else closed)
            self.answered.exception()  # seen: the dialler may have given up
        if not self.lost.done():
            self.lost.set_result(None)


def _known_frames(peer_packet: proto.PeerPacket, found: Packet, limits: Limits) -> list[Frame]:
    """The frames in front of one of another release, for the messages that need no others; all
    other messages are taken out of the packet, as if they had been lost on the way."""
    frames: list[Frame] = []
    with suppress(UnsupportedFormat):
        for frame in Frame.parse_all(found.batches, limits):
            if frame.header.kind == FrameKind.MARK:
                raise InvalidRequest("a mark belongs to the log that wrote it and is never sent")
            frames.append(frame)
    kept, end = [], 0
    for peer_message in peer_packet.peer_messages:
        end += peer_message.frames
        if end <= len(frames) or not peer_message.frames:
            kept.append(peer_message)
    del frames[sum(peer_message.frames for peer_message in kept) :]
    del peer_packet.peer_messages[:]
    peer_packet.peer_messages.extend(kept)
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
