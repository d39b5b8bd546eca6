"""The tasks of the workers in `test_celery_workers`. Each writes a line to a file when it runs."""

import os
import signal
import time
from pathlib import Path

from celery import Celery

import quivermq.integrations.kombu  # noqa: F401 - the scheme quiver://

NOTES = Path(os.environ.get("CELERY_TEST_NOTES", "notes"))

app = Celery("shop", broker=os.environ.get("CELERY_TEST_BROKER", "quiver://"), backend="rpc://")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 5},
    worker_prefetch_multiplier=4,
    task_publish_retry_policy={"max_retries": 20, "interval_max": 1.0},
)


def note(text: str) -> None:
    with NOTES.open("a") as file:
        file.write(f"{text}\n")


@app.task
def add(first: int, second: int) -> int:
    note(f"add {first} {second}")
    return first + second


@app.task(bind=True, max_retries=5)
def retry(self, number: int) -> str:  # type: ignore[no-untyped-def]
    note(f"retry {number} {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return f"at try {self.request.retries}"


@app.task(acks_late=True)
def job(number: int) -> None:
    time.sleep(0.01)
    note(f"job {number}")


@app.task(acks_late=True)
def long_job(seconds: float) -> None:
    note("long_job begins")
    time.sleep(seconds)
    note("long_job ends")


@app.task(acks_late=True, reject_on_worker_lost=True)
def kill_process_once() -> str:
    note("kill_process_once")
    if NOTES.read_text().count("kill_process_once") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"
