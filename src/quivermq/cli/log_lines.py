"""Formats a broker's log on standard error: one line an event, as text or as JSON.

Whatever a message holds, a line stays one line, a JSON line stays JSON, and no token gets into it.
"""

import json
import logging
import math
import re
import sys
from typing import Any, Final

from quivermq.log_context import current_work
from quivermq.moments import format_moment

_PLAIN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_SECRET: Final = re.compile(r"(?i)(\bqv_|\bbearer\s+)[A-Za-z0-9_\-.~+/=]{4,}")
"""Tokens of ours, and whatever else was sent as one."""
_DEPTH_MAX: Final = 5
"""Of values in values; deeper ones are written as text."""


def configure(level: str, style: str, node_id: int, worker: int = 0) -> None:
    """Send the log of `quivermq` and its libraries to standard error. With a number, each line
    names the worker: those of a machine share it."""
    handler = logging.StreamHandler(sys.stderr)
    lines = _JsonLines if style == "json" else _TextLines
    handler.setFormatter(lines(node_id, worker))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.getLogger("quivermq").setLevel(level.upper())


class _Lines(logging.Formatter):
    def __init__(self, node_id: int, worker: int = 0) -> None:
        super().__init__()
        self._common = {"node": node_id} | ({"worker": worker} if worker else {})

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of the event: the request it belongs to, the `extra` of the logging call."""
        found: dict[str, Any] = {**self._common}
        work = current_work()
        if work is not None:
            found["request"] = str(work.request_id)
            if work.connection:
                found["connection"] = work.connection
        extra = vars(record).items()
        return found | {name: value for name, value in extra if name not in _PLAIN_ATTRIBUTES}

    def trace(self, record: logging.LogRecord) -> str:
        """The traceback, or the stack that was asked for; "" if there is none."""
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        parts += [record.stack_info] if record.stack_info else []
        return "\n".join(parts)


class _TextLines(_Lines):
    """`2025-01-31T12:00:00.123Z INFO node.peers: peer 2 is back node=1 peer=2`."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("quivermq.")
        fields = " ".join(f"{name}={_word(value)}" for name, value in self.fields(record).items())
        line = f"{_time(record)} {record.levelname} {name}: {_one_line(_message(record))} {fields}"
        trace = self.trace(record)
        return "\n".join([line, *map(_one_line, trace.splitlines())])


class _JsonLines(_Lines):
    """The same as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        trace = self.trace(record)
        if trace:
            line["exception"] = trace
        for name, value in self.fields(record).items():
            line[f"{name}_" if name in line else name] = value
        return json.dumps(_plain(line), allow_nan=False)


def _time(record: logging.LogRecord) -> str:
    return format_moment(int(record.created * 1000))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:
        # A call with wrong arguments must not cost the line.
        return f"{record.msg!r} {record.args!r}"


def _without_secrets(text: str) -> str:
    return _SECRET.sub(r"\1***", text)


def _one_line(text: str) -> str:
    """Without what would end the line, or move and colour a terminal."""
    text = _without_secrets(text)
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _word(value: Any) -> str:
    text = _one_line(_text(value))
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _plain(value: Any, depth: int = 0) -> Any:
    """As JSON can say it: no surrogates, which some parsers refuse, and no NaN."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict) and depth < _DEPTH_MAX:
        return {_plain(_text(name)): _plain(each, depth + 1) for name, each in value.items()}
    if isinstance(value, list | tuple) and depth < _DEPTH_MAX:
        return [_plain(each, depth + 1) for each in value]
    return _without_secrets(_text(value)).encode("utf-8", "replace").decode()
