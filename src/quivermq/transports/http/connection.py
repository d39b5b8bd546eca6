"""One HTTP/1.1 connection: parsed by h11, with limits for clients that are slow or mean ill.

h11 does no I/O: it says what arrived and how an answer is written. Everything that costs a broker
memory or time is decided here: how large a head and a body may be, how long a request may take to
arrive and an answer to be taken. The broker shares its loop and its memory with its clients.

    data_received -> h11 -> Exchange -> the application -> Exchange -> h11 -> transport
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import h11
from starlette.types import ASGIApp, Scope

from quivermq.errors import InvalidRequest, Overloaded, QuiverError, TooLarge
from quivermq.log_context import choose_request_id, new_connection, working_on
from quivermq.node import Accepted, DoorTraffic, address_of
from quivermq.transports.http.exchange import Exchange
from quivermq.transports.http.statuses import REFUSED, error_answer
from quivermq.wire import error_to_proto

logger = logging.getLogger("quivermq.http")

KEEP_ALIVE_S: Final = 10.0
_LINGER_S: Final = 1.0
_UNWRITTEN_BYTES_MAX: Final = 64 << 10
"""Past this, the application waits until the client takes some."""
_PIPELINED_BYTES_MAX: Final = 64 << 10
"""Bytes of later requests that are held while one is answered."""
_UNREAD_BYTES_MAX: Final = 256 << 10
"""Past this, the client is not listened to until the application has read some of the body."""

Headers = list[tuple[bytes, bytes]]
REQUEST_ID: Final = b"x-request-id"


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an HTTP client."""

    connections_max: int
    body_bytes_max: int
    timeout_s: float
    """From a request's first byte to its last, or from connecting to the end of the first; and how
    long an answer may wait to be taken."""
    head_bytes_max: int = 16 << 10


