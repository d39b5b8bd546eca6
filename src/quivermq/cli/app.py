"""The `quiver` command: its sub-commands, and how errors reach people.

Each sub-command lives in a module of its name with an `app`, imported when it is called: starting
`quiver` costs what that one command needs.
"""

import os
import sys
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperGroup

import quivermq
from quivermq.cli.misuse import Misuse
from quivermq.cli.output import print_error
from quivermq.errors import QuiverError

_RUN, _USE, _OPERATE = "Run brokers", "Use topics", "Operate"
# The names in the order of `quiver --help`: panel, and what it is for.
COMMANDS: Final = {
    "serve": (_RUN, "Run one broker, until Ctrl-C."),
    "up": (_RUN, "Run a cluster on this machine, until Ctrl-C."),
    "topic": (_USE, "Create, list, describe, alter and delete topics."),
    "produce": (_USE, "Send messages to a topic."),
    "consume": (_USE, "Read messages of a topic."),
    "group": (_USE, "List, describe, move and delete groups of consumers."),
    "dlq": (_USE, "List, show, put back and drop dead letters."),
    "delayed": (_USE, "List and cancel messages that wait for their time."),
    "shell": (_USE, "Send, poll and acknowledge by hand."),
    "pipeline": (_USE, "Run pipelines on Spark; archive topics to tables, and back."),
    "cluster": (_OPERATE, "Show and change the cluster: brokers, leaders, where data lies."),
    "doctor": (_OPERATE, "Look for trouble, and say what to do about it."),
    "bench": (_OPERATE, "Measure how fast messages come and go."),
    "verify": (_OPERATE, "Check every byte of a broker's data directory."),
}
# Wrong usage, as typer raises it; which library defines it differs between its versions.
_WrongUsage: Final[Any] = typer.BadParameter.__mro__[2]
_INTERRUPTED: Final = 130


class Commands(TyperGroup):
    """The sub-commands by name: a list of them needs no import, a call imports the one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(import_module(f"quivermq.cli.{name}").app)
        return name, command, rest


app = typer.Typer(
    name="quiver",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _placeholder() -> None:
    """Stands for a command in the list of commands; `Commands` puts the real one in its place."""


for _name, (_panel, _help) in COMMANDS.items():
    app.command(_name, help=_help, rich_help_panel=_panel)(_placeholder)


def _show_version(asked: bool) -> None:  # noqa: FBT001  (typer calls it with the flag's value)
    if asked:
        typer.echo(f"quiver {quivermq.__version__}")
        raise typer.Exit


@app.callback()
def quiver(
    *,
    _version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """QuiverMQ: a message queue whose log holds Apache Arrow record batches."""


def main() -> None:
    """Run the command line. Whatever goes wrong is one line on standard error.

    Exit code 1; 2 for wrong usage; 130 after Ctrl-C. `QUIVER_DEBUG=1` shows where errors come from.
    """
    try:
        code = app(standalone_mode=False, prog_name="quiver")
    except Exception as error:
        if os.environ.get("QUIVER_DEBUG"):
            raise
        code = _explain(error)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """Print one line for `error`; the exit code that goes with it."""
    if isinstance(error, typer.Abort):
        return _INTERRUPTED
    if isinstance(error, Misuse):
        print_error(str(error))
        return 2
    if isinstance(error, _WrongUsage):
        context = getattr(error, "ctx", None)
        hint = f" (try: {context.command_path} --help)" if context else ""
        message = error.format_message().strip()
        if message:  # else the help was shown instead
            print_error(message.rstrip(".") + hint)
        return int(error.exit_code)
    if isinstance(error, QuiverError):
        print_error(str(error) or error.code)
    elif isinstance(error, OSError):
        print_error(str(error))
    else:
        print_error(f"unexpected {type(error).__name__}: {error} (QUIVER_DEBUG=1 shows where)")
    return 1
