"""Messages as handlers of FastStream get them, and how deliveries become them."""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from quivermq.client import AsyncLeasedMessage, failed_terms

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
"""Headers by which FastStream's own fields travel."""

Delay = float | None


class QuiverMessage(StreamMessage[AsyncLeasedMessage]):
    """A delivery to a group, settled once; settling it again does nothing."""

    async def ack(self) -> None:
        """Acknowledge it: the group never gets it again. Durable when this returns."""
        if self.committed is None:
            await self.raw_message.ack()
            await super().ack()

    async def nack(self, delay: Delay = None, reason: str | None = None) -> None:
        """Have it delivered again after `delay` seconds; None: after the topic's backoff.

        The reason is kept with it: by default, what the handler raised.
        """
        if self.committed is None:
            await self.raw_message.nack(delay, reason or handler_error())
            await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Put it among the dead letters at once."""
        if self.committed is None:
            await self.raw_message.reject(reason or handler_error() or "")
            await super().reject()


class QuiverBatchMessage(StreamMessage[Sequence[AsyncLeasedMessage]]):
    """Deliveries that a handler gets as one list, settled together."""

    async def ack(self) -> None:
        """Acknowledge all of them."""
        if self.committed is None:
            # Settlements of the same moment travel together.
            await asyncio.gather(*(each.ack() for each in self.raw_message))
            await super().ack()

    async def nack(self, delay: Delay = None, reason: str | None = None) -> None:
        """Have all of them delivered again."""
        if self.committed is None:
            why = reason or handler_error()
            await asyncio.gather(*(each.nack(delay, why) for each in self.raw_message))
            await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Put all of them among the dead letters."""
        if self.committed is None:
            why = reason or handler_error() or ""
            await asyncio.gather(*(each.reject(why) for each in self.raw_message))
            await super().reject()


class QuiverParser:
    """Turns one delivery into a message of FastStream, and its bytes into an object."""

    async def parse_message(self, raw: AsyncLeasedMessage) -> QuiverMessage:
        headers = text_headers(raw.headers)
        return QuiverMessage(
            raw_message=raw,
            body=raw.value,
            headers=headers,
            content_type=headers.get(CONTENT_TYPE),
            reply_to=headers.get(REPLY_TO, ""),
            correlation_id=headers.get(CORRELATION_ID),
            message_id=message_id(raw),
        )

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """JSON, text or bytes, by the content type; without one, JSON if it is that."""
        return decode_message(message)


class QuiverBatchParser(QuiverParser):
    """Turns a list of deliveries into one message of FastStream."""

    async def parse_batch(self, raw: Sequence[AsyncLeasedMessage]) -> QuiverBatchMessage:
        headers = [text_headers(each.headers) for each in raw]
        return QuiverBatchMessage(
            raw_message=raw,
            body=[each.value for each in raw],
            headers=headers[0],
            batch_headers=headers,
            content_type=headers[0].get(CONTENT_TYPE),
            reply_to=headers[0].get(REPLY_TO, ""),
            correlation_id=headers[0].get(CORRELATION_ID),
            message_id=message_id(raw[0]),
        )

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """Each message by its own content type."""
        return [decode_message(await self.parse_message(each)) for each in message.raw_message]


def handler_error() -> str | None:
    """The exception that is handled where a message is settled: FastStream settles while the
    exception of a handler passes by, and does not hand it on."""
    error = sys.exception()
    if error is None or isinstance(error, HandlerException):
        return None
    return failed_terms(error).reason


def message_id(raw: AsyncLeasedMessage) -> str:
    """The place where it is stored, which no other message has."""
    return f"{raw.topic}-{raw.partition}-{raw.offset}"


def text_headers(headers: Mapping[str, bytes]) -> dict[str, Any]:
    """FastStream's headers are text; those that are not UTF-8 stay bytes."""
    return {name: _text(value) for name, value in headers.items()}


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
