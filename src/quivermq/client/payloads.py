"""What users pass as values and keys, as bytes."""

from quivermq.errors import InvalidRequest

Payload = bytes | bytearray | memoryview | str
"""Text travels as UTF-8."""


def as_bytes(name: str, payload: Payload) -> bytes:
    """The payload as bytes that nobody changes any more; `name` is for the error."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise InvalidRequest(f"a {name} is bytes, not {type(payload).__name__}")
