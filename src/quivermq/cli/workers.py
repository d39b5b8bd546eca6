"""Runs several brokers of one machine together: `quiver serve --workers N`.

A broker is one process on one core. Each worker is a `quiver serve` of its own; numbers, ports and
folders are in a row, other settings are those of all. This process holds no data: it starts the
workers, starts those again that die, passes signals on, and stops them one after the other, so that
each hands over what it leads. They end with it, however it ends (`local_brokers`).
"""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer

from quivermq.addresses import join_address, split_address
from quivermq.cli.errors import UsageError
from quivermq.cli.local_brokers import LOOPBACK, BrokerProcess, StopSignals, hold_free_address
from quivermq.cli.output import count, print_json, print_line, write_atomically
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.settings import BrokerSettings

logger = logging.getLogger("quivermq.workers")

_LISTENERS: Final = ("listen", "peer_listen", "http", "grpc")
_ADVERTISED: Final = ("advertise", "advertise_peer", "advertise_http")
_NOTE: Final = "workers.json"
_PID: Final = "workers.pid"
_PORT_LAST: Final = 65_535
_WATCH_SECONDS: Final = 0.1
_START_SECONDS: Final = 60.0
_GRACE_SECONDS: Final = 8.0
"""A worker may take so much longer to stop than its `stop_timeout_ms`."""
_STEADY_SECONDS: Final = 60.0
"""A worker that served for so long starts anew with a short pause."""
_PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0)
"""Before a worker that died is started again; after the last, all are stopped."""
_USAGE: Final = 2


class ForegroundOptions(NamedTuple):
    """How a command that runs in the foreground says that it serves, and what ends it."""

    ready_file: Path | None
    stop_on_eof: bool
    as_json: bool


class WorkerPlan(NamedTuple):
    """One worker: its number on this machine, its number as a broker, and its own settings."""

    number: int
    node_id: int
    folder: Path
    settings: dict[str, str]


# Planning.


def plan_workers(settings: BrokerSettings, founders: int) -> list[WorkerPlan]:
    """Numbers, ports and folders in a row. The first `founders` found a cluster with each other and
    `peers`; the others join them. Raises `UsageError` for what does not fit."""
    nodes = range(settings.node_id, settings.node_id + settings.workers)
    if taken := sorted(set(nodes) & settings.peers.keys()):
        raise UsageError(
            f"brokers {nodes[0]} to {nodes[-1]} are workers of this machine, and peers names "
            f"{taken[0]}: name only brokers elsewhere"
        )
    places = _places(settings)
    plans = []
    for index, (node, place) in enumerate(zip(nodes, places, strict=True)):
        peers = dict(settings.peers)
        for mate, other in zip(nodes, places, strict=True):
            if mate != node:
                peers[mate] = _reached(other["advertise_peer"] or other["peer_listen"])
        joins = settings.join
        if not joins and index >= founders:
            joins = _reached(places[0]["advertise"] or places[0]["listen"])
        shown = ",".join(f"{mate}={address}" for mate, address in sorted(peers.items()))
        folder = Path(settings.data_dir) / f"worker-{index + 1}"
        own = {"node_id": str(node), "data_dir": str(folder), "workers": "1", **place}
        own |= {"peers": "" if joins else shown, "join": joins}
        plans.append(WorkerPlan(index + 1, node, folder, own))
    return plans


def _places(settings: BrokerSettings) -> list[dict[str, str]]:
    """The addresses of each worker. Where the port is 0, each gets a free one."""
    with ExitStack() as held:
        found = [
            {
                name: _in_row(name, getattr(settings, name), index, held)
                for name in (*_LISTENERS, *_ADVERTISED)
            }
            for index in range(settings.workers)
        ]
    owner: dict[str, str] = {}
    for index, place in enumerate(found):
        for name in filter(place.get, _LISTENERS):
            who = f"{name} of worker {index + 1}"
            other = owner.setdefault(place[name], who)
            if other != who:
                raise UsageError(
                    f"{place[name]} would be {other} and {who}: choose ports further apart"
                )
    return found


def _in_row(name: str, address: str, index: int, held: ExitStack) -> str:
    if not address:
        return ""
    host, port = split_address(address)
    if not port:
        return hold_free_address(0, held, host) if name in _LISTENERS else address
    if port + index > _PORT_LAST:
        raise UsageError(
            f"{name} of worker {index + 1} would be port {port + index}: choose a lower one"
        )
    return join_address(host, port + index)


