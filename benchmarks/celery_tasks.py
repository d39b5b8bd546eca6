"""Celery over QuiverMQ beside Celery over Redis: tasks a second, and the latency of an empty task.

    python -m benchmarks.celery_tasks [--rounds 5] [--tasks 1000] [--singles 200] [--pool solo]
                                      [--fsync] [--json]

One broker, one Redis and a worker of each are up at once and take turns. A round publishes tasks
while the worker is stopped (SIGSTOP), lets it run until all are done, and then sends tasks one by
one. A task tells this process that it ran by a datagram, which costs both the same. Without
`--fsync`, Redis syncs every second and so does the broker; with it, both before they answer.
Needs `redis-server` and the Python package redis.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from celery import Celery
from rich.console import Console
from rich.table import Table

import quivermq.integrations.kombu  # noqa: F401 - the scheme quiver://
from benchmarks.compare import LOOPBACK, NotInstalled, Redis
from benchmarks.quiver import Brokers

IS_LONG = True
BROKER, TOLD = "BENCH_CELERY_BROKER", "BENCH_CELERY_TOLD"
ANSWER_SECONDS_MAX = 120.0
ROWS = {
    "publish": "publish, tasks/s",
    "execute": "execute, tasks/s",
    "p50": "latency p50, ms",
    "p99": "latency p99, ms",
}


def make_app(url: str) -> Celery:
    """An app without a result backend, at a broker."""
    made = Celery("bench", broker=url)
    made.conf.update(
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        worker_prefetch_multiplier=16,
        worker_hijack_root_logger=False,
    )

    @made.task(name="tell", shared=False)
    def tell(number: int) -> None:
        told = _socket()
        told.sendto(b"%d %.9f" % (number, time.perf_counter()), os.environ[TOLD])

    return made


def _socket(opened: list[socket.socket] = []) -> socket.socket:  # noqa: B006 - one a process
    if not opened:
        opened.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    return opened[0]


app = make_app(os.environ.get(BROKER, "memory://"))
"""Of the worker's process."""


class Contestant:
    """An app of this process, and a worker that carries its tasks out."""

    def __init__(self, name: str, url: str, folder: Path, pool: str) -> None:
        self.name = name
        self.figures: dict[str, list[float]] = {row: [] for row in ROWS}
        self._app = make_app(url)
        self._task = self._app.tasks["tell"]
        self._told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._told.bind(str(folder / f"{name}.sock"))
        self._told.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._told.settimeout(ANSWER_SECONDS_MAX)
        environment = os.environ | {BROKER: url, TOLD: str(folder / f"{name}.sock")}
        command = [
            sys.executable, "-m", "celery", "-A", "benchmarks.celery_tasks", "worker", "-P", pool,
            "-c", "1", "-l", "ERROR", "--without-gossip", "--without-mingle",
            "--without-heartbeat", "-n", f"{name}@bench",
        ]  # fmt: skip
        with (folder / f"{name}.log").open("wb") as log:
            self.worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.latency()

    def round(self, tasks: int, singles: int) -> None:
        """Measure everything once."""
        self.worker.send_signal(signal.SIGSTOP)
        began = time.perf_counter()
        for number in range(tasks):
            self._task.delay(number)
        self.figures["publish"].append(tasks / (time.perf_counter() - began))
        began = time.perf_counter()
        self.worker.send_signal(signal.SIGCONT)
        seen = {int(self._told.recv(64).split()[0]) for _ in range(tasks)}
        self.figures["execute"].append(tasks / (time.perf_counter() - began))
        if len(seen) != tasks:
            raise SystemExit(f"{self.name}: {tasks - len(seen)} tasks came twice instead of others")
        laps = sorted(self.latency() for _ in range(singles))
        self.figures["p50"].append(laps[singles // 2] * 1000)
        self.figures["p99"].append(laps[singles * 99 // 100] * 1000)

    def latency(self) -> float:
        """Seconds from before `delay()` until the task runs."""
        began = time.perf_counter()
        self._task.delay(-1)
        return float(self._told.recv(64).split()[1]) - began

    def close(self) -> None:
        self.worker.send_signal(signal.SIGCONT)
        self.worker.terminate()
        self.worker.wait()
        self._app.close()
        self._told.close()

    def medians(self) -> dict[str, float]:
        return {row: statistics.median(found) for row, found in self.figures.items()}


def measure(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fsync = "always" if arguments.fsync else "interval"
        brokers = Brokers(folder / "quiver", 1, "--fsync", fsync, "--fsync-interval-ms", "1000")
        stack.enter_context(brokers)
        redis = stack.enter_context(Redis(fsync=arguments.fsync))
        urls = {
            "QuiverMQ": f"quiver://{brokers.servers}",
            "Redis": f"redis://{LOOPBACK}:{redis.port}/0",
        }
        contestants = []
        for name, url in urls.items():
            contestants.append(Contestant(name, url, folder, arguments.pool))
            stack.callback(contestants[-1].close)
        for number in range(arguments.rounds):
            for contestant in contestants if number % 2 == 0 else reversed(contestants):
                contestant.round(arguments.tasks, arguments.singles)
        return {contestant.name: contestant.medians() for contestant in contestants}


def show(found: dict[str, dict[str, float]], arguments: argparse.Namespace) -> None:
    sync = "with fsync" if arguments.fsync else "without fsync"
    table = Table(title=f"Celery, pool {arguments.pool}, {sync}; load {os.getloadavg()[0]:.1f}")
    for column in ("what", *found, "QuiverMQ / Redis"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row, label in ROWS.items():
        ours, theirs = (figures[row] for figures in found.values())
        table.add_row(label, f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs:.2f}")
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--singles", type=int, default=200)
    parser.add_argument("--pool", choices=["solo", "prefork"], default="solo")
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        found: dict[str, Any] = measure(arguments)
    except NotInstalled as error:
        print(f"not measured: {error}")
        return
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found, arguments)


if __name__ == "__main__":
    main()
