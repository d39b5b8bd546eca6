"""A broker to back up, and an empty one to restore into."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import quivermq
from quivermq.client import BackupAccess
from tests.client.brokers import BrokerThread

_numbers = count()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[quivermq.Client]:
    """A client of a broker whose logs have small segments, which retention drops soon."""
    broker = BrokerThread(tmp_path / "source", segment_bytes=65_536, retention_interval_ms=20)
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[quivermq.Client]:
    """A client of another cluster, without topics."""
    broker = BrokerThread(tmp_path / f"empty-{next(_numbers)}")
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


@pytest.fixture
def from_source(source: quivermq.Client) -> BackupAccess:
    return BackupAccess(source)


@pytest.fixture
def to_empty(empty: quivermq.Client) -> BackupAccess:
    return BackupAccess(empty)
