"""Decoding the values of messages: `message.data`, by a function that the user names.

`message.value` stays bytes. The function is called once for each message, when its data is first
asked for; so a message that cannot be decoded fails by itself, and not the poll that brought it.
"""

import json
from collections.abc import Callable, Hashable
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol, TypeVar

from quivermq.errors import InvalidRequest

Deserializer = str | Callable[[bytes], Any]
""""json", or a function of the value."""

REASON_CHARACTERS: Final = 200

M = TypeVar("M")


class HasData(Protocol):
    """A message."""

    @property
    def data(self) -> Any: ...


def kind_with_data(kind: type[M], deserializer: Deserializer | None) -> type[M]:
    """The same kind of message, with `data` decoded; of bytes, if there is no deserializer."""
    if deserializer is None:
        return kind
    decode = json.loads if deserializer == "json" else deserializer
    if isinstance(decode, str) or not callable(decode):
        raise InvalidRequest(
            f'a deserializer is "json" or a function of the value: {deserializer!r}'
        )
    make: Any = _decoding_kind if isinstance(decode, Hashable) else _decoding_kind.__wrapped__
    found: type[M] = make(kind, decode)
    return found


def find_fault(message: HasData) -> str:
    """Why it cannot be decoded; "" if it can."""
    try:
        message.data  # noqa: B018  (it is kept)
    except Exception as error:
        return f"cannot be decoded: {type(error).__name__}: {error}"[:REASON_CHARACTERS]
    return ""


@lru_cache(maxsize=64)
def _decoding_kind(kind: type, decode: Callable[[bytes], Any]) -> type:
    # Without slots, so that what was decoded can be kept.
    data = cached_property(lambda message: decode(message.value))
    return type(kind.__name__, (kind,), {"data": data, "__module__": kind.__module__})
