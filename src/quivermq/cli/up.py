"""`quiver up`: runs a whole cluster on this machine, for trying it out and for development."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quivermq.cli.local_access import LocalAccess, protect
from quivermq.cli.local_brokers import LocalBrokers, StopSignals, plan
from quivermq.cli.local_portal import LocalPortal
from quivermq.cli.options import DEFAULT_SERVERS, AsJson, connect
from quivermq.cli.output import (
    count,
    numbers,
    print_error,
    print_json,
    print_line,
    print_table,
    remark,
    show_status,
    table,
)
from quivermq.errors import ConnectionFailed, QuiverError, Unauthenticated

app = typer.Typer(add_completion=False)
_START_SECONDS_MAX: Final = 60.0
_WATCH_SECONDS: Final = 0.25


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many brokers.")] = 3,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where data is kept; default: a temporary folder, deleted at the end.",
        ),
    ] = None,
    free_ports: Annotated[
        bool, typer.Option("--free-ports", help="Use any free ports instead of the usual ones.")
    ] = False,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="With TLS and users: certificates and an admin are made."),
    ] = False,
    portal: Annotated[
        bool, typer.Option("--portal/--no-portal", help="Also serve the portal, at port 8080.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Run a cluster on this machine, until Ctrl-C.

    Ports are 7600, 7601 ... for clients, 7700 ... between brokers, 9600 ... for
    HTTP and 8080 for the portal, or free ones where these are taken. Brokers in
    a --data-dir keep their ports.
    """
    with _data_dir(data_dir) as (folder, is_temporary):
        stop = StopSignals()
        access = protect(folder) if secure else LocalAccess()
        places = plan(nodes, folder, any_ports=free_ports)
        with ExitStack() as started_here:
            brokers = started_here.enter_context(LocalBrokers(places, folder, access.flags))
            stop.on_second = lambda _: brokers.kill()
            shown = LocalPortal(brokers.servers, access, folder, any_port=free_ports)
            if portal:
                started_here.enter_context(shown)
            started = time.monotonic()
            _wait_until_ready(brokers, access, stop, quiet=as_json)
            if not stop.asked:
                seconds = time.monotonic() - started
                is_new = access.make_admin(brokers.servers)
                _announce(brokers, access, shown, seconds, is_new=is_new, as_json=as_json)
                if is_temporary and not as_json:
                    remark(f"data is in {folder} and is deleted at the end; --data-dir keeps it")
                _watch(brokers, shown, stop)
            remark("stopping; Ctrl-C again stops at once")
        if brokers.killed:
            print_error(f"did not stop in time, killed: {numbers(brokers.killed)}", "warning")


@contextmanager
def _data_dir(named: Path | None) -> Iterator[tuple[Path, bool]]:
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named, False
        return
    folder = Path(tempfile.mkdtemp(prefix="quiver-"))
    try:
        yield folder, True
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(
    brokers: LocalBrokers, access: LocalAccess, stop: StopSignals, *, quiet: bool
) -> None:
    """Wait until all brokers serve and agree on a leader."""
    total = len(brokers.brokers)
    with show_status(f"starting {count(total, 'broker')}", quiet=quiet) as status:

        def show_progress(ready: int) -> bool:
            status.update(f"starting {count(total, 'broker')}: {ready} ready")
            return not stop.asked

        brokers.wait_until_serving(_START_SECONDS_MAX, show_progress)
        status.update("waiting until the brokers agree on a leader")
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not stop.asked and not _have_leader(brokers, access):
            if time.monotonic() > deadline:
                raise ConnectionFailed("the brokers elected no leader; see their logs")
            stop.wait(_WATCH_SECONDS)


def _have_leader(brokers: LocalBrokers, access: LocalAccess) -> bool:
    tls = access.tls_ca or False
    try:
        with connect(brokers.servers, timeout=2.0, tls=tls, token=access.token) as client:
            found = client.cluster()
    except Unauthenticated:
        raise access.refusal() from None
    except QuiverError as error:
        if not error.retriable:
            raise
        return False
    alive = sum(node.alive for node in found.nodes)
    return found.leader != 0 and alive == len(brokers.brokers)


def _announce(
    brokers: LocalBrokers,
    access: LocalAccess,
    portal: LocalPortal,
    seconds: float,
    *,
    is_new: bool,
    as_json: bool,
) -> None:
    if as_json:
        nodes = [
            {**asdict(broker.place), "pid": broker.pid, "log": str(broker.log_file)}
            for broker in brokers.brokers
        ]
        told: dict[str, Any] = {
            "servers": brokers.servers,
            "data_dir": str(portal.folder),
            "nodes": nodes,
        }
        if portal.address:
            told |= {"portal": portal.url, "portal_pid": portal.pid}
        if access.folder:
            told |= {"tls_ca": access.tls_ca, "token_file": access.token_file}
        print_json(told | ({"token": access.token} if is_new else {}))
        return
    made = table("node>", "clients", "http", "grpc", "pid>")
    scheme = "https" if access.tls_ca else "http"
    for broker in brokers.brokers:
        place = broker.place
        made.add_row(
            str(place.node_id),
            place.listen,
            f"{scheme}://{place.http}",
            place.grpc,
            str(broker.pid),
        )
    total = len(brokers.brokers)
    print_line(f"{count(total, 'broker')} ready after {seconds:.1f} s; Ctrl-C stops them", "bold")
    print_table(made)
    if portal.address:
        print_line(f"The portal: {portal.url}", "bold green")
    servers = brokers.servers.partition(",")[0]
    option = "" if servers == DEFAULT_SERVERS else f" --servers {servers}"
    option += access.options
    if is_new:
        print_line(f"The token of the user admin, shown only now: {access.token}")
    print_line("Try in another terminal:")
    for command in (
        *([f"export QUIVER_TOKEN=$(cat {access.token_file})"] if access.folder else []),
        f"quiver topic create orders --partitions {total}{option}",
        f"quiver produce orders hello world{option}",
        f"quiver consume orders{option}",
        f"quiver cluster status{option}",
    ):
        print_line(f"  {command}", "cyan")


def _watch(brokers: LocalBrokers, portal: LocalPortal, stop: StopSignals) -> None:
    """Wait until stopped; report brokers that end by themselves. Raises when none is left."""
    alive = list(brokers.brokers)
    while not stop.wait(_WATCH_SECONDS):
        for broker in [broker for broker in alive if broker.exit_code is not None]:
            alive.remove(broker)
            print_error(broker.exit_message(), label="warning")
        if message := portal.exit_message():
            print_error(message, label="warning")
        if not alive:
            raise ConnectionFailed("no broker is left")
