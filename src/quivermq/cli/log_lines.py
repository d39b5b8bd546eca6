"""Formats a broker's log on standard error: one line an event, as text or as JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

_PLAIN_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(level: str, style: str, node_id: int) -> None:
    """Send the log of `quivermq` and its libraries to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(node_id) if style == "json" else _TextLines(node_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("quivermq").setLevel(level.upper())


class _Lines(logging.Formatter):
    def __init__(self, node_id: int) -> None:
        super().__init__()
        self._node_id = node_id

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of the event: the `extra` of the logging call."""
        return {
            "node": self._node_id,
            **{
                name: value for name, value in vars(record).items() if name not in _PLAIN_ATTRIBUTES
            },
        }


class _TextLines(_Lines):
    """`2025-01-31T12:00:00.123Z INFO node.peers: peer 2 is back node=1 peer=2`."""

    def format(self, record: logging.LogRecord) -> str:
        name = record.name.removeprefix("quivermq.")
        fields = " ".join(f"{name}={_word(value)}" for name, value in self.fields(record).items())
        line = (
            f"{_time(record)} {record.levelname} {name}: {_one_line(record.getMessage())} {fields}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonLines(_Lines):
    """The same as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


def _word(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c in ' "=\n' for c in text) else text
