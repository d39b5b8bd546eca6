"""Runs one broker, or gateway, as a process, controlled by the test that started it.

    python -m quivermq.testing.broker_process '{"node_id": 1, "data_dir": "...", ...}'

Once it listens, it writes `{"listen": ..., "peer_listen": ..., "http": ...}` as a line to its
standard output. It stops gracefully at SIGTERM. At SIGUSR1 it writes to its log what each of its
threads and tasks is doing. Its standard input is a leash: when that ends, because the test died,
the process ends too. A line of JSON on it asks for a disturbance, and is answered with a line once
the disturbance is in force:

    {"sync_delay_ms": 200}     every fsync takes so much longer; 0 ends it
    {"stall_ms": 1000}         the event loop stands still for so long, once
    {"busy_ms": 300}           the event loop works for so long, as a fault of the broker would
    {"blocked_ms": 1500}       the same, without the processor
    {"clock_shift_s": 3600}    the wall clock is so far ahead of the machine's

A second argument, also JSON, tells of the surroundings from the start on: `clock_shift_s`, and
`disk_socket`, where `quivermq.testing.disks` serves the data directory. Releases that do not know
it take no notice of it.

The module name and this protocol stay: `Node.code` starts the brokers of other releases by them.
"""

import asyncio
import faulthandler
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from quivermq.errors import QuiverError
from quivermq.log import Disk, RealFile
from quivermq.node import GarbagePolicy, Machine, refuse_pandas
from quivermq.settings import BrokerSettings
from quivermq.testing.disks import RemoteDisk
from quivermq.transports import GatewayServer, Server

try:
    import uvloop
except ImportError:  # not everywhere
    uvloop = None  # type: ignore[assignment]

logger = logging.getLogger("quivermq.testing")


class SlowSync:
    """Makes every fsync of this process take longer."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        sync = RealFile.sync

        def slow(file: RealFile) -> None:
            if self.delay_s:
                time.sleep(self.delay_s)
            sync(file)

        RealFile.sync = slow  # type: ignore[method-assign]  # that is what this is for


class ShiftedClock:
    """Makes this process read another wall clock; steady clocks stay."""

    def __init__(self, shift_s: float = 0.0) -> None:
        self.shift_s = shift_s
        time_s, time_ns = time.time, time.time_ns
        time.time = lambda: time_s() + self.shift_s
        time.time_ns = lambda: time_ns() + round(self.shift_s * 1_000_000_000)


class MachineWithDisk(Machine):
    """A machine whose disk is reached through a socket."""

    def __init__(self, place: str) -> None:
        self._place = place

    def open_disk(self, data_dir: str) -> Disk:  # noqa: ARG002 - the socket serves this folder
        return RemoteDisk(self._place)


class Leash:
    """Carries out the requests of the test, in a thread: the event loop may be standing still."""

    def __init__(
        self,
        lines: IO[str],
        loop: asyncio.AbstractEventLoop,
        server: Server | GatewayServer,
        clock: ShiftedClock,
    ) -> None:
        self._clock = clock
        self._lines = lines
        self._server = server
        self._loop = loop
        self._slow_sync = SlowSync()
        threading.Thread(target=self._follow, name="leash", daemon=True).start()

    def _follow(self) -> None:
        for line in self._lines:
            self._disturb(**json.loads(line))
            say({})
        logger.warning("the process that started this broker is gone")
        os.kill(os.getpid(), signal.SIGKILL)

    def _disturb(
        self,
        sync_delay_ms: float | None = None,
        stall_ms: float = 0.0,
        busy_ms: float = 0.0,
        blocked_ms: float = 0.0,
        clock_shift_s: float | None = None,
    ) -> None:
        if clock_shift_s is not None:
            self._clock.shift_s = clock_shift_s
        if sync_delay_ms is not None:
            self._slow_sync.delay_s = sync_delay_ms / 1000
        if stall_ms:
            begun = threading.Event()
            self._loop.call_soon_threadsafe(self._stall, stall_ms / 1000, begun)
            begun.wait()
        if busy_ms:
            self._loop.call_soon_threadsafe(_work, busy_ms / 1000)
        if blocked_ms:
            self._loop.call_soon_threadsafe(time.sleep, blocked_ms / 1000)

    def _stall(self, seconds: float, begun: threading.Event) -> None:
        if self._server.watch is not None:
            self._server.watch.excuse()
        begun.set()
        time.sleep(seconds)


def _work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def say(what: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _tell_tasks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


async def serve(
    settings: BrokerSettings, *, disk_socket: str = "", clock_shift_s: float = 0.0
) -> None:
    clock = ShiftedClock(clock_shift_s)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, _tell_tasks)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=True)
    server: Server | GatewayServer
    if settings.gateway:
        server = GatewayServer(settings)
    else:
        server = Server(settings, MachineWithDisk(disk_socket) if disk_socket else None)
    Leash(sys.stdin, loop, server, clock)
    unfit: list[QuiverError] = []

    def halt(error: QuiverError) -> None:
        unfit.append(error)
        stop.set()

    if isinstance(server, Server):
        server.broker.on_unfit = halt
    await server.start()
    GarbagePolicy().start()
    say(
        {
            "listen": server.listen,
            "peer_listen": server.peer_listen,
            "http": server.http,
            "grpc": server.grpc,
        }
    )
    await stop.wait()
    await server.stop()
    if unfit:
        raise unfit[0]


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return None if uvloop is None else uvloop.new_event_loop


def main() -> int:
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)-8s %(name)s: %(message)s",
    )
    refuse_pandas()
    try:
        settings, *rest = (json.loads(argument) for argument in sys.argv[1:3])
        surroundings: dict[str, Any] = rest[0] if rest else {}
        # Only the hosts of a test reach its brokers. Earlier releases do not know these settings,
        # so the test does not name them. And the test itself wants the cores.
        usual = {"grpc": "", "insecure": True, "events": False, "busy_poll_us": 0}
        known = BrokerSettings(**{**usual, **settings})
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(known, **surroundings))
    except QuiverError as error:
        logger.critical("%s: %s", error.code, error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
