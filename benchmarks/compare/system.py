"""A message system under comparison: its servers, its client, and a watch for time and processors.

Every system is driven from this process by blocking calls; those whose client is asynchronous run
an event loop inside of them. Work is measured in time, not in messages: the slowest system of a
run may be a thousand times slower than the fastest.
"""

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from importlib import import_module, metadata
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
import uvloop

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
START_SECONDS_MAX = 180.0
SCRIPT_SECONDS_MAX = 2.0
ARRIVAL_SECONDS_MAX = 30.0
IDLE_SECONDS = 0.001
"""Between two pushed messages, so that the consumer waits again."""
WARM_UP_LAPS = 20
FAN_OUT_MAX = 16
"""How many messages may be on their way to groups that take them one by one."""


class NotInstalled(Exception):
    """A server or a client library is missing on this machine, or cannot do what is asked."""


class Sample(NamedTuple):
    """So many messages in so many seconds, with the processor time of servers and client."""

    messages: int
    seconds: float
    broker_cpu_s: float
    client_cpu_s: float
    laps: tuple[float, ...] = ()
    """Of every single message, in seconds, where latency is measured."""

    def joined(self, other: "Sample") -> "Sample":
        """Both, as if they were one."""
        return Sample(
            self.messages + other.messages,
            self.seconds + other.seconds,
            self.broker_cpu_s + other.broker_cpu_s,
            self.client_cpu_s + other.client_cpu_s,
            self.laps + other.laps,
        )


class Stopwatch:
    """Runs from its making until `stop`."""

    def __init__(self, servers: Sequence[psutil.Process]) -> None:
        self._servers = servers
        self._broker = self._broker_cpu_s()
        self._client = time.process_time()
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def stop(self, messages: int, laps: Sequence[float] = ()) -> Sample:
        seconds = self.seconds
        client = time.process_time() - self._client
        return Sample(messages, seconds, self._broker_cpu_s() - self._broker, client, tuple(laps))

    def _broker_cpu_s(self) -> float:
        total = 0.0
        for process in self._servers:
            # Told in hundredths of a second elsewhere: a hundred lone messages take less.
            with suppress(OSError):  # it has ended
                total += time.clock_gettime(_processor_clock(process.pid))
        return total


def _processor_clock(pid: int) -> int:
    """The number that Linux gives to the clock of a process's processor time."""
    return ~pid << 3 | 2


class System(ABC):
    """One message system, its servers included. `with` starts and stops it."""

    name = ""
    needs: tuple[str, ...] = ()
    """Python packages."""

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        self.nodes = nodes
        self.fsync = fsync
        self.folder = Path()
        self.topic = ""
        self.values: Sequence[bytes] = ()
        self._names = 0
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watched: list[psutil.Process] = []

    def __enter__(self) -> "System":
        for package in self.needs:
            try:
                import_module(package)
            except ImportError as error:
                raise NotInstalled(f"the Python package {package} is not installed") from error
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{type(self).__name__.lower()}-"))
        try:
            self.start()
            self._watched = [found for pid in self.pids() for found in family(pid)]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            end(self._processes)
            shutil.rmtree(self.folder, ignore_errors=True)

    @abstractmethod
    def start(self) -> None:
        """Start the servers, and connect. `NotInstalled` if something is missing."""

    @abstractmethod
    def stop(self) -> None:
        """Disconnect, whatever state it is in; servers that were spawned are ended afterwards."""

    @abstractmethod
    def versions(self) -> str:
        """Of its server and its client."""

    @abstractmethod
    def open_topic(self, values: Sequence[bytes]) -> None:
        """Begin with an empty topic, for messages like these."""

    @abstractmethod
    def drop_topic(self) -> None:
        """Delete it, so that no round pays for those before it."""

    @abstractmethod
    def produce(self, batch: int, seconds: float) -> Sample:
        """So many messages a call, pipelined where the client can; all acknowledged at the end."""

    @abstractmethod
    def consume(self, batch: int, seconds: float) -> Sample:
        """What was produced, through a group of its own, acknowledged so many at a time."""

    @abstractmethod
    def lone(self, count: int) -> Sample:
        """One message at a time, each acknowledged before the next."""

    @abstractmethod
    def push(self, count: int) -> Sample:
        """From before a produce to when its message is in the hands of a waiting consumer."""

    @abstractmethod
    def clients(self, count: int, seconds: float) -> Sample:
        """So many clients with connections of their own, each producing one message at a time."""

    @abstractmethod
    def groups(self, count: int, seconds: float) -> Sample:
        """Messages that so many groups take and acknowledge, each all of them."""

    def pids(self) -> list[int]:
        """Its servers."""
        return [process.pid for process in self._processes]

    def watch(self) -> Stopwatch:
        return Stopwatch(self._watched)

    def next_name(self) -> str:
        """A name that was never used."""
        self._names += 1
        return f"n{self._names}"

    def spawn(self, *command: str, env: dict[str, str] | None = None) -> None:
        if shutil.which(command[0]) is None:
            raise NotInstalled(f"{command[0]} is not installed")
        with self._log(len(self._processes)).open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))

    def wait_for(self, port: int) -> None:
        """Until a server listens there."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            for number, process in enumerate(self._processes):
                if process.poll() is not None:
                    raise NotInstalled(f"it does not run here: {self._last_words(number)}")
            try:
                socket.create_connection((LOOPBACK, port), 1.0).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def _last_words(self, number: int) -> str:
        """Of a server's log, without the name of a folder that is gone soon."""
        lines = self._log(number).read_text(errors="replace").strip().splitlines()
        return lines[-1].replace(f"{self.folder}/", "") if lines else "it says nothing"

    def _log(self, number: int) -> Path:
        return self.folder / f"server-{number}.log"

    def batches_of(self, size: int) -> Callable[[], list[bytes]]:
        """An endless supply of lists of messages."""
        starts = range(0, len(self.values) - size + 1, size)
        lists = cycle([list(self.values[at : at + size]) for at in starts])
        return lambda: next(lists)

    def timed(
        self, seconds: float, step: Callable[[], int], finish: Callable[[], object] = lambda: None
    ) -> Sample:
        """Repeat `step` for a while, or until nothing is left; it tells how many it moved."""
        watch = self.watch()
        messages = moved = step()
        while moved and watch.seconds < seconds:
            moved = step()
            messages += moved
        finish()
        return watch.stop(messages)

    def timed_laps(self, count: int, step: Callable[[], object]) -> Sample:
        """Every one of `count` calls, after a few that warm up."""
        for _ in range(WARM_UP_LAPS):
            step()
        watch = self.watch()
        laps = []
        for _ in range(count):
            began = time.perf_counter()
            step()
            laps.append(time.perf_counter() - began)
        return watch.stop(count, laps)


