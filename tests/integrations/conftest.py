"""A broker that all tests of integrations share."""

from collections.abc import Iterator
from itertools import count

import pytest

import quivermq
from tests.client.brokers import BrokerThread

_numbers = count()


@pytest.fixture(scope="package")
def broker_thread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    broker = BrokerThread(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def servers(broker_thread: BrokerThread) -> str:
    return broker_thread.address


@pytest.fixture
def client(servers: str) -> Iterator[quivermq.Client]:
    with quivermq.connect(servers) as connected:
        yield connected


@pytest.fixture
def topic(client: quivermq.Client) -> str:
    """A topic of one partition that no other test uses, whose retries come at once."""
    name = f"integrated-{next(_numbers)}"
    client.create_topic(name, max_deliveries=3)
    return name
