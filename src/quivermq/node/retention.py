"""What a partition need not keep: by age, count and bytes, in whole segments."""

from collections.abc import Sequence
from typing import NamedTuple

from quivermq.batches import Index
from quivermq.log import Log
from quivermq.queue import TopicSettings


class Part(NamedTuple):
    """A sealed segment, as retention sees it."""

    next_index: Index
    messages: int
    bytes: int
    newest_ms: int


def sealed_parts(log: Log) -> list[Part]:
    """The sealed segments of a log, oldest first."""
    return [
        Part(
            footer.next_index,
            footer.end.next_offset - footer.start.next_offset,
            footer.file_bytes,
            footer.end.timestamp_ms,
        )
        for footer in log.sealed
    ]


def droppable(
    parts: Sequence[Part], settings: TopicSettings, now_ms: int, kept: tuple[int, int]
) -> Index:
    """The index before which everything may go; 0 if all must stay.

    `kept` are the messages and bytes behind the sealed segments. A segment goes if all of it is
    too old, or if what stays without it still meets the limit on count or bytes.
    """
    messages = kept[0] + sum(part.messages for part in parts)
    size = kept[1] + sum(part.bytes for part in parts)
    end = Index(0)
    for part in parts:
        messages -= part.messages
        size -= part.bytes
        too_old = settings.retention_ms and part.newest_ms < now_ms - settings.retention_ms
        too_many = settings.retention_messages and messages >= settings.retention_messages
        too_large = settings.retention_bytes and size >= settings.retention_bytes
        if not (too_old or too_many or too_large):
            break
        end = part.next_index
    return end
