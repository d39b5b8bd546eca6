"""`quiver health`: asks a broker on this machine whether it runs, for supervisors of containers."""

import http.client
import json
import ssl
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quivermq.addresses import join_address, split_address
from quivermq.cli import configuration
from quivermq.cli.options import AsJson, duration_option
from quivermq.cli.output import print_json, print_line
from quivermq.errors import ConnectionFailed, InvalidRequest

app = typer.Typer(add_completion=False)
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  (nothing is bound)


@app.command()
def health(
    ready: Annotated[
        bool, typer.Option("--ready", help="Ask whether it can be sent work, not only if it runs.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(envvar="QUIVER_CONFIG", metavar="FILE", help="The broker's TOML file."),
    ] = None,
    wait: Annotated[
        float, duration_option("How long to wait for its answer.", "--wait", show_default="3s")
    ] = 3.0,
    as_json: AsJson = False,
) -> None:
    """Ask the broker on this machine how it is; exit code 0 if all is well, else 1.

    It finds the broker by the same variables and file as quiver serve does, at
    the address for HTTP. It needs no token.
    """
    settings = configuration.load({}, config).settings
    if not settings.http:
        raise InvalidRequest("this broker has no HTTP: set http, or do not ask")
    status, told = _ask(
        settings.http, "/ready" if ready else "/health", is_tls=bool(settings.tls_cert), wait=wait
    )
    if status != 200:
        error = told.get("error", {})
        raise ConnectionFailed(error.get("message") or f"the broker answered {status}")
    if as_json:
        print_json(told)
    else:
        print_line(f"broker {told.get('node')} is {'ready' if ready else 'running'}")


def _ask(address: str, path: str, *, is_tls: bool, wait: float) -> tuple[int, dict[str, Any]]:
    host, port = split_address(address)
    host = _EVERYWHERE.get(host, host)
    asked = http.client.HTTPConnection(host, port, timeout=wait)
    if is_tls:
        asked = http.client.HTTPSConnection(host, port, timeout=wait, context=_any_certificate())
    try:
        asked.request("GET", path)
        answer = asked.getresponse()
        told = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        where = join_address(host, port)
        raise ConnectionFailed(f"no broker answers at {where}: {error or type(error)}") from error
    finally:
        asked.close()
    return answer.status, told if isinstance(told, dict) else {}


def _any_certificate() -> ssl.SSLContext:
    """Check no name: a certificate need not name this machine's own addresses, and nothing is
    sent that another could use."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
