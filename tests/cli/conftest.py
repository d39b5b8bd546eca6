"""A cluster that `quiver up` runs, shared by the tests of commands that talk to one."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import COMMAND, environment


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
        [*COMMAND, "up", "--free-ports", "--json", *arguments],
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


@pytest.fixture
def servers(cluster: RunningUp, monkeypatch: pytest.MonkeyPatch) -> str:
    return cluster.servers
