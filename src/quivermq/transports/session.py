"""One client's conversation with a broker, whatever carries its bytes.

Hello first, then requests, many at once, answered in the order in which they are done. Everything
is bounded: open requests, their bytes, unread answers, the size of a packet, how long silence may
last.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import quivermq
from quivermq.batches import Buffer, Frame, Limits
from quivermq.errors import (
    InvalidRequest,
    Overloaded,
    QuiverError,
    TooLarge,
    UnsupportedFormat,
)
from quivermq.log_context import new_connection
from quivermq.node import AccessControl, Caller, Cancellable, Challenge, Service
from quivermq.transports.backlog import Backlog, BacklogRoom
from quivermq.wire import (
    BROKER_ENVELOPE_BYTES_MAX,
    CHECKSUM_BYTES,
    FRAMES_MAX,
    HELLO_BYTES_MAX,
    PROTOCOL,
    PROTOCOL_MIN,
    Packet,
    Receiver,
    UnknownRequest,
    agreed_protocol,
    frames_of,
    packet,
    parse_request,
    proto,
    protocols,
)

logger = logging.getLogger("quivermq.session")

FEATURES: Final = ("produce", "fetch", "offsets", "groups", "cluster")
_ENVELOPE_BYTES: Final = 1 << 20
_DOOR: Final = "tcp"
_NO_REQUEST: Final = 0
"""The id of what is said about the connection rather than in answer to a request."""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The limits of a connection."""

    node_id: int
    limits: Limits
    requests_max: int
    request_bytes_max: int
    unread_bytes_max: int
    idle_timeout_s: float
    hello_timeout_s: float

    @property
    def packet_bytes_max(self) -> int:
        """One produce request: an envelope, and batches of which one may be as large as allowed."""
        return self.limits.batch_bytes_max + _ENVELOPE_BYTES


