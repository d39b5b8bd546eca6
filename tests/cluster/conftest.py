"""One cluster for tests that leave it as they found it: each has topics of its own in it."""

from collections.abc import Iterator

import pytest

from quivermq.testing import Cluster

FAST = {"tick_ms": 50}


@pytest.fixture(scope="session")
def _shared_cluster() -> Iterator[Cluster]:
    with Cluster(settings=FAST) as cluster:
        yield cluster


@pytest.fixture
def cluster(_shared_cluster: Cluster) -> Cluster:
    """Three brokers that run, whatever the test before did to them."""
    for node in _shared_cluster.nodes.values():
        node.resume()
    _shared_cluster.start()
    return _shared_cluster


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return f"{request.node.name[5:150]}"
