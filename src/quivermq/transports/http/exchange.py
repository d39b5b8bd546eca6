"""One request and its answer, as the application (ASGI) sees them."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from starlette.types import Message

from quivermq.errors import BrokenInvariant


class AnswerWriter(Protocol):
    """The connection, as far as an exchange needs it."""

    def body_was_read(self) -> None: ...
    def let_continue(self) -> None: ...
    async def start_answer(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None: ...
    async def continue_answer(self, data: bytes) -> None: ...
    def end_answer(self) -> None: ...


class Exchange:
    """A request on its way in, and its answer on its way out."""

    def __init__(self, connection: AnswerWriter) -> None:
        self._connection = connection
        self._pieces: deque[bytes] = deque()
        self.unread_bytes = 0
        """Of the body, what the application has not taken."""
        self._is_body_complete = False
        self._is_body_given = False
        self._is_disconnected = False
        self._changed = asyncio.Event()
        self._start: Message | None = None
        self.is_started = False
        """The first byte of the answer is written."""
        self.is_finished = False
        """The last one is."""

    @property
    def status(self) -> int:
        """Of the answer; 0: there is none yet."""
        return int(self._start["status"]) if self._start is not None else 0

    # From the connection.

    @property
    def is_received(self) -> bool:
        """The request is complete."""
        return self._is_body_complete

    def add_body(self, data: bytes) -> None:
        """A piece of the body arrived."""
        self._pieces.append(data)
        self.unread_bytes += len(data)
        self._changed.set()

    def end_body(self) -> None:
        """The body is complete."""
        self._is_body_complete = True
        self._changed.set()

    def disconnect(self) -> None:
        """The client is gone, or is told no more."""
        self._is_disconnected = True
        self._changed.set()

    # From the application.

    async def receive(self) -> Message:
        """The next piece of the body; after the last one, waits until the client is gone."""
        if not (self._pieces or self._is_body_complete):
            self._connection.let_continue()
        while not (self._is_disconnected or self.is_finished):
            if self._pieces or (self._is_body_complete and not self._is_body_given):
                return self._next_piece()
            self._changed.clear()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    def _next_piece(self) -> Message:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self.unread_bytes = 0
        self._is_body_given = self._is_body_complete
        self._connection.body_was_read()
        return {"type": "http.request", "body": data, "more_body": not self._is_body_complete}

    async def send(self, message: Message) -> None:
        """A part of the answer; raises `ConnectionError` if the client is gone."""
        if self._is_disconnected:
            raise ConnectionResetError("the client is gone")
        if message["type"] == "http.response.start":
            # Written with the first piece of the body: until then it may become another answer.
            self._start = message
            return
        if self._start is None or self.is_finished:
            raise BrokenInvariant(f"{message['type']} at the wrong time")
        if not self.is_started:
            self.is_started = True
            headers = self._start.get("headers", ())
            await self._connection.start_answer(self._start["status"], headers)
        await self._connection.continue_answer(message.get("body", b""))
        if not message.get("more_body", False):
            self.is_finished = True
            self._changed.set()
            self._connection.end_answer()
