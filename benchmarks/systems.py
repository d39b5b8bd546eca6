"""What the message systems under comparison have in common, and how their servers are run.

A system is driven from this process by blocking calls. Work is measured in time, not in messages:
the slowest system of a run may be a thousand times slower than the fastest.
"""

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import uvloop

LOOPBACK = "127.0.0.1"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0


class NotInstalled(Exception):
    """A server or a client library is missing on this machine."""


class Rate(NamedTuple):
    """So many messages in so many seconds."""

    messages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def timed(
    seconds: float, step: Callable[[], int], finish: Callable[[], object] = lambda: None
) -> Rate:
    """Repeat `step` for a while, or until nothing is left; it tells how many messages it moved."""
    began = time.perf_counter()
    messages = moved = step()
    while moved and time.perf_counter() - began < seconds:
        moved = step()
        messages += moved
    finish()
    return Rate(messages, time.perf_counter() - began)


def laps(count: int, step: Callable[[], object]) -> list[float]:
    """How long each of `count` calls took, in seconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return times


async def async_laps(count: int, step: Callable[[], Awaitable[object]]) -> list[float]:
    """The same for coroutines."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await step()
        times.append(time.perf_counter() - began)
    return times


def event_loop() -> asyncio.AbstractEventLoop:
    """The same kind for everybody."""
    return uvloop.new_event_loop()


class System(ABC):
    """One message system, its servers included. `with` starts and stops it."""

    name = ""

    def __init__(self, values: Sequence[bytes], *, fsync: bool) -> None:
        self.values = values
        self.fsync = fsync
        self.folder = Path()
        self.topics = 0

    def __enter__(self) -> "System":
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{type(self).__name__.lower()}-"))
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def next_topic(self) -> str:
        """A name that was never used."""
        self.topics += 1
        return f"t{self.topics}"

    @abstractmethod
    def start(self) -> None:
        """Start the servers, and connect. `NotInstalled` if something is missing."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything, whatever state it is in."""

    @abstractmethod
    def open_topic(self) -> None:
        """Begin with an empty topic."""

    @abstractmethod
    def drop_topic(self) -> None:
        """Delete it, so that no round pays for those before it."""

    @abstractmethod
    def single(self, count: int) -> list[float]:
        """One message at a time, each acknowledged before the next."""

    @abstractmethod
    def single_asyncio(self, count: int) -> list[float]:
        """The same through an asyncio client."""


class Rival(System):
    """A system of others: as fast as its client library is documented to be."""

    why_not = "it exits at once"
    """What is usually wrong where its server does not run."""

    def __init__(self, values: Sequence[bytes], *, fsync: bool) -> None:
        super().__init__(values, fsync=fsync)
        self._processes: list[subprocess.Popen[bytes]] = []

    def spawn(self, *command: str) -> None:
        if shutil.which(command[0]) is None:
            raise NotInstalled(f"{command[0]} is not installed")
        nothing = subprocess.DEVNULL
        self._processes.append(subprocess.Popen(command, stdout=nothing, stderr=nothing))

    def wait_for(self, port: int) -> None:
        """Until a server listens there."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            for process in self._processes:
                if process.poll() is not None:
                    raise NotInstalled(f"{process.args[0]} refuses to run: {self.why_not}")
            try:
                socket.create_connection((LOOPBACK, port), 1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @abstractmethod
    def produce(self, seconds: float) -> Rate:
        """Many messages, pipelined, all acknowledged at the end."""

    @abstractmethod
    def consume(self, seconds: float) -> Rate:
        """What was produced, through a consumer group, every one acknowledged."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on; all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for listener in held:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
