"""Checks of arguments: each raises `InvalidRequest` with the value, or returns it as it travels."""

import time
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from quivermq.errors import InvalidRequest

T = TypeVar("T")

Payload = bytes | bytearray | memoryview | str
"""Values and keys as users pass them; text travels as UTF-8."""

Delay = float | timedelta | datetime
"""Seconds, a `timedelta`, or the moment when it is over; a `datetime` without a zone is local."""

_NUMBER_MAX: Final = (1 << 63) - 1


def as_bytes(name: str, payload: Payload) -> bytes:
    """The payload as bytes that cannot change any more; `name` is for the error."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text of a {name} is no UTF-8: {error}") from error
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise InvalidRequest(
        f"a {name} is bytes or text, not {type(payload).__name__}: encode it, as by json.dumps"
        + (', or pass serializer="json"' if name == "value" else "")
    )


def check_number(name: str, value: Any, *, least: float, whole: bool = False) -> None:
    """Raise `InvalidRequest` unless `value` is a number from `least` up."""
    wanted = int if whole else (int, float)
    # True is an int too; and a NaN is not below anything.
    good = isinstance(value, wanted) and not isinstance(value, bool)
    if not good or not least <= value <= _NUMBER_MAX:
        kind = "whole number" if whole else "number"
        raise InvalidRequest(f"{name} must be a {kind} of at least {least:g}: {value!r}")


def delay_seconds(delay: Delay) -> float:
    """The seconds of a delay, from now on; none, if its end has passed. Not checked yet."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, datetime):
        return max(0.0, delay.timestamp() - time.time())
    return delay


def checked_name(kind: str, name: str) -> str:
    """A name that can travel; brokers decide which characters it may have."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"a {kind} has a name, as in 'orders': {name!r}")
    if not name.isprintable():
        raise InvalidRequest(f"the name of a {kind} has unprintable characters: {name!r}")
    return name


def checked_group(group: str) -> str:
    """The name of a group that a user may have."""
    if checked_name("group", group).startswith("_"):
        raise InvalidRequest(f"names of groups that begin with _ are the brokers' own: {group!r}")
    return group


def one_of(name: str, value: T, *choices: T) -> T:
    """`value`, if it is one of the choices."""
    if value not in choices:
        raise InvalidRequest(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r}")
    return value
