"""A seeded part of the storms; `make sim` runs many more."""

import pytest

from tests.log.storm import Storm


@pytest.mark.parametrize("block", range(12))
def test_the_log_survives_storms_of_crashes_and_failing_disks(block: int) -> None:
    crashes = 0
    for seed in range(block * 25, block * 25 + 25):
        storm = Storm(seed)
        storm.run()
        crashes += storm.crashes
    assert crashes > 100, "the storms were too calm to show anything"
