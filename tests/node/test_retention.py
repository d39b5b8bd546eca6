"""What a partition need not keep: by age, by count, by bytes, in whole segments."""

from dataclasses import replace

import pytest

from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.log import Log
from quivermq.node.retention import Ages, archived_by_all, done_by_all, droppable, is_stale
from quivermq.queue import Groups, TopicSettings
from quivermq.queue.groups import Op
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
    assert droppable(filled(), TopicSettings(), NOW_MS, Ages()) == 0


@pytest.mark.parametrize("limit", [1, 7, 20, 59, 60, 1_000])
def test_at_least_so_many_messages_stay_and_no_whole_segment_more(limit: int) -> None:
    log = filled()
    end = droppable(log, TopicSettings(retention_messages=limit), NOW_MS, Ages())
    kept = kept_messages(log, end)
    assert kept >= min(limit, 60)
    following = [footer for footer in log.sealed if footer.first_index >= end]
    if following:
        first = following[0].end.next_offset - following[0].start.next_offset
        assert kept - first < limit


@pytest.mark.parametrize("limit", [1, 3_000, 10**9])
def test_at_least_so_many_bytes_stay(limit: int) -> None:
    log = filled()
    end = droppable(log, TopicSettings(retention_bytes=limit), NOW_MS, Ages())
    gone = sum(footer.file_bytes for footer in log.sealed if footer.next_index <= end)
    assert log.size_bytes - gone >= min(limit, log.size_bytes)
    assert (gone > 0) == (limit < 5_000)


def test_nothing_that_is_young_enough_goes() -> None:
    log = filled()
    age = 100_000 - 1_010
    end = droppable(log, TopicSettings(retention_ms=age), NOW_MS, Ages())
    assert end > 0
    gone = [footer for footer in log.sealed if footer.next_index <= end]
    left = [footer for footer in log.sealed if footer.next_index > end]
    assert all(footer.end.timestamp_ms < 1_010 for footer in gone)
    assert left[0].end.timestamp_ms >= 1_010


@pytest.mark.parametrize("archived", [0, 1, 7, 20, 31, 59, 60, 1_000])
def test_whatever_the_limits_nothing_goes_that_no_archive_holds(archived: int) -> None:
    log = filled()
    limits = TopicSettings(retention_ms=1, retention_messages=1, retention_bytes=1)
    waiting = replace(limits, keep_until_archived=True)
    end = droppable(log, waiting, NOW_MS, Ages(), archived=archived)
    gone = [footer for footer in log.sealed if footer.next_index <= end]
    left = [footer for footer in log.sealed if footer.next_index > end]
    assert all(footer.end.next_offset <= archived for footer in gone)
    assert all(footer.end.next_offset > archived for footer in left)
    # Without the setting archives hold nothing up; without a limit they let nothing go.
    assert droppable(log, limits, NOW_MS, Ages()) == log.sealed[-1].next_index
    alone = TopicSettings(keep_until_archived=True)
    assert droppable(log, alone, NOW_MS, Ages(), archived=archived) == 0


def test_the_slowest_archive_counts_and_archives_alone_are_no_consumers() -> None:
    groups = Groups()
    assert (archived_by_all(None), archived_by_all(groups), done_by_all(groups)) == (0, 0, 0)

    def commit(number: int, name: str, offset: int) -> None:
        groups.carry_out([Op.CREATE, number, name])
        groups.by_name[name].committed = offset

    commit(1, "_archive.hot", 50)
    assert (archived_by_all(groups), done_by_all(groups)) == (50, 0)
    commit(2, "_archive.cold", 30)
    commit(3, "_archived", 5)
    assert (archived_by_all(groups), done_by_all(groups)) == (30, 5)
    groups.carry_out([Op.CREATE, 4, "_archive.begun"])
    assert archived_by_all(groups) == 0


def test_a_group_that_committed_nothing_yet_is_done_with_nothing() -> None:
    groups = Groups()
    groups.carry_out([Op.CREATE, 1, "quick"])
    groups.by_name["quick"].committed = 50
    assert done_by_all(groups) == 50
    groups.carry_out([Op.CREATE, 2, "begun"])
    assert done_by_all(groups) == 0


def test_the_segment_that_is_written_to_is_stale_only_if_its_last_message_is() -> None:
    log = filled()
    assert is_stale(log, TopicSettings(retention_ms=1_000), NOW_MS, Ages())
    assert not is_stale(log, TopicSettings(retention_ms=99_000), NOW_MS, Ages())
    assert not is_stale(log, TopicSettings(retention_messages=1), NOW_MS, Ages())
    log.roll()
    assert not is_stale(log, TopicSettings(retention_ms=1_000), NOW_MS, Ages())


YEAR_MS = 365 * 24 * 3_600_000
RIGHT_MS = 1_750_000_000_000


def dropped(log: Log, ages: Ages, now_ms: int, retention_ms: int) -> int:
    """How many sealed segments may go at a pass of retention."""
    ages.look(log, now_ms)
    end = droppable(log, TopicSettings(retention_ms=retention_ms), now_ms, ages)
    return sum(footer.next_index <= end for footer in log.sealed)


def stamped(time_ms: int) -> Log:
    _, log = new_log()
    fill(log, 30, time_ms=time_ms)
    assert len(log.sealed) > 3
    return log


@pytest.mark.parametrize("time_ms", [0, 1_000, RIGHT_MS + YEAR_MS, TIMESTAMP_MS_MAX - 100])
def test_what_a_wrong_clock_stamped_is_kept_as_long_as_the_rest_and_no_longer(
    time_ms: int,
) -> None:
    log, ages = stamped(time_ms), Ages()
    settings = TopicSettings(retention_ms=1_000)
    assert dropped(log, ages, RIGHT_MS, 1_000) == 0
    assert dropped(log, ages, RIGHT_MS + 1_000, 1_000) == 0
    assert not is_stale(log, settings, RIGHT_MS + 1_000, ages)
    assert dropped(log, ages, RIGHT_MS + 1_001, 1_000) == len(log.sealed)
    assert is_stale(log, settings, RIGHT_MS + 1_001, ages)


def test_each_segment_that_a_wrong_clock_stamped_counts_from_when_it_was_first_seen() -> None:
    log, ages = stamped(RIGHT_MS + YEAR_MS), Ages()
    before = len(log.sealed)
    assert dropped(log, ages, RIGHT_MS, 1_000) == 0
    fill(log, 30, time_ms=RIGHT_MS + YEAR_MS)
    log.roll()
    assert dropped(log, ages, RIGHT_MS + 600, 1_000) == 0
    assert dropped(log, ages, RIGHT_MS + 1_200, 1_000) == before
    assert dropped(log, ages, RIGHT_MS + 1_700, 1_000) == len(log.sealed)