class _Refusal(Exception):
    """The connection ends with this answer."""

    def __init__(self, status: int, error: QuiverError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


@dataclass(slots=True, eq=False)
class HttpServing:
    """The objects that all connections of a listener share."""

    app: ASGIApp
    limits: HttpLimits
    accepted: "Accepted[HttpConnection]"
    connections: dict["HttpConnection", None] = field(default_factory=dict)
    passed: DoorTraffic = field(default_factory=DoorTraffic)
    is_closing: bool = False


class HttpConnection(asyncio.Protocol):
    """A client; its requests are answered one after the other."""

    def __init__(self, serving: HttpServing) -> None:
        self._serving = serving
        self._limits = serving.limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = h11.Connection(
            h11.SERVER, max_incomplete_event_size=self._limits.head_bytes_max
        )
        self._exchange: Exchange | None = None
        self.task: asyncio.Task[None] | None = None
        """Runs the application for the request that is being answered."""
        self._name = new_connection("http")
        self._request_id = ""
        """Of the request that is being answered."""
        self._body_bytes = 0
        self._is_head = False
        self._is_refused = False
        self._is_last = False
        """Nothing more is read behind the request that is being answered."""
        self._is_reading = True
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._request_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    # The life of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports are known to be what they are.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_UNWRITTEN_BYTES_MAX)
        address = address_of(self._transport)
        objection = self._serving.accepted.objection(address)
        self._serving.accepted.enter(self, address)
        self._serving.connections[self] = None
        if self._serving.is_closing:
            # It was accepted before the listener was closed, and is made only now.
            self.abort()
        elif objection:
            self._refuse(_Refusal(503, Overloaded(f"HTTP clients: {objection}")))
        else:
            self._begin_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        for timer in (self._request_timer, self._idle_timer, self._answer_timer):
            if timer is not None:
                timer.cancel()
        self._serving.accepted.leave(self)
        self._serving.connections.pop(self, None)
        self._may_write.set()
        if self._exchange is not None:
            self._exchange.disconnect()

    def eof_received(self) -> bool:
        """False: a client that says no more takes no answer either."""
        return False

    @property
    def is_write_paused(self) -> bool:
        """The client leaves answers untaken."""
        return not self._may_write.is_set()

    @property
    def unwritten_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def finish(self) -> None:
        """The listener closes: end once the request that is being answered is."""
        if self._exchange is None or self._exchange.is_finished:
            self._close()

    def abort(self) -> None:
        self._transport.abort()

    def _close(self) -> None:
        """Close once everything is taken, or after as long as an answer may take."""
        if not self._transport.is_closing():
            self._transport.close()
        if self._answer_timer is None:
            self._answer_timer = self._loop.call_later(self._limits.timeout_s, self.abort)

    # Requests.

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing() or self._is_refused or self._is_last:
            return
        self._parser.receive_data(data)
        if self._exchange is None:
            self._begin_request_timer()
        self._advance()

    def _advance(self) -> None:
        """Take everything from the parser that can be used now."""
        try:
            while not (self._transport.is_closing() or self._is_refused):
                event = self._parser.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    break
                if isinstance(event, h11.Request):
                    self._begin(event)
                elif isinstance(event, h11.Data):
                    self._take_body(bytes(event.data))
                elif isinstance(event, h11.EndOfMessage):
                    self._end_of_request()
                else:
                    break
        except h11.RemoteProtocolError as error:
            if self._exchange is not None and self._exchange.is_received:
                # Behind the last request of the connection, which is answered all the same.
                self._is_last = True
                return
            status = error.error_status_hint
            kind = TooLarge if status == 431 else InvalidRequest
            self._refuse(_Refusal(status, kind(f"this is not HTTP/1.1 as it should be: {error}")))
        except _Refusal as refusal:
            self._refuse(refusal)
        self._listen_or_not()

    def _begin(self, event: h11.Request) -> None:
        headers: Headers = list(event.headers)
        self._request_id = _request_id_of(headers)
        head_bytes = len(event.target) + sum(len(name) + len(value) for name, value in headers)
        if head_bytes > self._limits.head_bytes_max:
            most = self._limits.head_bytes_max
            raise _Refusal(431, TooLarge(f"headers above {most:,} bytes: send fewer"))
        _check_framing(event, headers)
        scope = _scope(event, headers, self._transport)
        self._serving.passed.requests += 1
        self._body_bytes = 0
        self._is_head = event.method == b"HEAD"
        self._exchange = exchange = Exchange(self)
        self.task = self._loop.create_task(self._answer(exchange, scope), name="http request")

    def _take_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        most = self._limits.body_bytes_max
        if self._body_bytes > most:
            raise _Refusal(413, TooLarge(f"a body above {most:,} bytes: send less at once"))
        if self._exchange is not None and not self._exchange.is_finished:
            self._exchange.add_body(data)

    def _end_of_request(self) -> None:
        self._end_request_timer()
        if self._exchange is not None:
            self._exchange.end_body()
            if self._exchange.is_finished:
                self._next_request()

    def _begin_request_timer(self) -> None:
        """From the first byte to the last: one at a time would last for ever."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if self._request_timer is None:
            limit_s = self._limits.timeout_s
            self._request_timer = self._loop.call_later(limit_s, self._request_is_late)

    def _request_is_late(self) -> None:
        limit_s = self._limits.timeout_s
        error = InvalidRequest(f"the request was not complete within {limit_s:g} s")
        self._refuse(_Refusal(408, error))

    def _end_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _listen_or_not(self) -> None:
        """Listen only while there is room for what may come. A client that waits for an answer is
        listened to, or it would not be noticed that it is gone."""
        if self._transport.is_closing() or self._is_refused:
            return
        waiting, _ = self._parser.trailing_data
        unread = 0 if self._exchange is None else self._exchange.unread_bytes
        is_full = len(waiting) > _PIPELINED_BYTES_MAX or unread > _UNREAD_BYTES_MAX
        if is_full == self._is_reading:
            self._is_reading = not is_full
            if is_full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # Answers.

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        began = self._loop.time()
        with working_on(self._request_id, self._name):
            try:
                await self._serving.app(scope, exchange.receive, exchange.send)
            except ConnectionError:
                # The client is gone: there is nobody to tell.
                logger.debug("a client did not wait for its answer")
            except Exception:
                # The application has answered what it can, and logged it.
                logger.debug("a request failed", exc_info=True)
            finally:
                if REFUSED in scope["state"]:
                    self._serving.passed.refused[scope["state"][REFUSED]] += 1
                if logger.isEnabledFor(logging.DEBUG):
                    _log_answer(scope, exchange.status, self._loop.time() - began)
                if not (exchange.is_finished or self._is_refused):
                    self._transport.abort()

    def body_was_read(self) -> None:
        """The application has taken what there was of the body."""
        self._listen_or_not()

    def let_continue(self) -> None:
        """The application wants the body: a client that asked whether to send it is told so."""
        if self._parser.they_are_waiting_for_100_continue and not self._transport.is_closing():
            self._write(h11.InformationalResponse(status_code=100, headers=[]))

    async def start_answer(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        said = [*headers, (REQUEST_ID, self._request_id.encode())]
        if self._serving.is_closing:
            said.append((b"connection", b"close"))
        self._write(h11.Response(status_code=status, headers=said))

    async def continue_answer(self, data: bytes) -> None:
        if data and not self._is_head:
            self._write(h11.Data(data=data))
        if not self._may_write.is_set():
            await self._may_write.wait()

    def end_answer(self) -> None:
        self._write(h11.EndOfMessage())
        if self._parser.our_state is h11.MUST_CLOSE or self._serving.is_closing or self._is_last:
            self._close()
        elif self._parser.their_state is h11.DONE:
            # Not within the application's call: it may have more to do.
            self._loop.call_soon(self._next_request)

    def _write(self, event: h11.Event) -> None:
        if self._transport.is_closing() or self._is_refused:
            raise ConnectionResetError("the client is gone")
        data = self._parser.send(event)
        if data:
            self._transport.write(data)

    def _next_request(self) -> None:
        if self._transport.is_closing() or self._parser.our_state is not h11.DONE:
            return
        self._parser.start_next_cycle()
        self._exchange = None
        self._request_id = ""
        if self._parser.trailing_data[0]:
            self._begin_request_timer()
            self._advance()
        else:
            self._idle_timer = self._loop.call_later(KEEP_ALIVE_S, self._close)
            self._listen_or_not()

    def pause_writing(self) -> None:
        self._may_write.clear()
        if self._answer_timer is None:
            self._answer_timer = self._loop.call_later(self._limits.timeout_s, self.abort)

    def resume_writing(self) -> None:
        if self._answer_timer is not None and not self._transport.is_closing():
            self._answer_timer.cancel()
            self._answer_timer = None
        self._may_write.set()

    def _refuse(self, refusal: _Refusal) -> None:
        """Say why, unless that would get into another answer, and close."""
        self._end_request_timer()
        if self._transport.is_closing() or self._is_refused:
            return
        self._is_refused = True
        self._serving.passed.refused[refusal.error.code] += 1
        if self._exchange is None or not (self._exchange.is_started or self._exchange.is_finished):
            request_id = self._request_id or choose_request_id("")
            self._transport.write(refusal_of(refusal.status, refusal.error, request_id))
        if self._exchange is not None:
            self._exchange.disconnect()
        self._close_once_heard()

    def _close_once_heard(self) -> None:
        """Close, but not before a client that is still sending has had time to hear why: the system
        throws away what was written if it closes while there is something to read."""
        if self._exchange is None or not self._transport.can_write_eof():
            self._close()
            return
        self._transport.write_eof()
        if not self._is_reading:
            self._transport.resume_reading()
        self._idle_timer = self._loop.call_later(_LINGER_S, self._close)


def refusal_of(status: int, error: QuiverError, request_id: str) -> bytes:
    """An answer after which the connection is closed, as it is written."""
    body = error_answer(error_to_proto(error), request_id).model_dump_json().encode()
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        "content-type: application/json\r\nconnection: close\r\n"
        f"{REQUEST_ID.decode()}: {request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _request_id_of(headers: Headers) -> str:
    given = next((value for name, value in headers if name == REQUEST_ID), b"")
    return choose_request_id(given.decode("latin-1"))


def _log_answer(scope: Scope, status: int, seconds: float) -> None:
    """Without the query, which is the client's business."""
    what, path = scope["method"], scope["path"]
    logger.debug("%s %s was answered %d in %.1f ms", what, path, status, seconds * 1000)


def _check_framing(event: h11.Request, headers: Headers) -> None:
    """Refuse requests that two servers may take for two different ones (request smuggling)."""
    names = [name for name, _ in headers]
    if b"transfer-encoding" in names:
        if b"content-length" in names or event.http_version < b"1.1":
            problem = "send either content-length, or with HTTP/1.1 transfer-encoding: chunked"
            raise _Refusal(400, InvalidRequest(problem))
        if names.count(b"transfer-encoding") > 1:
            raise _Refusal(400, InvalidRequest("send transfer-encoding once"))
    if names.count(b"host") > 1:
        raise _Refusal(400, InvalidRequest("send host once"))


def _scope(event: h11.Request, headers: Headers, transport: asyncio.Transport) -> Scope:
    """The request as ASGI describes it; refuses targets that are no path."""
    target = event.target.decode("ascii")
    if not target.startswith("/"):
        target = _path_of(target)
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": event.http_version.decode("ascii"),
        "method": event.method.decode("ascii"),
        "scheme": "http" if transport.get_extra_info("sslcontext") is None else "https",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": headers,
        "client": transport.get_extra_info("peername"),
        "server": transport.get_extra_info("sockname"),
        "state": {},
    }


def _path_of(target: str) -> str:
    """The path of a target that names a server too."""
    try:
        parts = urlsplit(target)
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in {"http", "https"}:
        problem = f"{target[:100]!r} is not a path: ask for one, as /docs"
        raise _Refusal(400, InvalidRequest(problem))
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path
