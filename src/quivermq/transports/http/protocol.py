"""One HTTP connection, with limits for clients that are slow or mean ill.

uvicorn's own protocol waits for ever for a request to end and for an answer to be taken, and holds
headers of any size. A broker shares its loop and its memory with it.
"""

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from quivermq.errors import InvalidRequest, Overloaded, QuiverError, TooLarge
from quivermq.node import Accepted, address_of
from quivermq.transports.http.statuses import error_answer
from quivermq.wire import error_to_proto

KEEP_ALIVE_S: Final = 10


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of an HTTP client."""

    connections_max: int
    body_bytes_max: int
    timeout_s: float
    """From a request's first byte to its last, or from connecting to the end of the first; and how
    long an answer may wait to be taken."""
    head_bytes_max: int = 16 << 10


class BoundedConfig(uvicorn.Config):
    """uvicorn's settings, for a loop and a process that are not its own, and these limits."""

    def __init__(self, app: FastAPI, limits: HttpLimits) -> None:
        super().__init__(
            app,
            http=BoundedProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self.limits = limits
        self.accepted: Accepted[BoundedProtocol] = Accepted(limits.connections_max)


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends when it costs too much."""

    _head_bytes = 0
    _body_bytes = 0
    _is_in_head = True
    _refusal: tuple[int, QuiverError] | None = None
    _request_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    @property
    def _limits(self) -> HttpLimits:
        config: BoundedConfig = self.config  # type: ignore[assignment]
        return config.limits

    @property
    def _accepted(self) -> "Accepted[BoundedProtocol]":
        config: BoundedConfig = self.config  # type: ignore[assignment]
        return config.accepted

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        address = address_of(transport)
        objection = self._accepted.objection(address)
        self._accepted.enter(self, address)
        if objection:
            self._refuse(503, Overloaded(f"HTTP clients: {objection}"))
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request_timer()
        self._end_answer_timer()
        self._accepted.leave(self)
        super().connection_lost(exc)

    # Requests.

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._request_timer is None:
            self._await_request()
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        most = self._limits.head_bytes_max
        if self._is_in_head and self._head_bytes > most:
            self._refusal = 431, TooLarge(f"headers above {most:,} bytes: send fewer")
        if self._refusal is not None:
            self._refuse(*self._refusal)

    def on_headers_complete(self) -> None:
        # Raises for an address that is none; then there is no request yet that can be answered.
        super().on_headers_complete()
        self._is_in_head = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        most = self._limits.body_bytes_max
        if self._body_bytes > most:
            self._refusal = 413, TooLarge(f"a body above {most:,} bytes: send less at once")
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refusal is not None:
            return
        self._is_in_head = True
        self._head_bytes = self._body_bytes = 0
        self._end_request_timer()
        super().on_message_complete()

    def _await_request(self) -> None:
        self._request_timer = self.loop.call_later(self._limits.timeout_s, self._request_is_late)

    def _request_is_late(self) -> None:
        limit_s = self._limits.timeout_s
        self._refuse(408, InvalidRequest(f"the request was not complete within {limit_s:g} s"))

    def _end_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    # Answers.

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self._limits.timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_answer_timer()
        super().resume_writing()

    def _end_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def timeout_keep_alive_handler(self) -> None:
        # Closing would wait for a client that takes nothing.
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, InvalidRequest(msg))

    @property
    def _may_speak(self) -> bool:
        if self._is_in_head:
            return self.cycle is None or self.cycle.response_complete
        # In the pipeline are requests that wait for the answers to earlier ones.
        return not self.pipeline and not self.cycle.response_started

    def _refuse(self, status: int, error: QuiverError) -> None:
        """Say why, unless that would get into another answer, and close."""
        self._end_request_timer()
        if self.transport.is_closing():
            return
        if self._may_speak:
            body = error_answer(error_to_proto(error)).model_dump_json().encode()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                "content-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
