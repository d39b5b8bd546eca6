"""Fixtures for tests of brokers in the test's own process."""

import pytest

from tests.node.consumer_stage import Consumer


@pytest.fixture(params=["straight", "long"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is run on both ways through a broker."""
    monkeypatch.setattr(Consumer, "follows_leaders", request.param == "straight")
