"""Processes of the fork server: each is as if it had been started by itself."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from quivermq.testing.cluster import forked_process
from quivermq.testing.cluster.forked_process import CAN_FORK, ForkedProcess, start_forked

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="brokers are not forked here")

STANDING = "import time; time.sleep(60)"


@contextmanager
def forked(module: str, *argv: str) -> Iterator[ForkedProcess]:
    process = start_forked(module, *argv, stderr=sys.__stderr__.fileno())
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            pipe.close()


@contextmanager
def running(code: str) -> Iterator[ForkedProcess]:
    """A process that runs some Python once, and prints how long that took."""
    with forked("timeit", "-n1", "-r1", code) as process:
        yield process


def has_ended(pid: int) -> bool:
    """Whether nothing of it is left, but perhaps its exit code."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_reads_writes_and_ends_with_a_code() -> None:
    with forked("json.tool", "--compact") as process:
        assert process.poll() is None
        process.stdin.write('{"a": 1}')
        process.stdin.close()
        assert process.stdout.read() == '{"a":1}\n'
        assert process.wait(10) == 0
    with running("import os; os._exit(3)") as process:
        assert process.wait(10) == 3


def test_it_has_the_folder_the_variables_and_a_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLOUR", "g" * 100_000)
    monkeypatch.delenv("PATH")
    code = "import os; e = os.environ; print(os.getcwd(), len(e['COLOUR']), 'PATH' in e)"
    with running(code) as process:
        assert process.stdout.readline().split() == [str(tmp_path), "100000", "False"]
    with running("import os; print(os.getpgrp(), os.getpid())") as process:
        assert process.stdout.readline().split() == [str(process.pid)] * 2


def test_it_holds_no_file_but_its_own() -> None:
    code = "import os; print(*sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
    with running(STANDING), running(code) as process:
        assert process.stdout.readline().split() == ["0", "1", "2"]


def test_a_signal_is_told_as_subprocess_tells_it() -> None:
    with running(STANDING) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        process.send_signal(signal.SIGTERM)


def test_random_numbers_differ() -> None:
    code = "import random; print(random.random())"
    with running(code) as one, running(code) as other:
        assert one.stdout.readline() != other.stdout.readline()


def test_a_fork_server_that_dies_takes_its_processes_along_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Not the one that other tests of this process have brokers of.
    monkeypatch.setattr(forked_process, "_server", None)
    # To give back much memory takes a process a while.
    code = f"import sys; a = bytearray(b'.' * (400 << 20)); print(); sys.stdout.flush(); {STANDING}"
    with running(code) as process:
        process.stdout.readline()
        server = psutil.Process(process.pid).parent()
        assert server is not None
        server.kill()
        assert process.wait(10) == -signal.SIGKILL
        assert has_ended(process.pid)
        with running(STANDING) as successor:
            assert psutil.Process(successor.pid).ppid() not in {server.pid, os.getpid()}


def test_a_process_that_ends_leaves_no_fork_server() -> None:
    code = f"""
import os, sys
from quivermq.testing.cluster.forked_process import start_forked
process = start_forked("timeit", "-n1", "-r1", {STANDING!r}, stderr=2)
print(open(f"/proc/{{process.pid}}/stat").read().rpartition(")")[2].split()[1])
process.kill()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not psutil.pid_exists(int(done.stdout))
    assert not done.stderr
