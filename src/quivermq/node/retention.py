"""What a partition need not keep: by age, count and bytes, or done, in whole segments."""

from typing import Final

from quivermq.batches import Index
from quivermq.log import Edge, Log
from quivermq.queue import Groups, TopicSettings

ARCHIVE_PREFIX: Final = "_archive."
"""Begins the name of a group that says how far a table holds the topic."""

_EARLIEST_MS: Final = 1_577_836_800_000
"""The year 2020: a clock that shows less was never set."""


class Ages:
    """When what a log holds was stored, also if the clock that stamped it was wrong.

    What is stamped with a time that is still to come, or from before there were brokers, counts
    from when this broker first saw it: it is not deleted early, and not kept until that time comes.
    """

    def __init__(self) -> None:
        self._seen_ms: dict[Index, int] = {}

    def look(self, log: Log, now_ms: int) -> None:
        """Take note of everything with a time that cannot be."""
        edges = [*(footer.end for footer in log.sealed), log.edge]
        self._seen_ms = {
            edge.next_index: self._seen_ms.get(edge.next_index, now_ms)
            for edge in edges
            if _cannot_be(edge.timestamp_ms, now_ms)
        }

    def time_of(self, edge: Edge, now_ms: int) -> int:
        """When the last of what lies before an edge was stored."""
        if _cannot_be(edge.timestamp_ms, now_ms):
            return self._seen_ms.get(edge.next_index, now_ms)
        return edge.timestamp_ms


def drops_anything(settings: TopicSettings) -> bool:
    """Whether there is anything to look for."""
    return bool(
        settings.retention_ms
        or settings.retention_messages
        or settings.retention_bytes
        or settings.delete_acked
    )


def done_by_all(groups: Groups | None) -> int:
    """The offset below which every group is done; 0 where there is no group that could be.

    A table holds messages, but consumes none: archives alone are no reason to drop anything.
    """
    if not groups or all(_is_archive(name) for name in groups.by_name):
        return 0
    return min(
        group.floor if group.is_shared else group.committed or 0
        for group in groups.by_name.values()
    )


def archived_by_all(groups: Groups | None) -> int:
    """The offset below which every archive holds everything; 0 where there is none."""
    if not groups:
        return 0
    archives = [group for name, group in groups.by_name.items() if _is_archive(name)]
    return min((group.committed or 0 for group in archives), default=0)


def droppable(
    log: Log, settings: TopicSettings, now_ms: int, ages: Ages, done: int = 0, archived: int = 0
) -> Index:
    """The index before which everything may go; 0 if all must stay.

    A sealed segment goes if all of it is too old, if what stays without it still meets the limit
    on count or bytes, or, where the topic deletes what is done, if it ends at or below `done`.
    Where the topic waits for its archives, nothing goes that does not end at or below `archived`.
    """
    messages = log.edge.next_offset - log.start.next_offset
    size = log.size_bytes
    end = Index(0)
    for footer in log.sealed:
        if settings.keep_until_archived and footer.end.next_offset > archived:
            break
        messages -= footer.end.next_offset - footer.start.next_offset
        size -= footer.file_bytes
        too_old = _is_too_old(ages.time_of(footer.end, now_ms), settings, now_ms)
        too_many = settings.retention_messages and messages >= settings.retention_messages
        too_large = settings.retention_bytes and size >= settings.retention_bytes
        is_done = settings.delete_acked and footer.end.next_offset <= done
        if not (too_old or too_many or too_large or is_done):
            break
        end = footer.next_index
    return end


def is_stale(log: Log, settings: TopicSettings, now_ms: int, ages: Ages) -> bool:
    """Whether even the last message, in the segment that is still written to, is too old."""
    starts = log.sealed[-1].end.next_offset if log.sealed else log.start.next_offset
    if log.edge.next_offset <= starts:
        return False
    return _is_too_old(ages.time_of(log.edge, now_ms), settings, now_ms)


def _is_archive(group_name: str) -> bool:
    return group_name.startswith(ARCHIVE_PREFIX)


def _cannot_be(timestamp_ms: int, now_ms: int) -> bool:
    return timestamp_ms > now_ms or timestamp_ms < _EARLIEST_MS <= now_ms


def _is_too_old(newest_ms: int, settings: TopicSettings, now_ms: int) -> bool:
    return bool(settings.retention_ms) and newest_ms < now_ms - settings.retention_ms
