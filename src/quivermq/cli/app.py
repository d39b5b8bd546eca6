"""The `quiver` command and the list of its sub-commands.

Each sub-command is the `app` of the module of its name, imported only when it is called: `quiver`
starts as fast as that one command allows.
"""

import gc
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

import quivermq
from quivermq.cli.errors import INTERRUPTED, report_error
from quivermq.cli.options import add_connection_options

# Imports make very many objects that stay: to look through them for garbage again and again takes a
# twentieth of a short command's time.
_YOUNG_OBJECTS: Final = 50_000
_ZSH_CALL: Final = '[[ $zsh_eval_context[-1] == loadautofunc ]] && _quiver_completion "$@"'
_RUN, _USE, _OPERATE = "Run brokers", "Use topics", "Operate"
# In the order of `quiver --help`: the panel and the help of each.
COMMANDS: Final = {
    "serve": (_RUN, "Run one broker, until Ctrl-C."),
    "up": (_RUN, "Run a cluster on this machine, until Ctrl-C."),
    "portal": (_RUN, "Serve web pages that show a cluster, until Ctrl-C."),
    "cert": (_RUN, "Make a CA and certificates, for development."),
    "topic": (_USE, "Create, list, describe, alter and delete topics."),
    "produce": (_USE, "Send messages to a topic."),
    "consume": (_USE, "Read messages of a topic."),
    "group": (_USE, "List, describe, move and delete consumer groups."),
    "dlq": (_USE, "List, show, redrive and purge dead letters."),
    "delayed": (_USE, "List and cancel delayed messages."),
    "shell": (_USE, "Send, poll and acknowledge messages by hand."),
    "pipeline": (_USE, "Run pipelines on Spark; archive topics to tables, and replay them."),
    "user": (_OPERATE, "Add, remove and list users, and change what they may do."),
    "cluster": (_OPERATE, "Show and change the cluster: brokers, leaders, replicas."),
    "top": (_OPERATE, "Show brokers, topics and groups while they work, on one screen."),
    "events": (_OPERATE, "Show what happened in the cluster, and what happens."),
    "backup": (_OPERATE, "Back a running cluster up into a folder, and verify backups."),
    "restore": (_OPERATE, "Restore a backup into a cluster."),
    "doctor": (_OPERATE, "Check the cluster, and say how to fix what is wrong."),
    "bench": (_OPERATE, "Measure produce and consume throughput, and latency."),
    "health": (_OPERATE, "Ask the broker on this machine whether it runs."),
    "verify": (_OPERATE, "Check every byte of a broker's data directory."),
}


class LazyCommands(TyperGroup):
    """Imports a sub-command when it is called; listing them imports none."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = typer.main.get_command(import_module(f"quivermq.cli.{name}").app)
            add_connection_options(command)
        return name, command, rest


app = typer.Typer(
    name="quiver",
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _placeholder() -> None:
    """Holds a command's place in the list; `LazyCommands` resolves the real one."""


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


def _join_words() -> None:
    """Bash tells what was typed as words that it also split at : and =, as in `host:7600`."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    current = int(os.environ.get("COMP_CWORD", "0"))
    joined: list[str] = []
    for number, word in enumerate(words):
        if joined and (word in {":", "="} or joined[-1].endswith((":", "="))):
            joined[-1] += word
        else:
            joined.append(word)
        if number == current:
            os.environ["COMP_CWORD"] = str(len(joined) - 1)
    os.environ["COMP_WORDS"] = "\n".join(joined)


def _finish_zsh_completion() -> None:
    """Let zsh complete at the first Tab of a session: that Tab loads the file that typer has
    written, which defines a function and does not call it."""
    from quivermq.cli.output import write_atomically  # noqa: PLC0415  (most commands do without)

    file = Path.home() / ".zfunc" / "_quiver"
    if file.is_file() and _ZSH_CALL not in (text := file.read_text()):
        # Who closes the terminal now kills this: half a file would complete nothing, for ever.
        write_atomically(file, f"{text.rstrip()}\n\n{_ZSH_CALL}\n")


def main() -> None:
    """Run the command line. An error becomes one line on standard error.

    The exit code is 1, 2 for wrong usage, 130 after Ctrl-C. `QUIVER_DEBUG=1` shows the traceback.
    """
    if os.environ.get("_QUIVER_COMPLETE") == "complete_bash":
        _join_words()
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        code = app(standalone_mode=False, prog_name="quiver")
    except Exception as error:
        if os.environ.get("QUIVER_DEBUG"):
            raise
        code = report_error(error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit:
        if sys.argv[1:] == ["--install-completion"]:
            _finish_zsh_completion()
        raise
    finally:
        gc.set_threshold(*before)
    sys.exit(code if isinstance(code, int) else 0)
