"""What a partition need not keep: by age, count and bytes, in whole segments."""

from quivermq.batches import Index
from quivermq.log import Log
from quivermq.queue import TopicSettings


def droppable(log: Log, settings: TopicSettings, now_ms: int) -> Index:
    """The index before which everything may go; 0 if all must stay.

    A sealed segment goes if all of it is too old, or if what stays without it still meets the
    limit on count or bytes.
    """
    messages = log.edge.next_offset - log.start.next_offset
    size = log.size_bytes
    end = Index(0)
    for footer in log.sealed:
        messages -= footer.end.next_offset - footer.start.next_offset
        size -= footer.file_bytes
        too_old = _is_too_old(footer.end.timestamp_ms, settings, now_ms)
        too_many = settings.retention_messages and messages >= settings.retention_messages
        too_large = settings.retention_bytes and size >= settings.retention_bytes
        if not (too_old or too_many or too_large):
            break
        end = footer.next_index
    return end


def is_stale(log: Log, settings: TopicSettings, now_ms: int) -> bool:
    """Whether even the last message, in the segment that is still written to, is too old."""
    starts = log.sealed[-1].end.next_offset if log.sealed else log.start.next_offset
    return log.edge.next_offset > starts and _is_too_old(log.edge.timestamp_ms, settings, now_ms)


def _is_too_old(newest_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    return bool(settings.retention_ms) and newest_ms < now_ms - settings.retention_ms
