"""A broker to back up, and an empty one to restore into."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.client import BackupAccess
from tests.client.brokers import BrokerThread

_numbers = count()


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[BrokerThread]:
    """A broker that is stopped also by a test that fails: its thread would outlive the process."""
    broker = BrokerThread(folder, **{"events": False, **settings})
    try:
        yield broker
    finally:
        if broker._thread.is_alive():
            broker.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[quivermq.Client]:
    """A client of a broker whose logs have small segments, which retention drops soon."""
    broker = BrokerThread(
        tmp_path / "source", segment_bytes=65_536, retention_interval_ms=20, events=False
    )
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[quivermq.Client]:
    """A client of another cluster, without topics."""
    broker = BrokerThread(tmp_path / f"empty-{next(_numbers)}", events=False)
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


@pytest.fixture
def from_source(source: quivermq.Client) -> BackupAccess:
    return BackupAccess(source)


@pytest.fixture
def to_empty(empty: quivermq.Client) -> BackupAccess:
    return BackupAccess(empty)
