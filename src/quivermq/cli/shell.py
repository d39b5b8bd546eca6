"""`quiver shell`: send, poll and acknowledge by hand.

On a terminal there are a prompt, completion and a history. Elsewhere lines of standard input are
done one after another, so that a shell can be scripted.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from quivermq.cli.misuse import Misuse
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    DEFAULT_TIMEOUT_SECONDS,
    AsJson,
    Servers,
    Timeout,
    connect,
)
from quivermq.cli.output import print_error, remark
from quivermq.cli.shell_session import DEFAULT_GROUP, Session
from quivermq.errors import QuiverError

app = typer.Typer(add_completion=False)

_HISTORY_LINES: Final = 1_000


@app.command()
def shell(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Begin with this topic.")
    ] = None,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="The group to consume for.")
    ] = DEFAULT_GROUP,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Send, poll and acknowledge by hand; `help` lists what can be said.

    Lines of a pipe or file are done one after another; if any of them failed,
    the exit code is 1.
    """
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    failures = 0
    with connect(servers, timeout) as client:
        session = Session(client, as_json=as_json, is_interactive=is_interactive)
        try:
            if topic is not None:
                session.run(f"subscribe {topic} {group}")
            lines = _typed_lines(session) if is_interactive else _piped_lines()
            for line in lines:
                failures += not _is_done(session, line)
                if session.is_over:
                    break
        finally:
            with suppress(QuiverError):  # leases expire by themselves
                session.close()
    if failures and not is_interactive:
        raise typer.Exit(1)


def _is_done(session: Session, line: str) -> bool:
    """Whether the line could be done; if not, it was said why."""
    try:
        session.run(line)
    except (Misuse, QuiverError) as error:
        print_error(str(error) or type(error).__name__)
        return False
    except KeyboardInterrupt:
        if not session.is_interactive:
            raise
        remark("interrupted")
    return True


def _piped_lines() -> Iterator[str]:
    return (line.rstrip("\n") for line in sys.stdin)


def _typed_lines(session: Session) -> Iterator[str]:
    remark("help lists what can be said; exit or Ctrl-D leaves")
    with _line_editing(session):
        while True:
            try:
                yield input(session.prompt)
            except EOFError:
                print(file=sys.stderr)
                return
            except KeyboardInterrupt:
                print(file=sys.stderr)


@contextmanager
def _line_editing(session: Session) -> Iterator[None]:
    """Completion by Tab and a history in the user's state directory, where Python has them."""
    try:
        import readline  # noqa: PLC0415  (not on every system, and of use on terminals only)
    except ImportError:
        yield
        return
    history = _history_file()
    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer_delims(" ")
    choices: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()].split()
            try:
                words = session.words_after(before)
            except QuiverError:
                words = []  # a broker that does not answer is told about when a command is run
            choices[:] = [word + " " for word in words if word.startswith(text)]
        return choices[state] if state < len(choices) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "quivermq" / "shell_history"
