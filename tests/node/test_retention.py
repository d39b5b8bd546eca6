"""What a partition need not keep: by age, by count, by bytes, in whole segments."""

import pytest

from quivermq.log import Log
from quivermq.node.retention import droppable, is_stale
from quivermq.queue import TopicSettings
from tests.log.logs import fill, new_log

NOW_MS = 100_000


def filled() -> Log:
    """Several segments; group n of two messages is stamped 1000 + n."""
    _, log = new_log()
    fill(log, 30)
    assert len(log.sealed) > 3
    return log


def kept_messages(log: Log, end: int) -> int:
    before = log.edge_before(end).next_offset if end else log.start.next_offset  # type: ignore[arg-type]
    return log.edge.next_offset - before


def test_without_a_limit_everything_stays() -> None:
    assert droppable(filled(), TopicSettings(), NOW_MS) == 0


@pytest.mark.parametrize("limit", [1, 7, 20, 59, 60, 1_000])
def test_at_least_so_many_messages_stay_and_no_whole_segment_more(limit: int) -> None:
    log = filled()
    end = droppable(log, TopicSettings(retention_messages=limit), NOW_MS)
    kept = kept_messages(log, end)
    assert kept >= min(limit, 60)
    following = [footer for footer in log.sealed if footer.first_index >= end]
    if following:
        first = following[0].end.next_offset - following[0].start.next_offset
        assert kept - first < limit


@pytest.mark.parametrize("limit", [1, 3_000, 10**9])
def test_at_least_so_many_bytes_stay(limit: int) -> None:
    log = filled()
    end = droppable(log, TopicSettings(retention_bytes=limit), NOW_MS)
    gone = sum(footer.file_bytes for footer in log.sealed if footer.next_index <= end)
    assert log.size_bytes - gone >= min(limit, log.size_bytes)
    assert (gone > 0) == (limit < 5_000)


def test_nothing_that_is_young_enough_goes() -> None:
    log = filled()
    age = 100_000 - 1_010
    end = droppable(log, TopicSettings(retention_ms=age), NOW_MS)
    assert end > 0
    gone = [footer for footer in log.sealed if footer.next_index <= end]
    left = [footer for footer in log.sealed if footer.next_index > end]
    assert all(footer.end.timestamp_ms < 1_010 for footer in gone)
    assert left[0].end.timestamp_ms >= 1_010


def test_the_segment_that_is_written_to_is_stale_only_if_its_last_message_is() -> None:
    log = filled()
    assert is_stale(log, TopicSettings(retention_ms=1_000), NOW_MS)
    assert not is_stale(log, TopicSettings(retention_ms=99_000), NOW_MS)
    assert not is_stale(log, TopicSettings(retention_messages=1), NOW_MS)
    log.roll()
    assert not is_stale(log, TopicSettings(retention_ms=1_000), NOW_MS)