def _reached(address: str) -> str:
    """A worker's address for the others of this machine."""
    host, port = split_address(address)
    try:
        is_everywhere = ip_address(host).is_unspecified
    except ValueError:
        is_everywhere = False
    return join_address(LOOPBACK, port) if is_everywhere else address


# The data directory.


@contextmanager
def hold_data_dir(settings: BrokerSettings) -> Iterator[int]:
    """Take the data directory for these workers; yields how many of them founded, or found, a
    cluster. Raises `InvalidRequest` if it is another process's, or holds something else."""
    folder = Path(settings.data_dir)
    if (folder / "identity.json").exists():
        raise InvalidRequest(
            f"{folder} holds the data of one broker: start it without --workers, or name another "
            "--data-dir"
        )
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / _PID, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidRequest(
                f"another process uses {folder}: stop it, or name another --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        _check_folders(folder, settings.workers)
        yield _founders(folder, settings)
    finally:
        os.close(descriptor)


def _check_folders(folder: Path, workers: int) -> None:
    for found in sorted(folder.glob("worker-*")):
        number = found.name.removeprefix("worker-")
        if found.is_dir() and number.isdecimal() and int(number) > workers:
            raise InvalidRequest(
                f"{found} holds a broker: start at least {number} workers; or run `quiver cluster "
                "remove` for it first, and delete the folder"
            )


def _founders(folder: Path, settings: BrokerSettings) -> int:
    """Workers that are added later must join: the first ones would wait for their votes. So the
    number of founders is noted before any of them is started."""
    note = folder / _NOTE
    if note.exists():
        return int(json.loads(note.read_text())["founders"])
    founders = 0 if settings.join else settings.workers
    write_atomically(note, json.dumps({"founders": founders}) + "\n")
    return founders


def check_no_workers(data_dir: str) -> None:
    """Raise `InvalidRequest` if a directory for one broker holds workers."""
    if (Path(data_dir) / _NOTE).exists():
        held = sum(1 for _ in Path(data_dir).glob("worker-*/identity.json"))
        raise InvalidRequest(
            f"{data_dir} holds {count(held, 'worker')}: start it with --workers {held}, or name "
            "another --data-dir"
        )


# Running.


class Restarts:
    """Decides when a worker that died is started again."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def pause(self, served_seconds: float) -> float | None:
        """The seconds to wait; None: it died too often without serving for long."""
        if served_seconds >= _STEADY_SECONDS:
            self._in_a_row = 0
        if self._in_a_row == len(_PAUSES):
            return None
        self._in_a_row += 1
        return _PAUSES[self._in_a_row - 1]


class Worker(BrokerProcess):
    """One of the brokers; its log goes where ours goes."""

    def __init__(self, plan: WorkerPlan, flags: Sequence[str]) -> None:
        super().__init__(plan.node_id, plan.folder)
        self.number = plan.number
        self._flags = [*flags, *as_flags(plan.settings), "--worker", str(plan.number)]
        self._restarts = Restarts()
        self._started = 0.0
        self._due: float | None = None
        """When it is started again; None: it runs."""

    def start(self) -> None:
        self._started, self._due = time.monotonic(), None
        self.launch(self._flags, subprocess.DEVNULL)

    def exit_message(self) -> str:
        return f"worker {self.number}: {super().exit_message()}"

    def tend(self) -> None:
        """Start it again if it died and it is time. Raises `typer.Exit` if that has no use."""
        now = time.monotonic()
        if self._due is not None:
            if now >= self._due:
                self.start()
            return
        code = self.exit_code
        if code is None:
            return
        pause = None if code == _USAGE else self._restarts.pause(now - self._started)
        if pause is None:
            logger.critical("%s, and is not started again: all are stopped", self.exit_message())
            raise typer.Exit(code if code > 0 else 1)
        logger.error("%s; it is started again in %g s", self.exit_message(), pause)
        self._due = now + pause


class Workers:
    """All workers of this machine; as a context manager it starts and stops them."""

    def __init__(
        self, plans: Sequence[WorkerPlan], flags: Sequence[str], stop_seconds: float
    ) -> None:
        self.workers = [Worker(plan, flags) for plan in plans]
        self._stop_seconds = stop_seconds

    def __enter__(self) -> "Workers":
        for worker in self.workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """One after the other: those that still run take over what each of them leads."""
        killed = []
        for worker in self.workers:
            worker.send(signal.SIGTERM)
            if not worker.end(time.monotonic() + self._stop_seconds):
                killed.append(worker.number)
        if killed:
            logger.error("killed, as they did not stop in time: workers %s", killed)
            raise typer.Exit(1)

    def send(self, number: int) -> None:
        """Pass a signal on to those that serve."""
        for worker in self.workers:
            if worker.exit_code is None and worker.ready() is not None:
                worker.send(number)

    def kill(self) -> None:
        for worker in self.workers:
            worker.send(signal.SIGKILL)

    def wait_until_serving(self, stop: StopSignals) -> list[dict[str, Any]]:
        """Their addresses; empty if they are to stop. Raises `typer.Exit` if one ends instead: the
        next start would not help."""
        deadline = time.monotonic() + _START_SECONDS
        while not stop.wait(_WATCH_SECONDS):
            for worker in self.workers:
                if worker.exit_code is not None:
                    # It has said why.
                    raise typer.Exit(max(worker.exit_code, 1))
            ready = [worker.ready() for worker in self.workers]
            if None not in ready:
                pairs = zip(self.workers, ready, strict=True)
                return [{"worker": worker.number, **(told or {})} for worker, told in pairs]
            if time.monotonic() > deadline:
                raise InvalidRequest(f"not all workers serve after {_START_SECONDS:.0f} s")
        return []

    def watch(self, stop: StopSignals) -> None:
        """Until it is asked to stop."""
        while not stop.wait(_WATCH_SECONDS):
            for worker in self.workers:
                worker.tend()


def run_workers(
    settings: BrokerSettings,
    flags: Mapping[str, Any],
    config: Path | None,
    options: ForegroundOptions,
) -> None:
    """Run the workers until a signal stops them. `flags` are those of the command line."""
    stop_seconds = settings.stop_timeout_ms / 1000 + _GRACE_SECONDS
    with hold_data_dir(settings) as founders:
        plans = plan_workers(settings, founders)
        common = {name: value for name, value in flags.items() if name not in plans[0].settings}
        shared = [*(["--config", str(config)] if config is not None else []), *as_flags(common)]
        stop = StopSignals()
        workers = Workers(plans, shared, stop_seconds)
        _listen(workers, stop, settings, stop_on_eof=options.stop_on_eof)
        with workers:
            ready = workers.wait_until_serving(stop)
            if ready:
                _announce(ready, options)
                try:
                    workers.watch(stop)
                finally:
                    if options.ready_file is not None:
                        options.ready_file.unlink(missing_ok=True)
            logger.info("stopping the workers, one after the other; a second signal stops at once")


def _listen(
    workers: Workers, stop: StopSignals, settings: BrokerSettings, *, stop_on_eof: bool
) -> None:
    def kill(number: int) -> None:
        workers.kill()
        os._exit(128 + number)

    def pass_on(number: int, _: object) -> None:
        try:
            workers.send(number)
        except QuiverError:
            logger.warning("a worker that has just ended did not get signal %d", number)

    stop.on_second = kill
    signal.signal(signal.SIGUSR2, pass_on)
    if settings.tls_cert:
        signal.signal(signal.SIGHUP, pass_on)
    if stop_on_eof:
        threading.Thread(target=_await_eof, args=(stop,), daemon=True).start()


def _await_eof(stop: StopSignals) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.ask()


def _announce(ready: list[dict[str, Any]], options: ForegroundOptions) -> None:
    servers = ",".join(told["listen"] for told in ready)
    found = {"pid": os.getpid(), "servers": servers, "workers": ready}
    if options.ready_file is not None:
        write_atomically(options.ready_file, json.dumps(found))
    if options.as_json:
        print_json(found)
        return
    print_line(f"{count(len(ready), 'worker')} serving")
    for told in ready:
        doors = "".join(f"  {name} {told[name]}" for name in ("http", "grpc") if told[name])
        print_line(f"  broker {told['node_id']}  clients {told['listen']}{doors}")


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """Settings as the command line takes them."""
    found = []
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            found += [f"--{flag}", str(getattr(value, "value", value))]
    return found
