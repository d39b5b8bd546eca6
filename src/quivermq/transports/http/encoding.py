"""Bytes in JSON: as UTF-8 text where they are such, else as base64. Every byte survives."""

from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Literal

from quivermq.errors import InvalidRequest

Encoding = Literal["utf8", "base64"]


def to_bytes(name: str, text: str, encoding: Encoding) -> bytes:
    """The bytes that a client sent as text; `name` is for the error."""
    if encoding == "utf8":
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{name} is no text that UTF-8 can hold") from error
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError) as error:
        raise InvalidRequest(f"{name} is not base64: {error}") from error


def to_text(
    encoding: Encoding, key: bytes | None, value: bytes, headers: Mapping[str, bytes]
) -> tuple[Encoding, str | None, str, dict[str, str]]:
    """A message in the encoding that was asked for, or in base64 if it is not UTF-8."""
    if encoding == "utf8":
        try:
            return (
                "utf8",
                None if key is None else key.decode(),
                value.decode(),
                {name: each.decode() for name, each in headers.items()},
            )
        except UnicodeDecodeError:
            pass
    return (
        "base64",
        None if key is None else b64encode(key).decode(),
        b64encode(value).decode(),
        {name: b64encode(each).decode() for name, each in headers.items()},
    )