class Session:
    """Requests of one connection, until it ends."""

    def __init__(
        self,
        service: Service,
        access: AccessControl,
        settings: SessionSettings,
        cluster_id: Callable[[], str],
        write: Callable[[list[Buffer]], None],
        unread: Callable[[], int],
        hang_up: Callable[[], None],
        now: float,
    ) -> None:
        self.receiver = Receiver(HELLO_BYTES_MAX)
        self.backlog = Backlog(settings.unread_bytes_max, unread)
        self.client = ""
        self.address = ""
        """Where the connection comes from."""
        self.name = new_connection(_DOOR)
        """In the log."""
        self.is_closed = False
        self._service = service
        self._access = access
        self._hang_up = hang_up
        self._passed = service.counters.doors[_DOOR]
        self._hello = proto.Request()
        self._protocol = PROTOCOL_MIN
        self._challenge: Challenge | None = None
        self._caller: Caller | None = None
        self.settings = settings
        self._cluster_id = cluster_id
        self._write = write
        self._began_at = self._heard_at = now
        # By id: what may be cancelled, and the bytes that it holds.
        self._open: dict[int, tuple[Cancellable | None, int]] = {}
        self._open_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no more should be read before something is answered, or an answer taken.

        Never for the number of open requests: one more is refused, and a cancel must get through.
        """
        return self._open_bytes > self.settings.request_bytes_max or self.backlog.is_full

    @property
    def has_open_requests(self) -> bool:
        return bool(self._open)

    def is_overdue(self, now: float) -> bool:
        """Whether it said nothing for too long."""
        if not self.client:
            # From the start, not from the last byte: one at a time would last for ever.
            return now - self._began_at > self.settings.hello_timeout_s
        return not self._open and now - self._heard_at > self.settings.idle_timeout_s

    def received(self, count: int, now: float) -> None:
        """Bytes arrived in the receiver. Raises what ends the conversation, and has told it."""
        self._heard_at = now
        try:
            packets = self.receiver.received(count)
        except QuiverError as error:
            self._end(_NO_REQUEST, error)
        for found in packets:
            self._take(found)

    def _take(self, found: Packet) -> None:
        try:
            request = parse_request(found.envelope)
        except UnknownRequest as error:
            if not self.client:
                self._end(error.id, InvalidRequest("the first request must be hello"))
            # The client knows more than this build; that is no reason to part.
            self.refuse(_unsupported(error), error.id)
            return
        except QuiverError as error:
            self._end(_NO_REQUEST, error)
        body = request.WhichOneof("body")
        if body == "hello":
            self._greet(request)
        elif body == "prove":
            self._prove(request)
        elif not self.client:
            self._end(request.id, InvalidRequest("the first request must be hello"))
        elif body == "cancel":
            self._cancel(request.cancel.id)
        elif body == "ping":
            self._send(proto.Response(id=request.id, done=proto.Done()), ())
        else:
            self._begin(request, found)

    def _greet(self, request: proto.Request) -> None:
        hello = request.hello
        try:
            self.receiver.check_protocol(hello.protocol)
        except QuiverError as error:
            self._end(_NO_REQUEST, error)
        protocol = agreed_protocol(hello.protocol_min, hello.protocol)
        if not protocol:
            self._end(
                request.id,
                UnsupportedFormat(
                    f"the client (release {hello.version[:50] or 'unknown'}) speaks "
                    f"{protocols(hello.protocol_min, hello.protocol)}, this broker (release "
                    f"{quivermq.__version__}) {protocols(PROTOCOL_MIN, PROTOCOL)}: "
                    "upgrade the older one"
                ),
            )
        self._hello, self._protocol = request, protocol
        challenge = self._access.challenge(hello.nonce) if hello.nonce else None
        if challenge is not None:
            self._challenge = challenge
            asked = proto.Challenge(nonce=challenge.nonce, proof=challenge.proof)
            self._send(proto.Response(id=request.id, challenge=asked), ())
        else:
            self._sign_in(request)

    def _sign_in(self, request: proto.Request) -> None:
        token, address = request.hello.token, self.address
        try:
            caller = self._access.sign_in_now(token, address, _DOOR, self._end_by_access)
        except QuiverError as error:
            self._end(request.id, error)
        if caller is not None:
            self._welcome(caller)
        elif self._open:
            self._end(request.id, InvalidRequest("hello is said once, before anything else"))
        else:
            task = asyncio.create_task(self._sign_in_later(request), name="sign in")
            self._open[request.id] = (task, 0)

    async def _sign_in_later(self, request: proto.Request) -> None:
        """The broker has to ask others first whether it knows all users."""
        try:
            caller = await self._access.sign_in(
                request.hello.token, self.address, _DOOR, self._end_by_access
            )
        except QuiverError as error:
            self._close_request(request.id)
            self.refuse(error, request.id)
            self._hang_up()
            return
        if self._close_request(request.id):
            self._welcome(caller)
        else:
            self._access.sign_out(caller)

    def _prove(self, request: proto.Request) -> None:
        """A broker answers its challenge, once."""
        challenge, self._challenge = self._challenge, None
        try:
            if challenge is None:
                raise InvalidRequest("there is no challenge that this could be the answer to")
            challenge.check(request.prove.proof)
        except QuiverError as error:
            self._end(request.id, error)
        self._welcome(Caller(None, self.address, _DOOR, is_broker=True))

    def _end_by_access(self, error: QuiverError) -> None:
        self.refuse(error)
        self._hang_up()

    def _welcome(self, caller: Caller) -> None:
        settings, request = self.settings, self._hello
        if self._caller is not None:
            self._access.sign_out(self._caller)
        self._caller = caller
        caller.connection = self.name
        self.receiver.allow(settings.packet_bytes_max)
        self.client = request.hello.client[:200] or "unnamed"
        welcome = proto.Welcome(
            protocol=self._protocol,
            version=quivermq.__version__,
            features=FEATURES,
            node=settings.node_id,
            cluster_id=self._cluster_id(),
            packet_bytes_max=settings.packet_bytes_max,
            message_bytes_max=settings.limits.message_bytes_max,
            batch_bytes_max=settings.limits.batch_bytes_max,
            requests_max=settings.requests_max,
            idle_timeout_ms=round(settings.idle_timeout_s * 1000),
        )
        self._send(proto.Response(id=request.id, welcome=welcome), ())

    def _begin(self, request: proto.Request, found: Packet) -> None:
        # What was parsed waits with the request: it counts as much as batches do.
        number, size = request.id, len(found.envelope) + len(found.batches)
        self._passed.requests += 1
        if number in self._open:
            self._end(number, InvalidRequest(f"request id {number} is in use"))
        try:
            if len(self._open) >= self.settings.requests_max or self.is_full:
                raise Overloaded(
                    f"{len(self._open)} requests with {self._open_bytes:,} bytes are open on this "
                    "connection; wait for answers"
                )
            limits = self.settings.limits
            frames = frames_of(found, limits, FRAMES_MAX) if found.batches else []
        except QuiverError as error:
            self.refuse(error, number)
            return
        self._open[number] = (None, size)
        self._open_bytes += size
        room = BacklogRoom(self.backlog, number)
        work = self._service.submit(request, frames, self._reply, room, self._caller)
        if work is not None and number in self._open:
            self._open[number] = (work, size)

    def _reply(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        number = response.id
        if self._close_request(number):
            self._send(response, frames)
            self.backlog.settle(number)

    def _close_request(self, number: int) -> bool:
        _, size = self._open.pop(number, (None, -1))
        self._open_bytes -= max(size, 0)
        return size >= 0 and not self.is_closed

    def _cancel(self, number: int) -> None:
        work, _ = self._open.get(number, (None, 0))
        if work is not None:
            work.cancel()
            self._close_request(number)
            self.backlog.settle(number)

    def _send(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        if self.is_closed:
            return
        if response.HasField("error"):
            self._passed.refused[response.error.code] += 1
        envelope = response.SerializeToString()
        if len(envelope) + CHECKSUM_BYTES > BROKER_ENVELOPE_BYTES_MAX:
            # The client would close the connection, and ask again.
            too_large = TooLarge(
                f"the answer takes {len(envelope):,} bytes, above the limit of "
                f"{BROKER_ENVELOPE_BYTES_MAX:,}: ask for less at once"
            )
            refusal = self._service.refusal(too_large)
            refusal.id = response.id
            envelope, frames = refusal.SerializeToString(), ()
        self._write(packet(envelope, frames))

    def _end(self, number: int, error: QuiverError) -> NoReturn:
        """A last word, and no more."""
        self.refuse(error, number)
        raise error

    def refuse(self, error: QuiverError, number: int = _NO_REQUEST) -> None:
        response = self._service.refusal(error)
        response.id = number
        self._send(response, ())

    def close(self) -> None:
        """The connection is gone: cancel what is open."""
        self.is_closed = True
        if self._caller is not None:
            self._access.sign_out(self._caller)
        for work, _ in self._open.values():
            if work is not None:
                work.cancel()
        self._open.clear()


def _unsupported(error: UnknownRequest) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"request {error.id} is of a kind that release {quivermq.__version__}, which this broker "
        "runs, does not know: upgrade the broker"
    )
