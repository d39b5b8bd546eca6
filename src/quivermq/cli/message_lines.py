"""Writes messages to standard output: the value alone, with details, as JSON, or in a format."""

import base64
import json
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

from quivermq.cli.message_format import MessageFormat
from quivermq.cli.output import printable, stdout_console

if TYPE_CHECKING:
    from quivermq.client import AsyncLeasedMessage, DeadLetter, LeasedMessage, Message

    AnyMessage = Message | LeasedMessage | AsyncLeasedMessage


class MessageLines:
    """Writes one line a message, or what `form` says of it. `details` None: on a terminal only."""

    def __init__(
        self,
        *,
        as_json: bool,
        details: bool | None,
        with_topics: bool = False,
        form: str | None = None,
    ) -> None:
        console = stdout_console()
        self._out = sys.stdout.buffer
        self._as_json = as_json
        self._with_topics = with_topics
        self._details = console.is_terminal if details is None else details
        self._is_terminal = console.is_terminal
        self._form = MessageFormat(form, for_terminal=console.is_terminal) if form else None
        has_colour = console.is_terminal and not console.no_color
        self._dim, self._plain = ("\x1b[2m", "\x1b[0m") if has_colour else ("", "")

    def write(self, message: "AnyMessage", label: str = "") -> None:
        """Write one message, after `label` if there is one."""
        if self._form is not None:
            self._out.write(self._form.write(message))
        else:
            self._out.write(label.encode() + self._line(message) + b"\n")

    def flush(self) -> None:
        self._out.flush()

    def _line(self, message: "AnyMessage") -> bytes:
        if self._as_json:
            return json.dumps(message_dict(message)).encode()
        if self._details:
            return self._detailed(message).encode()
        # A terminal gets text without control characters; a pipe gets the bytes.
        return printable(message.value).encode() if self._is_terminal else message.value

    def _detailed(self, message: "AnyMessage") -> str:
        moment = datetime.fromtimestamp(message.timestamp / 1000).astimezone()
        place = f"{message.partition}/{message.offset}"
        place = f"{message.topic}/{place}" if self._with_topics else place
        parts = [place, f"{moment:%Y-%m-%d %H:%M:%S}"]
        if message.key is not None:
            parts.append(f"key={printable(message.key)}")
        parts.extend(
            f"{printable(name.encode())}={printable(value)}"
            for name, value in message.headers.items()
        )
        if message.priority:
            parts.append(f"priority={message.priority}")
        if _deliveries(message) > 1:
            parts.append(f"delivery={_deliveries(message)}")
        return f"{self._dim}{'  '.join(parts)}{self._plain}  {printable(message.value)}"


def message_dict(message: "AnyMessage") -> dict[str, Any]:
    """The message for JSON."""
    made: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "priority": message.priority,
        **content_dict(message),
    }
    if _deliveries(message):
        made["delivery_count"] = _deliveries(message)
    return made


def content_dict(message: "AnyMessage | DeadLetter") -> dict[str, Any]:
    """Key, value and headers as text if all of them are UTF-8, else as base64; see `encoding`."""
    key, value, headers = message.key, message.value, message.headers
    is_text = all(_is_utf8(part) for part in (value, key or b"", *headers.values()))
    text = _utf8 if is_text else _base64
    return {
        "key": None if key is None else text(key),
        "value": text(value),
        "headers": {name: text(header) for name, header in headers.items()},
        "encoding": "utf8" if is_text else "base64",
        "content_type": message.content_type,
    }


def _deliveries(message: "AnyMessage") -> int:
    """How often it was delivered to the group; 0: it was read without one."""
    return getattr(message, "delivery_count", 0)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _utf8(data: bytes) -> str:
    return data.decode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
