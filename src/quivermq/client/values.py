"""What a client hands out for messages: the message itself, and receipts for stored ones."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple


class Message(NamedTuple):
    """One message as it was read.

    >>> for message in client.read("orders"):
    ...     print(message.offset, message.key, message.value)
    """

    topic: str
    partition: int
    offset: int
    """Its number in the partition, from 0, without gaps."""
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    timestamp: int
    """Milliseconds since 1970, UTC: the producer's own, else when the leader took it."""
    priority: int

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={short(self.key)}"
        return f"<Message {self.topic}/{self.partition}@{self.offset}{key} {short(self.value)}>"


class Receipt(NamedTuple):
    """Where a message was stored."""

    topic: str
    partition: int
    offset: int


class BatchReceipt(NamedTuple):
    """Where messages that travelled together were stored: `count` of them, one behind the other."""

    partition: int
    first_offset: int
    count: int  # type: ignore[assignment]  # hides `tuple.count`, which nobody calls on a receipt


def short(data: bytes) -> str:
    """For people: the bytes, or how they begin."""
    return repr(data) if len(data) <= 40 else f"{data[:37]!r}... ({len(data):,} bytes)"