class AsyncSystem(System):
    """One whose client needs an event loop: it runs in this thread, during the calls."""

    def __init__(self, *, nodes: int, fsync: bool) -> None:
        super().__init__(nodes=nodes, fsync=fsync)
        self._runner: asyncio.Runner | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return self._runner.run(work)

    def close_loop(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    async def timed_async(
        self,
        seconds: float,
        step: Callable[[], Awaitable[int]],
        finish: Callable[[], Awaitable[object]] | None = None,
    ) -> Sample:
        """As `timed`."""
        watch = self.watch()
        messages = moved = await step()
        while moved and watch.seconds < seconds:
            moved = await step()
            messages += moved
        if finish is not None:
            await finish()
        return watch.stop(messages)

    async def timed_laps_async(self, count: int, step: Callable[[], Awaitable[object]]) -> Sample:
        """As `timed_laps`."""
        for _ in range(WARM_UP_LAPS):
            await step()
        watch = self.watch()
        laps = []
        for _ in range(count):
            began = time.perf_counter()
            await step()
            laps.append(time.perf_counter() - began)
        return watch.stop(count, laps)

    async def timed_clients(
        self, seconds: float, produces: Sequence[Callable[[], Awaitable[object]]]
    ) -> Sample:
        """Each of these is called again and again, one call at a time."""

        async def repeat(produce: Callable[[], Awaitable[object]]) -> int:
            messages = 0
            while watch.seconds < seconds:
                await produce()
                messages += 1
            return messages

        await asyncio.gather(*(produce() for produce in produces))
        watch = self.watch()
        return watch.stop(sum(await asyncio.gather(*map(repeat, produces))))

    async def timed_pushes(
        self, count: int, produce: Callable[[], Awaitable[object]], arrivals: "Arrivals"
    ) -> Sample:
        """A consumer that waits tells `arrivals` of each message."""
        watch, laps = self.watch(), []
        for lap in range(-WARM_UP_LAPS, count):
            if lap == 0:
                watch = self.watch()
            arrivals.expect(1)
            began = time.perf_counter()
            await produce()
            await arrivals.wait()
            laps.append(arrivals.at - began)
            await asyncio.sleep(IDLE_SECONDS)
        return watch.stop(count, laps[WARM_UP_LAPS:])

    async def timed_fan_out(
        self, seconds: float, groups: int, produce: Callable[[], Awaitable[object]],
        arrivals: "Arrivals",
    ) -> Sample:  # fmt: skip
        """Every message is to arrive `groups` times; only a few are on their way at a time."""
        arrivals.expect(groups)
        await produce()
        await arrivals.wait()
        watch, messages = self.watch(), 0
        arrivals.expect(0)
        while watch.seconds < seconds:
            await produce()
            messages += 1
            arrivals.expect(groups * (messages - FAN_OUT_MAX), since=arrivals.since)
            await arrivals.wait()
        arrivals.expect(groups * messages, since=arrivals.since)
        await arrivals.wait()
        return watch.stop(messages)


class Arrivals:
    """Counts messages that came to consumers of this event loop, and when the last one came."""

    def __init__(self) -> None:
        self.at = 0.0
        self.since = 0
        self._count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def note(self, count: int = 1) -> None:
        self.at = time.perf_counter()
        self._count += count
        if self._count >= self._wanted:
            self._reached.set()

    def expect(self, count: int, *, since: int | None = None) -> None:
        """`wait` is for so many more than there were at `since`: without it, than there are."""
        self.since = self._count if since is None else since
        self._wanted = self.since + count
        if self._count < self._wanted:
            self._reached.clear()
        else:
            self._reached.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._reached.wait(), ARRIVAL_SECONDS_MAX)


def family(pid: int) -> list[psutil.Process]:
    """A process and those below it: some servers are started by a script."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """They and their children, without ado: what they store is deleted anyway."""
    for process in processes:
        children = family(process.pid)[1:]
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        # A script that started a server ends with it, and takes note of its end.
        with suppress(subprocess.TimeoutExpired):
            process.wait(SCRIPT_SECONDS_MAX if children else 0.0)
        process.kill()
    for process in processes:
        process.wait()


def version_of(package: str) -> str:
    """Of a Python package, with its name."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} (not installed)"


def free_ports(count: int) -> list[int]:
    """Ports that no process listens on; all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for listener in held:
            listener.bind((LOOPBACK, 0))
        return [listener.getsockname()[1] for listener in held]
    finally:
        for listener in held:
            listener.close()
