"""A few seconds of the random mix of faults that `make soak` runs for hours."""

from quivermq.testing.soak import soak


def test_a_random_mix_of_faults_breaks_no_promise() -> None:  # F43
    run = soak(seconds=6.0, seed=7, round_s=6.0)
    assert run.acked > 0
    assert run.consumed > 0
    assert sum(run.struck.values()) > 1
