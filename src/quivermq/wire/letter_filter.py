"""Dead letters on the wire: the headers that tell their story, and filters that choose some."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quivermq.wire.generated import quiver_pb2 as proto

LETTER_HEADERS: Final = "quiver-"
"""The beginning of the names of these headers; all others are the message's own."""
REASON_HEADER: Final = "quiver-reason"
GROUP_HEADER: Final = "quiver-group"
TIME_HEADER: Final = "quiver-time"
TOPIC_HEADER: Final = "quiver-topic"
PARTITION_HEADER: Final = "quiver-partition"
OFFSET_HEADER: Final = "quiver-offset"
DELIVERIES_HEADER: Final = "quiver-deliveries"

_DIGITS: Final = 18


class LetterFilter(NamedTuple):
    """Dead letters of which all of this is true."""

    topic: str = ""
    """The topic that they came from; one that does not say so may be of any."""
    group: str = ""
    """The group that failed."""
    reason: str = ""
    """A part of the reason."""
    key: bytes | None = None
    died_from_ms: int = 0
    died_before_ms: int = 0
    """0: at any time."""

    @classmethod
    def parse(cls, wanted: proto.LetterFilter) -> "LetterFilter":
        """As a request has it."""
        return cls(
            wanted.topic,
            wanted.group,
            wanted.reason,
            wanted.key if wanted.HasField("key") else None,
            wanted.died_from_ms,
            wanted.died_before_ms,
        )

    def pack(self) -> proto.LetterFilter:
        """For a request."""
        return proto.LetterFilter(**self._asdict())

    @property
    def is_open(self) -> bool:
        """It chooses all letters."""
        return self == LetterFilter()

    def wants(self, headers: Mapping[str, bytes], key: bytes | None, timestamp: int) -> bool:
        """Whether a message of a dead-letter topic is one of them."""
        time = headers.get(TIME_HEADER, b"")
        died_ms = int(time) if time.isdigit() and len(time) <= _DIGITS else timestamp
        topic = self.topic.encode()
        return (
            (not topic or headers.get(TOPIC_HEADER, topic) == topic)
            and (not self.group or headers.get(GROUP_HEADER) == self.group.encode())
            and self.reason.encode() in headers.get(REASON_HEADER, b"")
            and (self.key is None or key == self.key)
            and self.died_from_ms <= died_ms
            and (not self.died_before_ms or died_ms < self.died_before_ms)
        )
