"""`quiver serve`: runs one broker, one gateway, or the workers of a machine, in the foreground."""

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quivermq.cli import configuration, log_lines
from quivermq.cli.options import DEFAULT_SERVERS, AsJson, with_options
from quivermq.cli.output import (
    print_error,
    print_json,
    print_line,
    print_table,
    remark,
    table,
    write_atomically,
)
from quivermq.cli.workers import ForegroundOptions, check_no_workers, run_workers
from quivermq.settings import BrokerSettings

if TYPE_CHECKING:
    from quivermq.errors import QuiverError
    from quivermq.transports import GatewayServer, Server

logger = logging.getLogger("quivermq.serve")
# Time to close, beyond the time to hand over leadership.
_STOP_GRACE_SECONDS: Final = 3.0
# Plain help: in 80 columns a table of so many flags would cut their names.
app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@with_options(configuration.setting_flags())
def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="QUIVER_CONFIG",
            metavar="FILE",
            help="A TOML file with settings; default: ./quiver.toml, if it exists.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show each setting and its source, and exit.")
    ] = False,
    as_json: AsJson = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the real addresses here, as JSON, once serving."),
    ] = None,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop also when standard input ends.")
    ] = False,
    worker: Annotated[int, typer.Option(hidden=True, help="Its number among workers.")] = 0,
    **flags: Any,
) -> None:
    """Run one broker, until Ctrl-C.

    Alone it is a cluster of one. With --peers it founds a cluster together
    with the brokers named there; with --join it becomes a member of one.

    With --gateway --join HOST:PORT,... it holds no data, and serves the
    clients of the cluster of those brokers.

    With --workers N it runs N brokers, for a machine with many cores: with
    numbers and ports in a row, each in a folder of the data directory.

    Each setting is a flag (--node-id), a variable (QUIVER_NODE_ID) and a key
    of the TOML file (node_id). The flag wins over the variable, the variable
    over the file, the file over the default; --print-config shows the source.
    """
    found = configuration.load(flags, config)
    if print_config:
        _print_config(found, as_json=as_json)
        return
    for warning in configuration.unknown_variables():
        print_error(warning, label="warning")
    settings = found.settings
    node_id = 0 if settings.gateway or settings.workers > 1 else settings.node_id
    log_lines.configure(settings.log_level, settings.log_format, node_id, worker)
    options = ForegroundOptions(ready_file, stop_on_eof, as_json)
    if settings.workers > 1:
        run_workers(settings, flags, config, options)
        return
    if not settings.gateway:
        check_no_workers(settings.data_dir)
    broker = _ForegroundBroker(settings, options, is_worker=bool(worker))
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(broker.run())


def _print_config(found: configuration.LoadedSettings, *, as_json: bool) -> None:
    values = found.settings.model_dump()
    values["cluster_secret"] = str(values["cluster_secret"])  # stars
    if as_json:
        print_json({name: {"value": values[name], "from": found.sources[name]} for name in values})
        return
    made = table("setting", "value", "from")
    for name, value in values.items():
        source = found.sources[name]
        style = "dim" if source == configuration.DEFAULT else ""
        made.add_row(name, _format(value), source, style=style)
    print_table(made)


def _format(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{node}={address}" for node, address in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


class _ForegroundBroker:
    """Runs a broker until a signal, or the end of standard input, stops it."""

    def __init__(
        self, settings: BrokerSettings, options: ForegroundOptions, *, is_worker: bool
    ) -> None:
        self._settings = settings
        self._ready_file, self._stop_on_eof, self._as_json = options
        self._is_worker = is_worker
        self._stopping = asyncio.Event()
        self._unfit: QuiverError | None = None

    async def run(self) -> None:
        # Not at the top: --print-config needs no broker.
        from quivermq.node import GarbagePolicy, refuse_pandas  # noqa: PLC0415
        from quivermq.transports import Server  # noqa: PLC0415

        refuse_pandas()
        self._listen_for_stop()
        server = self._make_server()
        await server.start()
        if server.host.tls is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, server.host.tls.reload)
        if isinstance(server, Server):
            levels = server.broker.log_levels
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, levels.toggle_debug)
        GarbagePolicy().start()
        try:
            self._announce(server)
            await self._stopping.wait()
        finally:
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
            await self._stop_server(server)
        if self._unfit is not None:
            raise self._unfit

    def _make_server(self) -> "Server | GatewayServer":
        from quivermq.transports import GatewayServer, Server  # noqa: PLC0415

        if self._settings.gateway:
            return GatewayServer(self._settings)
        server = Server(self._settings)
        server.broker.on_unfit = self._halt
        return server

    def _halt(self, error: "QuiverError") -> None:
        """Stop for good: only another release helps, and a process that stays looks healthy."""
        self._unfit = error
        self._stopping.set()

    async def _stop_server(self, server: "Server | GatewayServer") -> None:
        """Stop the server, or else the process: what was acknowledged is on disk."""
        seconds = self._settings.stop_timeout_ms / 1000 + _STOP_GRACE_SECONDS
        try:
            await asyncio.wait_for(server.stop(), seconds)
        except Exception:
            logger.exception("it did not stop in good order")
            sys.stdout.flush()
            os._exit(1)

    def _listen_for_stop(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        if self._stop_on_eof:
            loop.add_reader(sys.stdin.fileno(), self._read_input)

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            # The second signal does not wait: what was acknowledged is on disk.
            os._exit(128 + number)
        self._remark("stopping; a second signal stops at once")
        self._stopping.set()

    def _read_input(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stopping.set()

    def _announce(self, server: "Server | GatewayServer") -> None:
        addresses = {
            "listen": server.listen,
            "peer_listen": server.peer_listen,
            "http": server.http,
            "grpc": server.grpc,
        }
        ready = {"node_id": server.host.node_id, **addresses, "pid": os.getpid()}
        if self._ready_file is not None:
            write_atomically(self._ready_file, json.dumps(ready))
        if self._is_worker:
            return
        if self._as_json:
            print_json(ready)
            return
        if self._settings.gateway:
            print_line("a gateway is serving")
        else:
            print_line(f"broker {self._settings.node_id} is serving")
        print_line(f"  clients   {server.listen}")
        print_line(f"  brokers   {server.peer_listen or self._settings.join}")
        if server.http:
            scheme = "https" if self._settings.tls_cert else "http"
            print_line(f"  http      {scheme}://{server.http}/health")
        if server.grpc:
            print_line(f"  grpc      {server.grpc}")
        options = "" if server.listen == DEFAULT_SERVERS else f" --servers {server.listen}"
        if self._settings.tls_cert:
            options += f" --tls-ca {self._settings.tls_ca or 'system'}"
        self._remark(f"try: quiver topic create orders{options}")
        if self._settings.users and not self._knows_users(server):
            self._remark(f"users are on; make an admin, here: quiver user add NAME{options},")
            self._remark(f"  then quiver user grant NAME admin{options}")

    def _remark(self, text: str) -> None:
        """A hint for people; for machines standard error is JSON, line by line."""
        if self._is_worker:
            return
        if self._settings.log_format == "json":
            logger.info("%s", text)
        else:
            remark(text)

    def _knows_users(self, server: "Server | GatewayServer") -> bool:
        from quivermq.transports import Server  # noqa: PLC0415

        return not isinstance(server, Server) or bool(server.broker.metadata.view.users)


def _loop_factory() -> Any:
    try:
        import uvloop  # noqa: PLC0415  (not everywhere)
    except ImportError:
        return None
    return uvloop.new_event_loop
