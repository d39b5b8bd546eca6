"""Celery over QuiverMQ: tasks, a retry, a countdown; a worker is killed, and its task is done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from celery import Celery

import quivermq.integrations.kombu  # noqa: F401 - makes quiver:// known to Celery
from quivermq.testing import Cluster

app = Celery("celery_tasks", broker=os.environ.get("BROKER_URL", "quiver://"), backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    # Tasks of a worker that was killed come back after so many seconds. Workers that live keep
    # theirs for as long as they take.
    broker_transport_options={"visibility_timeout": 5},
)


@app.task
def add(first: int, second: int) -> int:
    return first + second


@app.task(bind=True)
def fetch(self, name: str) -> str:  # type: ignore[no-untyped-def]
    if not self.request.retries:
        raise self.retry(countdown=1)
    return f"{name}, at try {self.request.retries + 1}"


@app.task(bind=True, acks_late=True)
def survive(self) -> str:  # type: ignore[no-untyped-def]
    if not self.request.delivery_info.get("redelivered"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "the next worker did it"


def start_worker(broker_url: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-P", "solo"],
        cwd=Path(__file__).parent,
        env=os.environ | {"BROKER_URL": broker_url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    with Cluster(nodes=1) as cluster:
        app.conf.broker_url = f"quiver://{cluster.servers}"
        worker = start_worker(app.conf.broker_url)
        try:
            print("2 + 3 =", add.delay(2, 3).get(timeout=60))
            print("fetched:", fetch.delay("pears").get(timeout=60))
            began = time.monotonic()
            add.apply_async((1, 1), countdown=2).get(timeout=60)
            print("not before its countdown:", time.monotonic() - began >= 2)
            result = survive.delay()
            worker.wait()
            print("the worker is killed in the middle of a task")
            worker = start_worker(app.conf.broker_url)
            print(result.get(timeout=60))
        finally:
            worker.terminate()
            worker.wait()
            app.backend.result_consumer.stop()
            app.close()


if __name__ == "__main__":
    main()
