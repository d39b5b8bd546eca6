"""`quiver shell`: send, poll and acknowledge messages by hand.

On a terminal, prompt_toolkit edits the line, completes it and keeps the history. Otherwise the
shell runs the lines of standard input one after another, so that it can be scripted.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    complete_groups,
    complete_topics,
    connect,
)
from quivermq.cli.output import print_error, remark
from quivermq.cli.shell_commands import DEFAULT_GROUP, ShellCommands
from quivermq.errors import QuiverError

app = typer.Typer(add_completion=False)


@app.command()
def shell(
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC]", help="Begin with this topic.", autocompletion=complete_topics
        ),
    ] = None,
    group: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="The group to consume for.", autocompletion=complete_groups
        ),
    ] = DEFAULT_GROUP,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Send, poll and acknowledge messages by hand; `help` lists the commands.

    Lines of a pipe or file run one after another; if any of them fails, the
    exit code is 1.
    """
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    failures = 0
    with connect(servers, timeout) as client:
        commands = ShellCommands(client, as_json=as_json, is_interactive=is_interactive)
        try:
            if topic is not None:
                commands.run(f"subscribe {topic} {group}")
            for line in _typed_lines(commands) if is_interactive else _piped_lines():
                failures += not _run_line(commands, line)
                if commands.is_over:
                    break
        finally:
            with suppress(QuiverError):  # the leases expire anyway
                commands.close()
    if failures and not is_interactive:
        raise typer.Exit(1)


def _run_line(commands: ShellCommands, line: str) -> bool:
    """Run one line; False if it failed, after printing why."""
    try:
        commands.run(line)
    except (UsageError, QuiverError) as error:
        print_error(str(error) or type(error).__name__)
        return False
    except KeyboardInterrupt:
        if not commands.is_interactive:
            raise
        remark("interrupted")
    return True


def _piped_lines() -> Iterator[str]:
    return (line.rstrip("\n") for line in sys.stdin)


def _typed_lines(commands: ShellCommands) -> Iterator[str]:
    from quivermq.cli.shell_prompt import read_lines  # noqa: PLC0415  (scripts need no prompt)

    remark("help lists the commands; exit or Ctrl-D leaves")
    return read_lines(commands)
