"""Fixtures for pytest, found wherever the package is installed: brokers, a client, a topic.

    def test_an_order_is_billed(quiver, quiver_topic):
        quiver.produce(quiver_topic, b"an order")
        (message,) = quiver.poll(quiver_topic, group="billing")
        message.ack()

Every run of pytest on the machine imports this module, so it imports nothing large until a
fixture is used. Brokers are processes, started once a run, or once for each worker of
pytest-xdist: threads of a broker in the test's process would not survive a test that forks.
"""

import re
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from quivermq.errors import TopicNotFound

if TYPE_CHECKING:
    from quivermq.client import Client
    from quivermq.testing.cluster import Cluster

_CLUSTERS: Final = ("quiver_broker", "quiver_cluster")
_started: Final = pytest.StashKey[dict[str, "Cluster"]]()
_NAME_LENGTH: Final = 60
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only a private folder in it is used
_MEMORY_FREE_MIN: Final = 1 << 30


@pytest.fixture(scope="session")
def quiver_settings() -> dict[str, Any]:
    """Settings of the brokers, as in `BrokerSettings`. Override it to change them."""
    return {"fsync": "never"}


@pytest.fixture(scope="session")
def quiver_broker(
    request: pytest.FixtureRequest, quiver_settings: dict[str, Any]
) -> Iterator["Cluster"]:
    """A `quivermq.testing.Cluster` of one broker, which all tests of the run share."""
    yield from _serve(request, 1, quiver_settings)


@pytest.fixture(scope="session")
def quiver_cluster(
    request: pytest.FixtureRequest, quiver_settings: dict[str, Any]
) -> Iterator["Cluster"]:
    """A `quivermq.testing.Cluster` of three brokers, which all tests of the run share.

    Brokers that a test kills, stops or pauses run again when the test is over.
    """
    yield from _serve(request, 3, quiver_settings)


@pytest.fixture
def quiver(quiver_broker: "Cluster") -> Iterator["Client"]:
    """A client of one broker. When the test is over it is closed, and its leases end."""
    with quiver_broker.connect() as client:
        yield client


@pytest.fixture
def quiver_topic(request: pytest.FixtureRequest, quiver: "Client") -> Iterator[str]:
    """The name of an empty topic of this test's own, which is deleted afterwards."""
    name = _topic_name(request.node.name)
    quiver.create_topic(name)
    yield name
    _delete(quiver, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show the end of the brokers' logs with a test that failed."""
    report = yield
    if report.failed:
        for cluster in _clusters_of(item):
            report.sections.append(("logs of QuiverMQ's brokers", cluster.log_tails()))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start what the test killed: before its topic is deleted, and for the next test."""
    for cluster in _clusters_of(item):
        for node in cluster.nodes.values():
            node.resume()
        if len(cluster.running) < len(cluster.nodes):
            cluster.start()


def _topic_name(test: str) -> str:
    readable = re.sub(r"[^a-zA-Z0-9]+", "-", test.removeprefix("test_")).strip("-")
    return f"{readable[:_NAME_LENGTH]}-{secrets.token_hex(4)}"


def _delete(client: "Client", topic: str) -> None:
    for name in (topic, f"{topic}.dlq"):
        try:
            client.delete_topic(name)
        except TopicNotFound:  # by the test itself, or it never was
            continue


def _serve(
    request: pytest.FixtureRequest, nodes: int, settings: dict[str, Any]
) -> Iterator["Cluster"]:
    from quivermq.testing.cluster import Cluster  # noqa: PLC0415 - see above

    started = request.config.stash.setdefault(_started, {})
    with (
        tempfile.TemporaryDirectory(
            prefix="quiver-pytest-", dir=_folder(), ignore_cleanup_errors=True
        ) as folder,
        Cluster(nodes=nodes, data_dir=folder, settings=settings) as cluster,
    ):
        started[str(request.fixturename)] = cluster
        yield cluster
        del started[str(request.fixturename)]


def _folder() -> Path | None:
    """Memory, if the system has a file system there with room: a new topic takes two dozen fsyncs,
    whatever the setting `fsync`. None: wherever temporary files are."""
    try:
        has_room = shutil.disk_usage(_MEMORY).free >= _MEMORY_FREE_MIN
    except OSError:
        return None
    return _MEMORY if has_room else None


def _clusters_of(item: pytest.Item) -> list["Cluster"]:
    """The clusters that a test used."""
    started = item.config.stash.get(_started, None)
    if not started:
        return []
    used = getattr(item, "fixturenames", ())
    return [started[name] for name in _CLUSTERS if name in started and name in used]
