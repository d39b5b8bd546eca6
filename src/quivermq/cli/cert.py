"""`quiver cert`: makes a CA and certificates, for development and for trying TLS out."""

from pathlib import Path
from typing import Annotated

import typer

from quivermq.cli.options import AsJson, number_option
from quivermq.cli.output import print_json, print_line, remark

app = typer.Typer(add_completion=False)


@app.command()
def cert(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files are written.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="A name or IP address under which brokers are reached, beside localhost; may be "
            "given several times.",
        ),
    ] = None,
    days: Annotated[int, number_option("How long certificates are valid.", "--days")] = 365,
    as_json: AsJson = False,
) -> None:
    """Make a CA and certificates of it: for brokers (server.pem) and clients (client.pem).

    Keys are beside them (.key), and only you can read them. A CA that is in
    DIR already signs again: to run it again renews the certificates, which
    running brokers load by themselves. In production use a CA that guards its
    key better than a file does.
    """
    # Not at the top: help does not need it.
    from quivermq.tls import make_certificates  # noqa: PLC0415

    files = make_certificates(out, host or (), days)
    if as_json:
        print_json({"files": [str(file) for file in files], "ca": str(out / "ca.pem")})
        return
    for file in files:
        print_line(str(file))
    remark(f"brokers: quiver serve {' '.join(tls_flags(out))}")
    remark(f"clients: --tls-ca {out / 'ca.pem'}, or QUIVER_TLS_CA={out / 'ca.pem'}")


def tls_flags(folder: Path) -> list[str]:
    """The flags of a broker that uses these certificates, also towards other brokers."""
    return [
        "--tls-cert", str(folder / "server.pem"),
        "--tls-key", str(folder / "server.key"),
        "--tls-ca", str(folder / "ca.pem"),
        "--peer-tls",
    ]  # fmt: skip
