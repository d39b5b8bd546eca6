"""The checker of linearizable logs finds what is not."""

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.log_history import LogHistory

PLACE = TopicPartition("orders", 0)


def test_calls_that_overlap_may_take_effect_in_any_order() -> None:
    history = LogHistory()
    history.append(PLACE, 0, 100, offset=5, count=1)
    history.append(PLACE, 50, 80, offset=0, count=5)
    history.read_end(PLACE, 10, 90, end=5)
    history.read_end(PLACE, 10, 90, end=6)
    assert history.check() == 4


def test_an_append_behind_another_has_a_larger_offset() -> None:
    history = LogHistory()
    history.append(PLACE, 0, 10, offset=3, count=2)
    history.append(PLACE, 11, 20, offset=2, count=1)
    with pytest.raises(Violation, match="an append got offset 2"):
        history.check()


def test_a_read_shows_what_was_acknowledged_before_it() -> None:
    history = LogHistory()
    history.append(PLACE, 0, 10, offset=3, count=2)
    history.read_end(PLACE, 11, 20, end=4)
    with pytest.raises(Violation, match="a read shows the end 4"):
        history.check()


def test_reads_never_go_back() -> None:
    history = LogHistory()
    history.read_end(PLACE, 0, 10, end=7)
    history.read_end(PLACE, 11, 20, end=6)
    with pytest.raises(Violation, match="a read shows the end 6"):
        history.check()


def test_what_a_read_showed_is_not_given_to_an_append_behind_it() -> None:
    history = LogHistory()
    history.read_end(PLACE, 0, 10, end=7)
    history.append(PLACE, 11, 20, offset=6, count=1)
    with pytest.raises(Violation, match="an append got offset 6"):
        history.check()


def test_partitions_have_nothing_to_do_with_each_other() -> None:
    history = LogHistory()
    history.append(PLACE, 0, 10, offset=3, count=2)
    history.append(TopicPartition("orders", 1), 11, 20, offset=0, count=1)
    assert history.check() == 2
