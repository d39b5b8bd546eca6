"""`quiver portal`: serves web pages that show a cluster and act on it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from quivermq.cli.options import DEFAULT_SERVERS, AsJson, Servers, duration_option, timeout_option
from quivermq.cli.output import print_json, print_line, remark

app = typer.Typer(add_completion=False)


@app.command()
def portal(
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", envvar="QUIVER_PORTAL_LISTEN", help="Where browsers connect."
        ),
    ] = "127.0.0.1:8080",
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The portal's own certificate: HTTPS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let other machines reach it without TLS.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name that browsers may ask for it by, as a proxy's."),
    ] = None,
    interval: Annotated[
        float, duration_option("How often brokers are asked for figures.", show_default="2s")
    ] = 2.0,
    stop_on_eof: Annotated[
        bool, typer.Option("--stop-on-eof", help="Stop also when standard input ends.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Annotated[float, timeout_option("5s")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Serve the portal, until Ctrl-C.

    Where the cluster has users, everyone signs in with a token of their own,
    and sees and does what it allows. --token is for the portal itself: with it
    the portal takes samples before anybody has signed in.
    """
    # Not at the top: they take time to load.
    from quivermq.portal import PortalSettings, serve  # noqa: PLC0415

    def announce(address: str) -> None:
        if as_json:
            print_json({"portal": address, "servers": servers})
        else:
            print_line(f"the portal is at {address}; Ctrl-C stops it", "bold")
            remark(f"it shows the cluster of {servers}")

    serve(
        PortalSettings(
            servers=servers,
            listen=listen,
            token=os.environ.get("QUIVER_TOKEN", ""),
            tls_cert=str(tls_cert or ""),
            tls_key=str(tls_key or ""),
            insecure=insecure,
            host_names=tuple(name.lower() for name in host_name or ()),
            stop_on_eof=stop_on_eof,
            interval=interval,
            timeout=timeout,
            ready=announce,
        )
    )
