"""One Spark session and one broker for all tests of a process: both take seconds to start."""

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import quivermq
from quivermq.testing import Cluster
from tests.conftest import QUICK_JAVA


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores whose tasks are tried up to four times."""
    from quivermq.spark import session  # noqa: PLC0415

    # Speed does not matter here.
    config = {"spark.driver.extraJavaOptions": QUICK_JAVA}
    spark = session("local[2,4]", name="tests", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def _broker() -> Iterator[Cluster]:
    with Cluster(nodes=1, settings={"tick_ms": 50}) as cluster:
        yield cluster


@pytest.fixture
def servers(_broker: Cluster) -> str:
    """Where one broker listens, that all tests share."""
    return _broker.servers


@pytest.fixture
def client(servers: str) -> Iterator[quivermq.Client]:
    with quivermq.connect(servers) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return re.sub("[^a-z0-9_]+", "-", request.node.name.lower()[5:150]).strip("-")
