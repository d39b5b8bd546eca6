"""Every command of a broker below `deploy/` is started as it stands there, on ports that are free.

Only addresses, host names, and folders of the target machine are replaced.
"""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from quivermq.tls import make_certificates
from tests.cli.commands import COMMAND, environment, error_line, quiver, quiver_json
from tests.cli.conftest import wait_for_ready_file
from tests.deploy.files import PORTS, Started, started

STARTED = {one.name: one for one in started()}
COMPOSE = [name for name in STARTED if name.startswith("broker-")]
PODS = [name for name in STARTED if name.startswith("pod quiver-") and name[-1].isdigit()]
HASTE = {"QUIVER_TICK_MS": "50", "QUIVER_FSYNC": "never"}


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        taken = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


class Stage:
    """Where the commands of several machines run on one: what each text becomes."""

    def __init__(self, folder: Path, commands: Sequence[Started]) -> None:
        self.folder = folder
        self.ports: dict[tuple[str, int], int] = {}
        free = iter(free_ports(len(commands) * len(PORTS)))
        for one in commands:
            for port in PORTS.values():
                self.ports[host_of(one), port] = next(free)
        certificates = folder / "certificates"
        make_certificates(certificates)
        secret = folder / "cluster-secret"
        secret.write_text("0123456789abcdef0123456789abcdef")
        self.files = {secret.name: secret}
        self.files |= {path.name: path for path in certificates.iterdir()}

    def translate(self, text: str, own: str) -> str:
        """A setting as it is on this machine."""
        for (host, port), free in self.ports.items():
            text = text.replace(f"{host}:{port}", f"127.0.0.1:{free}")
            if host == own:
                text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{free}")
        for name, file in self.files.items():
            for place in ("/etc/quivermq", "/etc/quivermq-tls", "/etc/quivermq-secret"):
                text = text.replace(f"{place}/{name}", str(file))
        return text.replace("/var/lib/quivermq", str(self.folder / f"data-{own}"))

    def arguments(self, one: Started) -> list[str]:
        host = host_of(one)
        found = [self.translate(argument, host) for argument in one.arguments]
        if one.config is not None:
            file = self.folder / one.config.name
            file.write_text(self.translate(one.config.read_text(), host))
            found[found.index("--config") + 1] = str(file)
        return found

    def variables(self, one: Started) -> dict[str, str]:
        host = host_of(one)
        given = {"QUIVER_DATA_DIR": "/var/lib/quivermq", **one.variables}
        if one.config is not None and "data_dir" in one.config.read_text():
            del given["QUIVER_DATA_DIR"]
        return {name: self.translate(value, host) for name, value in given.items()}

    @contextmanager
    def running(self, *commands: Started) -> Iterator[list[subprocess.Popen[str]]]:
        """Start all, then wait: founding brokers wait for each other."""
        with ExitStack() as stack:
            processes = []
            for one in commands:
                processes.append(stack.enter_context(self._start(one)))
                stack.callback(processes[-1].kill)
            for one, process in zip(commands, processes, strict=True):
                wait_for_ready_file(process, self._ready_file(one))
            yield processes

    def _ready_file(self, one: Started) -> Path:
        return self.folder / f"{host_of(one)}.ready"

    def _start(self, one: Started) -> "subprocess.Popen[str]":
        more = ["--ready-file", str(self._ready_file(one)), "--stop-on-eof"]
        return subprocess.Popen(
            [*COMMAND, *self.arguments(one), *more],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment(**HASTE, **self.variables(one)),
            cwd=self.folder,
        )


def host_of(one: Started) -> str:
    """The name by which the other files call its machine."""
    if one.name == "systemd":
        return "host-1"
    pod = one.name.removeprefix("pod ")
    return f"{pod}.quiver" if pod != one.name and not one.is_gateway else pod


@contextmanager
def running(folder: Path, names: Sequence[str]) -> Iterator[Stage]:
    commands = [STARTED[name] for name in names]
    stage = Stage(folder, commands)
    brokers = [one for one in commands if not one.is_gateway]
    gateways = [one for one in commands if one.is_gateway]
    with stage.running(*brokers), stage.running(*gateways):
        yield stage


