"""The checker of rate limits finds too much in any stretch of time, and allows what is promised."""

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials.rate_history import RateHistory

S = 1_000_000
TEN_A_SECOND = 10.0


def polls(history: RateHistory, *found: tuple[float, float, int]) -> RateHistory:
    for began_s, ended_s, messages in found:
        history.record_poll(round(began_s * S), round(ended_s * S), messages)
    return history


def test_a_burst_and_then_the_rate_is_allowed() -> None:
    history = RateHistory(TEN_A_SECOND, 5)
    polls(history, (0.0, 0.01, 5), *((0.1 * n, 0.1 * n + 0.01, 1) for n in range(1, 50)))
    assert history.check() == 54


def test_more_than_a_burst_at_once_is_found() -> None:
    history = polls(RateHistory(TEN_A_SECOND, 5), (1.0, 1.01, 4), (1.0, 1.02, 2))
    with pytest.raises(Violation, match=r"I8: 6 messages were delivered in 0\.020 s"):
        history.check()


def test_a_rate_that_is_a_little_too_fast_is_found_in_time() -> None:
    history = polls(RateHistory(TEN_A_SECOND, 1), *((n / 12, n / 12 + 0.001, 1) for n in range(60)))
    with pytest.raises(Violation, match="I8: "):
        history.check()
    assert history.check(clock_rate=1.25) == 60


def test_a_burst_in_the_middle_is_found_though_the_sum_is_small() -> None:
    quiet = polls(RateHistory(TEN_A_SECOND, 2), (0.0, 0.1, 1), (50.0, 50.1, 8), (99.0, 99.1, 1))
    with pytest.raises(Violation, match=r"8 messages were delivered in 0\.100 s"):
        quiet.check()


def test_a_poll_that_waited_long_may_have_had_its_tokens_at_any_time() -> None:
    history = polls(RateHistory(TEN_A_SECOND, 1), (0.0, 1.0, 10), (0.9, 1.01, 1))
    assert history.check() == 11


def test_each_leader_begins_with_a_burst_and_no_more() -> None:
    def with_terms(*terms: tuple[float, int]) -> RateHistory:
        history = RateHistory(TEN_A_SECOND, 5)
        for at_s, term in terms:
            history.record_term(round(at_s * S), term)
        return polls(history, (1.0, 1.01, 5), (1.02, 1.03, 5))

    assert with_terms((0.0, 3), (2.0, 4)).check() == 10
    with pytest.raises(Violation, match="1 bursts of 5"):
        with_terms((0.0, 3), (2.0, 3)).check()
    with pytest.raises(Violation, match="1 bursts of 5"):
        # It was over before; that a deposed leader tells the old term later changes nothing.
        with_terms((0.0, 3), (0.5, 4), (0.9, 3), (2.0, 4)).check()
