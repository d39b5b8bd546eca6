"""One client's conversation with a broker, whatever carries its bytes.

Hello first, then requests, many at once, answered in the order in which they are done. Everything
is bounded: open requests, their bytes, unread answers, the size of a packet, how long silence may
last.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import quivermq
from quivermq.batches import Buffer, Frame, Limits
from quivermq.errors import (
    InvalidRequest,
    Overloaded,
    QuiverError,
    TooLarge,
    Unauthenticated,
    UnsupportedFormat,
)
from quivermq.node import Service
from quivermq.transports.backlog import Backlog
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
        settings: SessionSettings,
        cluster_id: Callable[[], str],
        write: Callable[[list[Buffer]], None],
        unread: Callable[[], int],
        now: float,
    ) -> None:
        self.receiver = Receiver(HELLO_BYTES_MAX)
        self.backlog = Backlog(settings.unread_bytes_max, unread)
        self.client = ""
        self.is_closed = False
        self._service = service
        self.settings = settings
        self._cluster_id = cluster_id
        self._write = write
        self._began_at = self._heard_at = now
        # By id: what may be cancelled, and the bytes that it holds.
        self._open: dict[int, tuple[asyncio.Task[None] | None, int]] = {}
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
        elif not self.client:
            self._end(request.id, InvalidRequest("the first request must be hello"))
        elif body == "cancel":
            self._cancel(request.cancel.id)
        elif body == "ping":
            self._send(proto.Response(id=request.id, done=proto.Done()), ())
        else:
            self._begin(request, found)

    def _greet(self, request: proto.Request) -> None:
        hello, settings = request.hello, self.settings
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
        if hello.token:
            # A token that is not checked would look like protection.
            self._end(
                request.id,
                Unauthenticated(
                    "this broker has no users, and cannot check a token: connect without one, and "
                    "let only those reach its ports who may use it"
                ),
            )
        self.receiver.allow(settings.packet_bytes_max)
        self.client = hello.client[:200] or "unnamed"
        welcome = proto.Welcome(
            protocol=protocol,
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
        room = partial(self.backlog.room, number)
        task = self._service.submit(request, frames, self._reply, room)
        if task is not None and number in self._open:
            self._open[number] = (task, size)

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
        task, _ = self._open.get(number, (None, 0))
        if task is not None:
            task.cancel()
            self._close_request(number)
            self.backlog.settle(number)

    def _send(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        if self.is_closed:
            return
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
        for task, _ in self._open.values():
            if task is not None:
                task.cancel()
        self._open.clear()


def _unsupported(error: UnknownRequest) -> UnsupportedFormat:
    return UnsupportedFormat(
        f"request {error.id} is of a kind that release {quivermq.__version__}, which this broker "
        "runs, does not know: upgrade the broker"
    )