def health(stage: Stage, one: Started, *more: str) -> str:
    """What `quiver health` says, with the variables of the broker's container."""
    config = [str(stage.folder / one.config.name)] if one.config else []
    arguments = ["--config", *config] if config else []
    done = quiver("health", *more, *arguments, variables=stage.variables(one))
    return done.stdout if done.returncode == 0 else f"{done.returncode} {error_line(done, 1)}"


def until_ready(stage: Stage, one: Started) -> None:
    deadline = time.monotonic() + 30
    while "is ready" not in (said := health(stage, one, "--ready")):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def test_the_brokers_of_the_compose_file_become_a_cluster(tmp_path: Path) -> None:
    assert len(COMPOSE) == 3
    with running(tmp_path, [*COMPOSE, "gateway"]) as stage:
        for name in COMPOSE:
            assert "is running" in health(stage, STARTED[name])
            until_ready(stage, STARTED[name])
        servers = f"127.0.0.1:{stage.ports['gateway', PORTS['listen']]}"
        assert quiver("topic", "create", "orders", "--servers", servers).returncode == 0
        (topic,) = quiver_json("topic", "list", "--servers", servers)
        assert topic["name"] == "orders"
        nodes = quiver_json("cluster", "status", "--servers", servers)["nodes"]
        brokers = [stage.ports[name, PORTS["listen"]] for name in COMPOSE]
        assert {f"127.0.0.1:{port}" for port in brokers} <= {node["address"] for node in nodes}


def test_the_pods_become_a_cluster_that_lets_nobody_in_without_a_token(tmp_path: Path) -> None:
    assert len(PODS) == 3
    with running(tmp_path, PODS) as stage:
        for name in PODS:
            until_ready(stage, STARTED[name])
        first = STARTED[PODS[0]]
        connection = [
            *("--servers", f"127.0.0.1:{stage.ports[host_of(first), PORTS['listen']]}"),
            *("--tls-ca", str(stage.files["ca.pem"])),
        ]
        # As docs/deploying.md has it: the first admin is made beside a broker.
        token = quiver_json("user", "add", "root", *connection)["token"]
        assert quiver("user", "grant", "root", "admin", *connection).returncode == 0
        assert quiver("topic", "list", *connection, "--timeout", "2s").returncode == 1
        gateway = STARTED["pod quiver-gateway"]
        beside = Stage(tmp_path, [gateway])
        beside.ports |= stage.ports
        beside.files = stage.files
        with beside.running(gateway):
            until_ready(beside, gateway)
            port = beside.ports["quiver-gateway", PORTS["listen"]]
            through = ["--servers", f"127.0.0.1:{port}", *connection[2:], "--token", token]
            assert quiver("topic", "create", "orders", *through).returncode == 0
        nodes = quiver_json("cluster", "status", *connection, "--token", token)["nodes"]
        assert {1, 2, 3} <= {node["id"] for node in nodes}


def test_the_unit_starts_a_broker_that_stops_in_order(tmp_path: Path) -> None:
    one = STARTED["systemd"]
    stage = Stage(tmp_path, [one])
    with stage.running(one) as (process,):
        assert "broker 1 is running" in health(stage, one)
        # Two of its founding brokers are not there: it runs, and is not ready.
        assert health(stage, one, "--ready").startswith("1 ")
        process.terminate()
        assert process.wait(30) == 0
        _, said = process.communicate()
        assert "INSECURE" not in said


def test_health_says_what_is_wrong(tmp_path: Path) -> None:
    def said(**variables: str) -> str:
        return error_line(quiver("health", cwd=tmp_path, variables=variables), 1)

    assert "has no HTTP" in said(QUIVER_HTTP="")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = quiver("health", "--wait", "0.1s", variables={"QUIVER_HTTP": address}, cwd=tmp_path)
        assert f"no broker answers at {address}" in error_line(done, 1)
    assert f"no broker answers at {address}" in said(QUIVER_HTTP=address)
