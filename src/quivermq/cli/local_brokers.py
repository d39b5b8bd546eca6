"""Starts brokers as processes of this machine, each a `quiver serve`.

They stop when the process that started them ends, however it ends: their standard input is a pipe
from it, which closes then.
"""

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from quivermq.addresses import join_address
from quivermq.errors import ConnectionFailed, InvalidRequest

LOOPBACK: Final = "127.0.0.1"
_FIRST_PORTS: Final = (7600, 7700, 9600, 7650)
_PLAN_FILE: Final = "brokers.json"
_POLL_SECONDS: Final = 0.02
_STOP_SECONDS_MAX: Final = 15.0


class StopSignals:
    """The first SIGINT or SIGTERM asks for an orderly stop, the second stops at once."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.on_second: Callable[[int], None] = lambda _: None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def ask(self) -> None:
        self._asked.set()

    def wait(self, seconds: float) -> bool:
        return self._asked.wait(seconds)

    def _receive(self, number: int, _: object) -> None:
        if self.asked:
            self.on_second(number)
        self._asked.set()


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """One broker's number and addresses."""

    node_id: int
    listen: str
    peer_listen: str
    http: str
    grpc: str = ""
    """Off in a directory of a release that had none."""


def plan(count: int, data_dir: Path, *, any_ports: bool = False) -> list[BrokerPlace]:
    """Choose numbers and addresses for `count` brokers; a `data_dir` in use keeps its own.

    The ports are the usual ones; where one is taken, or with `any_ports`, any free one.
    """
    file = data_dir / _PLAN_FILE
    if file.exists():
        places = [BrokerPlace(**place) for place in json.loads(file.read_text())]
        if len(places) != count:
            raise InvalidRequest(
                f"{data_dir} holds a cluster of {len(places)}: write --nodes {len(places)}, "
                "or another --data-dir"
            )
        return places
    with ExitStack() as held:
        places = [
            BrokerPlace(
                node_id,
                *(
                    hold_free_address(0 if any_ports else first + node_id - 1, held)
                    for first in _FIRST_PORTS
                ),
            )
            for node_id in range(1, count + 1)
        ]
    data_dir.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(place) for place in places], indent=2) + "\n")
    return places


def free_address(wanted: int) -> str:
    """An address of this machine that is free; at the port that is wanted, if that is."""
    with ExitStack() as held:
        return hold_free_address(wanted, held)


def hold_free_address(wanted: int, held: ExitStack, host: str = LOOPBACK) -> str:
    """Bind a free address; `held` keeps it until all are chosen, so that none is chosen twice."""
    for port in (wanted, 0):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = held.enter_context(socket.socket(family))
        # A port with connections that just closed is free too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            listener.bind((host, port))
            listener.listen()
            return join_address(host, listener.getsockname()[1])
    raise ConnectionFailed(f"no port is free on {host}")


class BrokerProcess:
    """A `quiver serve` that this process started, and that ends with it."""

    def __init__(self, node_id: int, data_dir: Path) -> None:
        self.node_id = node_id
        self.data_dir = data_dir
        self.process: subprocess.Popen[bytes] | None = None
        self._ready_file = data_dir.with_name(data_dir.name + ".ready")

    def launch(self, flags: Sequence[str], stdout: int | IO[bytes], stderr: Any = None) -> None:
        """Start it; `ready` says when it serves. By default its errors go where ours go."""
        self._ready_file.unlink(missing_ok=True)
        command = [
            sys.executable, "-m", "quivermq", "serve", *flags,
            "--ready-file", str(self._ready_file), "--stop-on-eof",
        ]  # fmt: skip
        self.process = subprocess.Popen(  # noqa: S603  (our own command)
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            # Ctrl-C reaches only our own process, which then stops the brokers in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None: it has not, or was never started."""
        return self.process.poll() if self.process is not None else None

    def ready(self) -> dict[str, Any] | None:
        """Its real addresses once it serves, else None. Raises if the process ended."""
        if self.exit_code is not None:
            raise ConnectionFailed(self.exit_message())
        if not self._ready_file.exists():
            return None
        found: dict[str, Any] = json.loads(self._ready_file.read_text())
        return found

    def exit_message(self) -> str:
        """One line about a process that ended."""
        code = self.exit_code or 0
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"broker {self.node_id} ended {how}"

    def send(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, deadline: float) -> bool:
        """Wait for its end until `deadline`, then kill it. False if it had to be killed."""
        if self.process is None:
            return True
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            if self.process.stdin is not None:
                self.process.stdin.close()
            self._ready_file.unlink(missing_ok=True)
        return True


class LocalBroker(BrokerProcess):
    """One broker of a local cluster, with a log file of its own."""

    def __init__(self, place: BrokerPlace, data_dir: Path) -> None:
        super().__init__(place.node_id, data_dir)
        self.place = place

    def start(self, peers: Iterable[BrokerPlace], flags: Sequence[str] = ()) -> None:
        """Start it; `ready` says when it serves."""
        others = ",".join(
            f"{place.node_id}={place.peer_listen}"
            for place in peers
            if place.node_id != self.node_id
        )
        own = [
            "--node-id", str(self.node_id),
            "--data-dir", str(self.data_dir),
            "--listen", self.place.listen,
            "--peer-listen", self.place.peer_listen,
            "--http", self.place.http,
            "--grpc", self.place.grpc,
            "--peers", others, "--join", "", "--advertise", "", "--advertise-peer", "",
            "--tls-cert", "", "--tls-key", "", "--tls-ca", "", "--no-peer-tls",
            "--workers", "1",
        ]  # fmt: skip
        with self.log_file.open("ab") as log:
            self.launch([*own, *flags], log, log)

    @property
    def log_file(self) -> Path:
        return self.data_dir.with_name(self.data_dir.name + ".log")

    def exit_message(self) -> str:
        """The same, with the last line of its log."""
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        last = f": {lines[-1]}" if lines else ""
        return f"{super().exit_message()}, see {self.log_file}{last}"


class LocalBrokers:
    """A cluster of local brokers; as a context manager, it starts and stops them."""

    def __init__(
        self, places: Sequence[BrokerPlace], data_dir: Path, flags: Sequence[str] = ()
    ) -> None:
        self._places = places
        self._flags = flags
        self.killed: list[int] = []
        self.brokers = [LocalBroker(place, data_dir / f"node-{place.node_id}") for place in places]

    def __enter__(self) -> "LocalBrokers":
        try:
            for broker in self.brokers:
                broker.start(self._places, self._flags)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def servers(self) -> str:
        """The addresses for clients."""
        return ",".join(broker.place.listen for broker in self.brokers)

    def wait_until_serving(
        self, timeout: float, on_progress: Callable[[int], bool] = lambda _: True
    ) -> None:
        """Wait until every broker serves. `on_progress` gets their number; False ends the wait."""
        deadline = time.monotonic() + timeout
        while on_progress(count := sum(broker.ready() is not None for broker in self.brokers)) and (
            count < len(self.brokers)
        ):
            if time.monotonic() > deadline:
                raise ConnectionFailed(
                    f"only {count} of {len(self.brokers)} brokers serve after {timeout:.0f} s, "
                    f"see {self.brokers[0].log_file.with_name('node-*.log')}"
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop all; `killed` lists those that did not stop in time."""
        for broker in self.brokers:
            broker.send(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS_MAX
        self.killed = [broker.node_id for broker in self.brokers if not broker.end(deadline)]

    def kill(self) -> None:
        """Kill all."""
        for broker in self.brokers:
            broker.send(signal.SIGKILL)
