"""Messages of kombu as values of messages, and back: a line of JSON, then the body as it is.

One value and no headers: a batch of one such message is laid out without Arrow.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final

from kombu.utils.json import dumps, loads

from quivermq.batches import PRIORITY_MAX

_CELERY_PRIORITY_MAX: Final = 9

Payload = dict[str, Any]
"""A message as kombu's virtual transports pass it on."""


def pack(payload: Payload) -> bytes:
    """The value that is stored."""
    body = payload["body"]
    is_text = isinstance(body, str)
    about = {name: part for name, part in payload.items() if name != "body"}
    about["text"] = is_text
    line: str = dumps(about)
    return b"%b\n%b" % (line.encode(), body.encode() if is_text else bytes(body or b""))


def unpack(value: bytes) -> Payload:
    """The message in a stored value; raises `ValueError` if there is none."""
    line, _, body = value.partition(b"\n")
    # kombu's own reader, which is slow, is for values that JSON lacks.
    payload = loads(line) if b"__type__" in line else json.loads(line)
    if not isinstance(payload, dict) or "properties" not in payload:
        raise ValueError(f"this is no message of kombu: {value[:80]!r}")
    payload["body"] = body.decode() if payload.pop("text", False) else body
    return payload


def priority_of(payload: Payload) -> int:
    """The priority 0 to 9 of RabbitMQ and Celery, higher first, as one of ours."""
    given = payload["properties"].get("priority") or 0
    bounded = max(0, min(int(given), _CELERY_PRIORITY_MAX))
    return round(bounded * PRIORITY_MAX / _CELERY_PRIORITY_MAX)


def delay_of(payload: Payload, now: datetime | None = None) -> float:
    """Seconds until the ETA of a task; 0: it has none, or it is over, or cannot be read."""
    eta = (payload.get("headers") or {}).get("eta")
    if not eta:
        return 0.0
    try:
        due = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
        if due.tzinfo is None:
            due = due.replace(tzinfo=UTC)
        return max(0.0, (due - (now or datetime.now(UTC))).total_seconds())
    except (AttributeError, TypeError, ValueError):
        return 0.0  # the worker, which reads it by rules of its own, waits


def expires_ms(payload: Payload, queue_ttl_ms: int | None) -> int | None:
    """After so many milliseconds it must not be delivered; None: it may be at any time."""
    given = payload["properties"].get("expiration")
    limits = [int(float(given))] if given is not None else []
    if queue_ttl_ms is not None:
        limits.append(queue_ttl_ms)
    return min(limits, default=None)
