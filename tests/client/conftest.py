"""Stand-ins, a real broker and clients that are closed, for all tests of the client."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import quivermq
from tests.client.brokers import BrokerThread
from tests.client.stand_in import StandIn

_numbers = count()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    with StandIn() as started:
        yield started


@pytest.fixture
def client(stand_in: StandIn) -> Iterator[quivermq.Client]:
    """A blocking client of the stand-in."""
    with quivermq.connect(stand_in.address, timeout=5.0) as connected:
        yield connected


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    started = BrokerThread(Path(tmp_path_factory.mktemp("broker")))
    yield started
    started.stop()


@pytest.fixture
def real(broker: BrokerThread) -> Iterator[quivermq.Client]:
    """A blocking client of a real broker."""
    with quivermq.connect(broker.address) as connected:
        yield connected


@pytest.fixture
def topic(real: quivermq.Client) -> str:
    """A topic of one partition that no other test uses."""
    name = f"topic-{next(_numbers)}"
    real.create_topic(name)
    return name
