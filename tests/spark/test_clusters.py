"""Clusters that have no quivermq in their Python: a standalone one, and Spark Connect.

On the standalone cluster an executor dies in the middle of a task, and a task runs twice at a time.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import quivermq
from tests.spark import bare_python, cluster_jobs
from tests.spark.standalone import ConnectServer, Driver, Standalone, kill_family

ROWS = (20_000, 1_000, 1_000, 1_000)
"""Messages in each partition of the topic that is read. Only the first has enough for a task that
writes before it is finished."""
SIZE = 1_000
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_python.make(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def standalone() -> Iterator[Standalone]:
    with Standalone() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def driver(standalone: Standalone, python: Path) -> Iterator[Driver]:
    # Small batches from task to task, so that a task that is stopped in its middle has written.
    config = {"spark.sql.execution.arrow.maxRecordsPerBatch": "500"}
    with Driver(standalone.master, config, {"PYSPARK_PYTHON": str(python)}) as driver:
        yield driver


@pytest.fixture
def signs(tmp_path: Path) -> Path:
    folder = tmp_path / "signs"
    folder.mkdir()
    return folder


@pytest.fixture
def source(client: quivermq.Client, topic: str) -> str:
    """A topic in which no two messages are the same."""
    client.create_topic(topic, partitions=len(ROWS))
    for partition, count in enumerate(ROWS):
        values = [b"%d-%0*d" % (partition, SIZE, number) for number in range(count)]
        client.produce_many(topic, values, partition=partition)
    return topic


@pytest.fixture
def target(client: quivermq.Client, topic: str) -> str:
    client.create_topic(f"{topic}-target", partitions=3)
    return f"{topic}-target"


def values_of(client: quivermq.Client, topic: str) -> list[bytes]:
    """All values, those that are there twice twice."""
    partitions = range(len(client.topic(topic).partitions))
    return sorted(
        value
        for partition in partitions
        for batch in client.read(topic, partition=partition).batches()
        for value in batch["value"].to_pylist()
    )


def written(client: quivermq.Client) -> int:
    """Bytes of rows that tasks have written and no commit has published."""
    staging = [info for info in client.topics() if info.name.startswith("_spark.")]
    return sum(part.size_bytes or 0 for info in staging for part in info.partitions)


def executor_of(cluster: Standalone, python: int) -> psutil.Process:
    """The executor whose Python worker has this process id."""
    above = {parent.pid for parent in psutil.Process(python).parents()}
    (found,) = [executor for executor in cluster.executors() if executor.pid in above]
    return found


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_an_executor_killed_in_the_middle_costs_no_row_and_doubles_none(
    kind: str,
    standalone: Standalone,
    driver: Driver,
    client: quivermq.Client,
    servers: str,
    source: str,
    target: str,
    signs: Path,
    tmp_path: Path,
) -> None:
    names = {"servers": servers, "source": source, "target": target, "signs": str(signs)}
    before = written(client)
    if kind == "batch":
        driver.start(cluster_jobs.copy_once, **names)
    else:
        driver.start(cluster_jobs.copy_stream, **names, checkpoint=str(tmp_path / "checkpoint"))
    sign = signs / "0-0"
    driver.wait_until(sign.exists, "a task in its middle")
    all_others = sum(ROWS[1:]) * SIZE
    driver.wait_until(lambda: written(client) - before > 1.5 * all_others, "rows of that task")
    kill_family(executor_of(standalone, int(sign.read_text())).pid)
    (signs / "go").touch()
    driver.result()
    assert not (signs / "done-0-0").exists(), "the first attempt died"
    assert (signs / "done-0-1").exists(), "the second, with its rows the other way round, did not"
    assert values_of(client, target) == values_of(client, source)


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_a_task_that_runs_twice_at_a_time_writes_its_rows_once(
    kind: str,
    driver: Driver,
    client: quivermq.Client,
    servers: str,
    source: str,
    target: str,
    signs: Path,
    tmp_path: Path,
) -> None:
    if kind == "batch":
        driver.restart(SPECULATION)
    before = written(client)
    names = {"servers": servers, "source": source, "target": target, "signs": str(signs)}
    if kind == "batch":
        driver.start(cluster_jobs.copy_once, **names)
    else:
        driver.start(cluster_jobs.copy_stream, **names, checkpoint=str(tmp_path / "checkpoint"))
    both = [signs / "0-0", signs / "0-1"]
    driver.wait_until(lambda: all(sign.exists() for sign in both), "a second copy")
    # One attempt in its middle has written less than this by far.
    driver.wait_until(lambda: written(client) - before > ROWS[0] * SIZE, "rows written twice")
    (signs / "go").touch()
    driver.result()
    assert all(sign.exists() for sign in both), "both were in their middle at the same time"
    assert values_of(client, target) == values_of(client, source)


def test_a_cluster_without_the_package_reads_and_writes(
    driver: Driver, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    check_round_trip(driver, client, servers, topic, tmp_path)


def test_spark_connect_without_the_package_reads_and_writes(
    python: Path, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    with ConnectServer(python) as server, Driver(server.address) as driver:
        assert driver.run(cluster_jobs.package_of_tasks) == ["None", "None"]
        check_round_trip(driver, client, servers, topic, tmp_path)


def check_round_trip(
    driver: Driver, client: quivermq.Client, servers: str, topic: str, tmp_path: Path
) -> None:
    """Written by a batch, copied by a stream, read by a batch: the same rows. And a table."""
    client.create_topic(topic, partitions=2)
    client.create_topic(f"{topic}-copy", partitions=2)
    driver.run(cluster_jobs.write_numbers, servers=servers, topic=topic, count=1000)
    checkpoint = str(tmp_path / "checkpoint")
    names = {"source": topic, "target": f"{topic}-copy", "checkpoint": checkpoint}
    driver.run(cluster_jobs.copy_stream, servers=servers, **names)
    found = driver.run(cluster_jobs.read_values, servers=servers, topic=f"{topic}-copy")
    assert found == sorted(b"%d" % number for number in range(1000))
    rows = driver.run(cluster_jobs.table_round_trip, path=str(tmp_path / "table"), count=100)
    assert rows == list(range(100))
