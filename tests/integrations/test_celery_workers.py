"""Celery with real workers in processes of their own, over a cluster of real brokers."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from quivermq.testing import Cluster

ROOT = Path(__file__).parents[2]
APP = "tests.integrations.celery_app"
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as started:
        yield started


class Shop:
    """An app in this process, and workers in others, at a virtual host of their own."""

    def __init__(self, cluster: Cluster, folder: Path, name: str) -> None:
        self.notes = folder / "notes"
        self.notes.touch()
        self._folder = folder
        self._numbers = iter(range(100))
        self.url = f"quiver://{cluster.servers}/{name}"
        self.topic = f"{name}.celery"
        self.app = Celery("shop", broker=self.url, backend="rpc://")
        self.app.conf.update(
            # Without an import of the transport: the app of the workers imports it instead.
            broker_transport="quivermq.integrations.kombu:Transport",
            task_publish_retry_policy={"max_retries": 20, "interval_max": 1.0},
            broker_transport_options={"visibility_timeout": 5},
        )

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(f"{APP}.{task}", arguments, **options)

    def start_worker(self, pool: str, *more: str) -> subprocess.Popen[bytes]:
        number = next(self._numbers)
        environment = os.environ | {
            "CELERY_TEST_BROKER": self.url,
            "CELERY_TEST_NOTES": str(self.notes),
        }
        command = [
            sys.executable, "-m", "celery", "-A", APP, "worker", "-P", pool, "-c", "2",
            "-n", f"worker{number}@host", "-l", "WARNING", *more,
        ]  # fmt: skip
        with (self._folder / f"worker{number}.log").open("wb") as log:
            # A group of its own: a worker that is killed leaves children, which are killed too.
            return subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=log, process_group=0
            )

    @contextmanager
    def worker(self, pool: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start_worker(pool, *more)
        try:
            yield process
        finally:
            kill(process)

    def events(self) -> list[str]:
        """The kinds of the next events of workers."""
        found: list[str] = []
        with self.app.connection_for_read() as connection:
            handlers = {"*": lambda event: found.append(event["type"])}
            receiver = self.app.events.Receiver(connection, handlers=handlers)
            receiver.capture(limit=2, timeout=WAIT_SECONDS, wakeup=True)
        return found

    def lines(self, first: str) -> list[str]:
        return [line for line in self.notes.read_text().splitlines() if line.startswith(first)]

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    def wait_until(self, look: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not look():
            assert time.monotonic() < deadline, f"{what}\n{self.logs()[-3000:]}"
            time.sleep(0.02)

    def close(self) -> None:
        results = self.app.backend.result_consumer
        if results._consumer is not None:
            results.stop()
        self.app.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def shop(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    opened = Shop(cluster, tmp_path, f"shop{abs(hash(request.node.name))}")
    yield opened
    opened.close()


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_tasks_retries_delays_and_control_commands(shop: Shop, pool: str) -> None:
    begun = time.monotonic()
    later = shop.send("add", 1, 2, countdown=3)
    with shop.worker(pool, "-E") as worker:
        assert shop.send("add", 2, 3).get(timeout=WAIT_SECONDS) == 5
        assert shop.send("retry", 7).get(timeout=WAIT_SECONDS) == "at try 2"
        assert later.get(timeout=WAIT_SECONDS) == 3
        assert time.monotonic() - begun >= 3
        replies = shop.app.control.ping(timeout=WAIT_SECONDS, limit=1)
        assert replies == [{"worker0@host": {"ok": "pong"}}]
        assert "worker-heartbeat" in shop.events()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_SECONDS) == 0
    assert shop.lines("retry") == ["retry 7 0", "retry 7 1", "retry 7 2"]


def test_a_long_task_is_not_given_to_a_second_worker_and_one_that_lost_its_process_is_done_again(
    shop: Shop,
) -> None:
    with shop.worker("prefork"):
        long = shop.send("long_job", 7.0)
        assert shop.send("kill_process_once").get(timeout=WAIT_SECONDS) == "survived"
        with shop.worker("solo"):
            long.get(timeout=WAIT_SECONDS)
            assert shop.send("add", 1, 1).get(timeout=WAIT_SECONDS) == 2
    assert len(shop.lines("long_job begins")) == 1, "longer than the visibility of 5 s"
    assert len(shop.lines("kill_process_once")) == 2


def test_no_task_is_lost_when_workers_and_brokers_are_killed(shop: Shop, cluster: Cluster) -> None:
    count = 300
    workers = [shop.start_worker("prefork"), shop.start_worker("solo")]
    try:
        for number in range(count // 2):
            shop.send("job", number, ignore_result=True)
        shop.wait_until(lambda: len(shop.lines("job")) > 20, "no worker has begun")
        kill(workers[0])
        workers.append(shop.start_worker("solo"))
        victim = cluster.leader(shop.topic)
        cluster.nodes[victim].kill()
        for number in range(count // 2, count):
            shop.send("job", number, ignore_result=True)
        cluster.nodes[victim].start()
        shop.wait_until(lambda: len(set(shop.lines("job"))) == count, "tasks are missing")
    finally:
        for worker in workers:
            kill(worker)
        cluster.wait_ready()
    times = Counter(shop.lines("job"))
    assert sorted(times) == sorted(f"job {number}" for number in range(count))
    # Those that the killed worker and the killed leader had in hand.
    assert sum(times.values()) - count <= 100
