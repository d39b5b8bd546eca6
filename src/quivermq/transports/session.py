"""One client's conversation with a broker, whatever carries its bytes.

Hello first, then requests, many at once, answered in the order in which they are done. Everything
is bounded: open requests, their bytes, the size of a packet, how long silence may last.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import quivermq
from quivermq.batches import Buffer, Frame, Limits
from quivermq.errors import InvalidRequest, Overloaded, QuiverError, UnsupportedFormat
from quivermq.node.service import Service
from quivermq.wire import (
    PROTOCOL,
    Packet,
    Receiver,
    error_to_proto,
    frames_of,
    packet,
    parse_request,
    proto,
)

logger = logging.getLogger("quivermq.session")

FEATURES: Final = ("produce", "fetch", "offsets", "cluster")
_ENVELOPE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The limits of a connection."""

    node_id: int
    limits: Limits
    requests_max: int
    request_bytes_max: int
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
        now: float,
    ) -> None:
        self.receiver = Receiver(settings.packet_bytes_max)
        self.client = ""
        self.heard_at = now
        self._service = service
        self._settings = settings
        self._cluster_id = cluster_id
        self._write = write
        # By id: what may be cancelled, and the bytes that it holds.
        self._open: dict[int, tuple[asyncio.Task[None] | None, int]] = {}
        self._open_bytes = 0
        self.is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether no more should be read before something is answered."""
        return (
            len(self._open) >= self._settings.requests_max
            or self._open_bytes > self._settings.request_bytes_max
        )

    def is_overdue(self, now: float) -> bool:
        """Whether it said nothing for too long."""
        settings = self._settings
        limit = settings.idle_timeout_s if self.client else settings.hello_timeout_s
        return not self._open and now - self.heard_at > limit

    def received(self, count: int, now: float) -> None:
        """Bytes arrived in the receiver. Raises for what ends the conversation."""
        packets = self.receiver.received(count)
        if packets:
            # Whole ones: who sends a byte now and then says nothing.
            self.heard_at = now
        for found in packets:
            self._take(found)

    def _take(self, found: Packet) -> None:
        request = parse_request(found.envelope)
        body = request.WhichOneof("body")
        if not self.client:
            if body != "hello":
                raise InvalidRequest("the first request must be hello")
            self._greet(request)
        elif body == "cancel":
            self._cancel(request.cancel.id)
        elif body == "ping":
            self._send(proto.Response(id=request.id, done=proto.Done()), ())
        elif body == "hello":
            self._greet(request)
        else:
            self._begin(request, found)

    def _greet(self, request: proto.Request) -> None:
        hello, settings = request.hello, self._settings
        if hello.protocol != PROTOCOL:
            raise UnsupportedFormat(
                f"the client speaks protocol {hello.protocol}, this broker {PROTOCOL}: "
                "use releases that fit together"
            )
        self.client = hello.client[:200] or "unnamed"
        welcome = proto.Welcome(
            protocol=PROTOCOL,
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
        if request.id in self._open:
            raise InvalidRequest(f"request id {request.id} is in use")
        size = len(found.batches)
        try:
            if self.is_full:
                raise Overloaded(
                    f"{len(self._open)} requests are open on this connection; wait for answers"
                )
            frames = frames_of(found, self._settings.limits) if size else []
        except QuiverError as error:
            self._send(proto.Response(id=request.id, error=error_to_proto(error)), ())
            return
        self._open[request.id] = (None, size)
        self._open_bytes += size
        task = self._service.submit(request, frames, self._reply)
        if task is not None and request.id in self._open:
            self._open[request.id] = (task, size)

    def _reply(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        if self._close_request(response.id):
            self._send(response, frames)

    def _close_request(self, number: int) -> bool:
        _, size = self._open.pop(number, (None, -1))
        self._open_bytes -= max(size, 0)
        return size >= 0 and not self.is_closed

    def _cancel(self, number: int) -> None:
        task, _ = self._open.get(number, (None, 0))
        if task is not None:
            task.cancel()
            self._close_request(number)

    def _send(self, response: proto.Response, frames: Sequence[Frame]) -> None:
        if not self.is_closed:
            self._write(packet(response.SerializeToString(), frames))

    def refuse(self, error: QuiverError) -> None:
        """A last word before the connection is closed."""
        self._send(proto.Response(error=error_to_proto(error)), ())

    def close(self) -> None:
        """Nobody waits for answers any more."""
        self.is_closed = True
        for task, _ in self._open.values():
            if task is not None:
                task.cancel()
        self._open.clear()
