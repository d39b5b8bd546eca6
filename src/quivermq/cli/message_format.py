"""Formats for messages in the manner of `kcat -f`: letters behind % name parts of a message."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quivermq.cli.errors import UsageError
from quivermq.cli.output import printable
from quivermq.moments import format_written

if TYPE_CHECKING:
    from quivermq.cli.message_lines import AnyMessage

    Piece = Callable[[AnyMessage], bytes]

_ABSENT: Final = -1
"""The length of a key that is not there, as kcat writes it."""
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN: Final = re.compile(r"%(.?)|\\(x[0-9a-fA-F]{2}|.?)|([^%\\]+)", re.DOTALL)


class MessageFormat:
    """A format, read once. `for_terminal`: without the control characters of users' bytes."""

    def __init__(self, text: str, *, for_terminal: bool) -> None:
        self._for_terminal = for_terminal
        self._pieces = [self._piece(token) for token in _TOKEN.finditer(text)]

    def write(self, message: "AnyMessage") -> bytes:
        """The message in this format; nothing is added at the end."""
        return b"".join(piece(message) for piece in self._pieces)

    def _piece(self, token: "re.Match[str]") -> "Piece":
        letter, escape, literal = token.groups()
        if literal is not None:
            return _constant(literal.encode("utf-8", "surrogateescape"))
        if escape is not None:
            return _constant(_escaped(escape))
        if letter == "%":
            return _constant(b"%")
        if letter in _NUMBERS:
            number = _NUMBERS[letter]
            return lambda message: str(number(message)).encode()
        if letter in _DATA:
            data = _DATA[letter]
            if self._for_terminal:
                return lambda message: printable(data(message)).encode()
            return data
        if letter == "R":
            return lambda message: len(message.value).to_bytes(4, "big")
        known = " ".join(f"%{each}" for each in LETTERS)
        asked = f"%{letter} is not a part of a message" if letter else "there is no letter behind %"
        raise UsageError(f"--format: {asked}; there are {known} and %% for a percent sign")


def _escaped(escape: str) -> bytes:
    if len(escape) == 3:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise UsageError(
            f"--format: \\{escape} is not a character; there are \\n \\t \\r \\0 \\x41 and \\\\"
        )
    return _ESCAPES[escape]


def _constant(data: bytes) -> "Piece":
    return lambda _: data


def _headers(message: "AnyMessage") -> bytes:
    return b",".join(name.encode() + b"=" + value for name, value in message.headers.items())


def _moment(message: "AnyMessage") -> str:
    return format_written(str(message.timestamp))


_NUMBERS: Final["dict[str, Callable[[AnyMessage], int | str]]"] = {
    "p": lambda message: message.partition,
    "o": lambda message: message.offset,
    "S": lambda message: len(message.value),
    "K": lambda message: _ABSENT if message.key is None else len(message.key),
    "T": lambda message: message.timestamp,
    "D": _moment,
    "P": lambda message: message.priority,
    "d": lambda message: getattr(message, "delivery_count", 0),
}
_DATA: Final["dict[str, Piece]"] = {
    "s": lambda message: message.value,
    "k": lambda message: message.key or b"",
    "h": _headers,
    "t": lambda message: message.topic.encode(),
    "c": lambda message: (message.content_type or "").encode(),
}
LETTERS: Final = "tpoksSKRThDPdc"
