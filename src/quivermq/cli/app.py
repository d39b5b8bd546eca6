"""The `quiver` command: its sub-commands, and how errors reach people."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import quivermq
from quivermq.cli.verify import verify
from quivermq.errors import QuiverError

app = typer.Typer(
    name="quiver",
    help="QuiverMQ: a message queue whose log holds Apache Arrow record batches.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(verify)


def _show_version(asked: bool) -> None:  # noqa: FBT001  (typer calls it with the flag's value)
    if asked:
        typer.echo(f"quiver {quivermq.__version__}")
        raise typer.Exit


@app.callback()
def quiver(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """QuiverMQ: a message queue whose log holds Apache Arrow record batches."""


def main() -> None:
    """Run the command line. Whatever goes wrong is one line on standard error, exit code 1."""
    try:
        app()
    except QuiverError as error:
        Console(stderr=True, soft_wrap=True).print(
            f"[bold red]error:[/] {escape(str(error))}", highlight=False, emoji=False
        )
        sys.exit(1)
