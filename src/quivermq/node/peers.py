"""Keeps links to the other brokers: gathers mail into packets, bounds them, dials again.

Two lanes a peer. Entries and checkpoints travel in bulk; heartbeats, votes and acknowledgements
take the express lane, so that they never wait behind megabytes. What does not fit into the
bounded outbox is dropped: consensus sends again.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from random import SystemRandom
from typing import TYPE_CHECKING, Final

from quivermq.addresses import join_address, split_address
from quivermq.batches import Frame, Limits
from quivermq.cluster import node_of
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.node.clock import BrokerClock
from quivermq.node.cluster_secret import ClusterSecret
from quivermq.node.listener import Accepted, close_listener, listening_at
from quivermq.node.peer_codec import UnknownMail, decode_mail, encode_mail
from quivermq.node.peer_connection import (
    PEER_PACKET_BYTES_MAX,
    PEER_PACKET_ENVELOPE_BYTES_MAX,
    PEER_PACKET_FRAMES_MAX,
    STRANGERS_MAX,
    STRANGERS_OF_ADDRESS_MAX,
    Incoming,
    IncomingConnections,
    Outgoing,
)
from quivermq.node.tasks import end_tasks
from quivermq.node.tls_listener import TlsListener
from quivermq.raft import MessageKind
from quivermq.replica import Chunk, Consensus, EntriesReply, Mail, Offer
from quivermq.tls import BrokerTls, explain
from quivermq.wire import packet, proto

if TYPE_CHECKING:
    from quivermq.tracing import ReplicationSpans

logger = logging.getLogger("quivermq.peers")

STARTING: Final = "this broker is just starting, and does not know the cluster yet"
"""A refusal that passes by itself."""
TLS_EXPECTED: Final = (
    "its peer port expects TLS and this broker does not use it: start all brokers with --peer-tls"
)

_DIAL_AGAIN_S: Final = (0.05, 1.0)
_DIAL_TIMEOUT_S: Final = 2.0
_ENVELOPE_BYTES: Final = PEER_PACKET_ENVELOPE_BYTES_MAX // 2
_FRAMES_BYTES: Final = PEER_PACKET_BYTES_MAX // 8
_FRAMES: Final = PEER_PACKET_FRAMES_MAX // 4
"""How much goes into one packet, if it is more than one message."""
_MESSAGE_BYTES: Final = 8
"""The bytes that a message takes in a packet, beside itself."""
_LEADS_TOLD_AT_ONCE: Final = 20_000
_LEADS_AT_ONCE: Final = 1_000

_random = SystemRandom()


class LinkLane(Enum):
    """Which of the two connections to a peer."""

    EXPRESS = "express"
    BULK = "bulk"


def lane_of(mail: Mail) -> LinkLane:
    if isinstance(mail, Consensus):
        return LinkLane.BULK if mail.message.kind is MessageKind.APPEND else LinkLane.EXPRESS
    return LinkLane.BULK if isinstance(mail, Offer | Chunk | EntriesReply) else LinkLane.EXPRESS


@dataclass(slots=True)
class Outbox:
    """Messages that wait for the end of this pass of the loop."""

    peer_messages: list[proto.PeerMessage] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)


def packets_of(box: Outbox) -> Iterator[tuple[list[proto.PeerMessage], list[Frame]]]:
    """Messages and their frames as they travel together: past the limits of a packet the peer would
    close the connection, again and again."""
    peer_messages: list[proto.PeerMessage] = []
    frames: list[Frame] = []
    envelope_bytes = frames_bytes = at = 0
    for peer_message in box.peer_messages:
        mine = box.frames[at : at + peer_message.frames]
        at += peer_message.frames
        size, mine_bytes = peer_message.ByteSize() + _MESSAGE_BYTES, sum(map(len, mine))
        if peer_messages and (
            envelope_bytes + size > _ENVELOPE_BYTES
            or frames_bytes + mine_bytes > _FRAMES_BYTES
            or len(frames) + len(mine) > _FRAMES
        ):
            yield peer_messages, frames
            peer_messages, frames, envelope_bytes, frames_bytes = [], [], 0, 0
        peer_messages.append(peer_message)
        frames += mine
        envelope_bytes += size
        frames_bytes += mine_bytes
    yield peer_messages, frames


class PeerLink:
    """One lane to one peer."""

    def __init__(self, peer: "Peer", lane: LinkLane) -> None:
        self.peer = peer
        self.lane = lane
        self.outbox = Outbox()
        self.connection: Outgoing | None = None
        self.dropped = 0
        self._heard = asyncio.Event()
        self._task = asyncio.create_task(self._stay_connected(), name=f"link {peer.node}")

    def flush(self, bytes_max: int) -> None:
        """Send what gathered, in one packet if it is not too much for one."""
        if not self.outbox.peer_messages:
            return
        box, self.outbox = self.outbox, Outbox()
        for peer_messages, frames in packets_of(box):
            connection = self.connection
            if connection is None or connection.unsent_bytes > bytes_max:
                self.dropped += len(peer_messages)
            else:
                connection.write(
                    proto.PeerPacket(peer_messages=peer_messages).SerializeToString(), frames
                )

    def send(self, peer_packet: proto.PeerPacket, bytes_max: int) -> None:
        """Send a packet about the broker itself rather than a partition."""
        if self.connection is None:
            return
        if self.connection.unsent_bytes > bytes_max:
            # Such things are not sent again on this connection; the next one begins with all.
            self.connection.abort()
        else:
            self.connection.write(peer_packet.SerializeToString())

    async def _stay_connected(self) -> None:
        delay = _DIAL_AGAIN_S[0]
        while True:
            try:
                if await self._connect():
                    delay = _DIAL_AGAIN_S[0]
            except ssl.SSLError as error:
                self.peer.note_refusal(explain(error))
            except (OSError, QuiverError, TimeoutError) as error:
                logger.debug("no link to node %d: %s", self.peer.node, error)
            except Exception:
                # Whatever it is, without its links this broker is of no use.
                logger.exception("the link to node %d failed, and is tried again", self.peer.node)
            self._heard.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay * _random.uniform(0.5, 1.0)):
                    await self._heard.wait()
            delay = _DIAL_AGAIN_S[0] if self._heard.is_set() else min(delay * 2, _DIAL_AGAIN_S[1])

    def dial_soon(self) -> None:
        """The peer was just heard: if there is no connection to it, there can be one."""
        self._heard.set()

    async def _connect(self) -> bool:
        """Connect, and return when the connection is lost; False if there was none, because one
        of the two does not accept the other: that will not change in a moment."""
        links = self.peer.links
        host, port = split_address(self.peer.address)
        loop = asyncio.get_running_loop()
        hello = links.hello()
        context = links.tls.peer_dialer if links.tls is not None else None
        async with asyncio.timeout(_DIAL_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: Outgoing(hello, links.secret), host, port, ssl=context
            )
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                answer = await connection.answered
            refusal = answer.refusal or links.judge(self.peer.node, answer)
            self.peer.note_refusal(refusal)
            if refusal:
                return False
            self.connection = connection
            if self.lane is LinkLane.EXPRESS:
                links.connected(self.peer.node)
            await connection.lost
        finally:
            self.connection = None
            connection.abort()
        return True

    async def close(self) -> None:
        await end_tasks(self._task)


class Peer:
    """Another broker, as this one sees it."""

    def __init__(self, node: int, address: str, links: "PeerLinks") -> None:
        self.node = node
        self.address = address
        self.links = links
        self.heard_at = links.now()
        self.is_silent = False
        self.look_again_at = 0.0
        self.refusal = ""
        """Not "": one of the two does not accept the other, and why."""
        self.lanes = {lane: PeerLink(self, lane) for lane in LinkLane}

    def note_refusal(self, reason: str) -> None:
        if reason and reason != self.refusal:
            # These pass by themselves.
            passes = reason == STARTING or "is being replaced" in reason
            level = logging.INFO if passes else logging.ERROR
            text = "node %d and this one do not accept each other: %s"
            logger.log(level, text, self.node, reason)
        self.refusal = reason

    def move(self, address: str) -> None:
        """It listens elsewhere."""
        if address and address != self.address:
            self.address = address
            for link in self.lanes.values():
                if link.connection is not None:
                    link.connection.abort()

    async def close(self) -> None:
        for link in self.lanes.values():
            await link.close()


@dataclass(slots=True)
class LinkHooks:
    """The broker, as the links need it."""

    hello: Callable[[], proto.PeerHello]
    judge: Callable[[int, proto.PeerHello], str]
    """Why a broker that we dialled is not who we wanted; "" if it is."""
    welcome: Callable[[proto.PeerHello], str]
    """Why a broker that dialled us is refused; "" if it is welcome."""
    deliver: Callable[[bytes, int, int, Mail], None]
    """Mail for a replica: partition, sender, receiver, mail."""
    objection: Callable[[proto.PeerHello], str]
    """Why a broker that is connected must not be any longer; "" if it may."""
    leads: Callable[[int, Iterable[proto.Leadership]], None]
    silent: Callable[[int], None]
    connected: Callable[[int], None]
    returned: Callable[[int], None] = lambda _: None
    """A broker that was silent is heard again, perhaps on the same connection."""
    clock: BrokerClock = field(default_factory=BrokerClock)


class PeerLinks:
    """All other brokers, and the listener for them."""

    def __init__(
        self,
        limits: Limits,
        outbox_bytes_max: int,
        silence_s: float,
        hello_s: float,
        given: Mapping[int, str],
        connections_max: int = 400,
        tls: BrokerTls | None = None,
        secret: ClusterSecret | None = None,
    ) -> None:
        """`given` are addresses that win over whatever is said or heard of these nodes."""
        self.tls = tls
        self.hooks: LinkHooks
        self.secret = secret
        self.peers: dict[int, Peer] = {}
        self._limits = limits
        self._outbox_bytes_max = outbox_bytes_max
        self._silence_s = silence_s
        self._ticked_at = inf
        self._stood_still = False
        self._hello_s = hello_s
        self._given = given
        self._server: asyncio.Server | TlsListener | None = None
        self._incoming = IncomingConnections(connections_max)
        # In the order of posting: what leaves first does not depend on addresses in memory.
        self._posted: dict[PeerLink, None] = {}
        self.spans: ReplicationSpans | None = None
        """None: replication is not traced."""
        self._is_closed = False

    def connect(self, hooks: LinkHooks) -> None:
        """Before the first peer is known: what the broker does with what peers say."""
        self.hooks = hooks

    async def listen(self, address: str) -> str:
        """Accept other brokers; returns the address with its real port."""
        if self.tls is not None and self.tls.is_mutual:
            return await self._listen_with(self.tls, address)
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        with listening_at(address):
            self._server = await loop.create_server(self._incoming_protocol, host, port)
        return join_address(host, self._server.sockets[0].getsockname()[1])

    async def _listen_with(self, tls: BrokerTls, address: str) -> str:
        refusal = proto.PeerHello(refusal=TLS_EXPECTED)
        self._server = TlsListener(
            self._incoming_protocol,
            lambda: tls.peers,
            Accepted(STRANGERS_MAX, STRANGERS_OF_ADDRESS_MAX),
            self._hello_s,
            b"".join(packet(refusal.SerializeToString())),
        )
        return await self._server.listen(address)

    def _incoming_protocol(self) -> Incoming:
        return Incoming(
            self._answer,
            self._take,
            self._incoming,
            self._limits,
            self._hello_s,
            self.secret,
            needs_certificate=self.tls is not None and self.tls.is_mutual,
        )

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def hello(self) -> proto.PeerHello:
        return self.hooks.hello()

    def judge(self, node: int, answer: proto.PeerHello) -> str:
        return self.hooks.judge(node, answer)

    def connected(self, node: int) -> None:
        self.hooks.connected(node)

    def know(self, node: int, address: str) -> None:
        """Keep links to this broker, at this address unless another one was given."""
        if self._is_closed:
            # The catalog may still change while a broker stops.
            return
        address = self._given.get(node, address)
        peer = self.peers.get(node)
        if peer is None:
            self.peers[node] = Peer(node, address, self)
        else:
            peer.move(address)

    def judge_again(self) -> None:
        """Close connections of brokers that, by what is known since, must not take part."""
        for connection in self._incoming:
            if connection.hello is not None and (why := self.hooks.objection(connection.hello)):
                logger.warning("node %d is shown out: %s", connection.hello.node, why)
                connection.abort()
        for peer in self.peers.values():
            for link in peer.lanes.values():
                dialled = link.connection
                if dialled and (why := self.hooks.objection(dialled.answered.result())):
                    peer.note_refusal(why)
                    dialled.abort()

    async def forget(self, node: int) -> None:
        self.hooks.clock.forget(node)
        peer = self.peers.pop(node, None)
        if peer is not None:
            await peer.close()

    def post(self, partition: bytes, sender: int, node: int, to: int, mail: Mail) -> None:
        """Put mail for a member on `node` into the outbox; lost if there is no link."""
        peer = self.peers.get(node)
        if peer is None:
            return
        peer_message, frames = encode_mail(partition, sender, to, mail)
        if self.spans is not None:
            self.spans.mark(peer_message, frames)
        link = peer.lanes[lane_of(mail)]
        link.outbox.peer_messages.append(peer_message)
        link.outbox.frames += frames
        self._posted[link] = None

    def flush(self) -> None:
        """Send everything that was posted in this pass."""
        if self._posted:
            posted, self._posted = self._posted, {}
            for link in posted:
                link.flush(self._outbox_bytes_max)

    def tick(self) -> None:
        """Send a heartbeat to every peer, and notice which are silent."""
        peer_packet = proto.PeerPacket(alive=True, clock_ms=self.hooks.clock.machine_ms())
        now = self.now()
        for connection in self._incoming:
            connection.look(now)
        # What the others said meanwhile is not read yet; but once is excuse enough.
        self._stood_still = now - self._ticked_at > self._silence_s and not self._stood_still
        self._ticked_at = now
        for peer in list(self.peers.values()):
            peer.lanes[LinkLane.EXPRESS].send(peer_packet, self._outbox_bytes_max)
            if self._stood_still:
                continue
            was_silent, peer.is_silent = peer.is_silent, now - peer.heard_at > self._silence_s
            if was_silent and not peer.is_silent:
                self.hooks.returned(peer.node)
            if peer.is_silent and now >= peer.look_again_at:
                # Again and again: a replica may fall asleep while it is silent.
                peer.look_again_at = now + self._silence_s
                self.hooks.silent(peer.node)

    def reaches(self, node: int) -> bool:
        """Whether mail of all kinds can be sent to a broker now."""
        peer = self.peers.get(node)
        return peer is not None and all(link.connection for link in peer.lanes.values())

    def is_reached_by(self, node: int) -> bool:
        """Whether mail of all kinds can come from it."""
        return self._incoming.count(node) >= len(LinkLane)

    @property
    def silent_nodes(self) -> frozenset[int]:
        return frozenset(node for node, peer in self.peers.items() if peer.is_silent)

    def tell_leadership(self, leads: list[proto.Leadership], node: int | None = None) -> None:
        """Tell all brokers, or one, which partitions are led here."""
        for first in range(0, len(leads), _LEADS_TOLD_AT_ONCE):
            peer_packet = proto.PeerPacket(leads=leads[first : first + _LEADS_TOLD_AT_ONCE])
            for peer in self.peers.values():
                if node in {None, peer.node}:
                    peer.lanes[LinkLane.EXPRESS].send(peer_packet, self._outbox_bytes_max)

    def _answer(self, hello: proto.PeerHello) -> proto.PeerHello:
        answer = self.hello()
        answer.refusal = self.hooks.welcome(hello)
        peer = self.peers.get(hello.node)
        if peer is not None and not answer.refusal:
            peer.heard_at = self.now()
            for link in peer.lanes.values():
                link.dial_soon()
        return answer

    def _take(
        self, node: int, peer_packet: proto.PeerPacket, frames: list[Frame]
    ) -> Iterator[None]:
        """Take a packet in, one message with each step."""
        peer = self.peers.get(node)
        if peer is not None:
            peer.heard_at = self.now()
            if peer_packet.alive:
                self.hooks.clock.heard(node, peer_packet.clock_ms)
        for first in range(0, len(peer_packet.leads), _LEADS_AT_ONCE):
            self.hooks.leads(node, peer_packet.leads[first : first + _LEADS_AT_ONCE])
            yield
        at = 0
        for peer_message in peer_packet.peer_messages:
            if node_of(peer_message.sender) != node:
                raise InvalidRequest(f"node {node} writes as member {peer_message.sender}")
            mine = frames[at : at + peer_message.frames]
            at += peer_message.frames
            if self.spans is not None:
                self.spans.arrive(peer_message, mine)
            try:
                mail = decode_mail(peer_message, mine)
            except UnknownMail as error:
                # Of a later release, which does not count on an answer.
                logger.debug("node %d: %s", node, error)
            else:
                self.hooks.deliver(
                    peer_message.partition, peer_message.sender, peer_message.to, mail
                )
            yield

    async def close(self) -> None:
        self._is_closed = True
        if self._server is not None:
            await close_listener(self._server)
        for node in list(self.peers):
            await self.forget(node)
        self._incoming.close()
