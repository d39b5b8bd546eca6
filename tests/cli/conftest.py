"""Brokers as processes: a cluster that `quiver up` runs, and single ones by `quiver serve`."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import COMMAND, environment
from tests.client.brokers import BrokerThread

FREE_PORTS = [
    *("--listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0", "--http", "", "--grpc", "")
]


@dataclass
class RunningUp:
    """`quiver up`, ready."""

    process: subprocess.Popen[str]
    told: dict[str, Any]

    @property
    def servers(self) -> str:
        return str(self.told["servers"])

    def stop(self) -> tuple[int, str]:
        """Ctrl-C; the exit code, and what was said meanwhile."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


def start_up(*arguments: str) -> RunningUp:
    process = subprocess.Popen(
        [*COMMAND, "up", "--free-ports", "--json", "--no-portal", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Its own group, so that a Ctrl-C in a test is the test's own.
        start_new_session=True,
        env=environment(QUIVER_TICK_MS="30", QUIVER_FSYNC="never"),
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.rstrip() == "}":
            return RunningUp(process, json.loads("".join(lines)))
    _, said = process.communicate()
    raise AssertionError(f"quiver up ended: {said}")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    folder: Path = tmp_path_factory.mktemp("up")
    running = start_up("--nodes", "3", "--data-dir", str(folder))
    yield running
    code, said = running.stop()
    assert code == 0, said
    assert "killed" not in said, said


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """One broker in this process, with metrics: for tests that need no cluster."""
    running = BrokerThread(tmp_path_factory.mktemp("broker"), http="127.0.0.1:0")
    yield running
    running.stop()


@pytest.fixture
def servers(cluster: RunningUp, monkeypatch: pytest.MonkeyPatch) -> str:
    return cluster.servers


@dataclass
class Serving:
    """`quiver serve`, ready."""

    process: subprocess.Popen[str]
    ready_file: Path
    ready: dict[str, str]

    def end(self) -> tuple[str, str]:
        """Close its input, and wait for its end; what it printed."""
        return self.process.communicate(timeout=30)


def wait_for_ready_file(process: "subprocess.Popen[str]", ready_file: Path) -> None:
    deadline = time.monotonic() + 30
    while not ready_file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the broker does not get ready"
        time.sleep(0.02)


@contextmanager
def start_serve(folder: Path, *more: str, node_id: int = 1) -> Iterator[Serving]:
    """A broker that keeps its data in `folder`; killed at the end, if it has not stopped."""
    ready_file = folder / "ready.json"
    command = [*COMMAND, "serve", "--data-dir", str(folder / "data"), *FREE_PORTS]
    with subprocess.Popen(
        [
            *command,
            "--node-id",
            str(node_id),
            "--ready-file",
            str(ready_file),
            "--stop-on-eof",
            *more,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    ) as process:
        try:
            wait_for_ready_file(process, ready_file)
            yield Serving(process, ready_file, json.loads(ready_file.read_text()))
        finally:
            process.kill()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with start_serve(tmp_path) as found:
        yield found
