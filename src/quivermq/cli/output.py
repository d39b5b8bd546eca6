"""Prints tables, lines and JSON, for terminals and for pipes.

Results go to standard output; progress, hints and errors go to standard error, so that a pipe
carries results only. Values of users are escaped: a key cannot colour or clear a terminal.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.status import Status
from rich.table import Table
from rich.text import Text

from quivermq import quantities
from quivermq.moments import format_moment

# Wide enough that no cell is cut where no terminal sets a limit.
_PIPE_COLUMNS: Final = 200

count, numbers = quantities.count, quantities.numbers


def stdout_console() -> Console:
    """Standard output. Made on each call, since tests redirect the stream."""
    return _console(stderr=False)


def stderr_console() -> Console:
    """Standard error."""
    return _console(stderr=True)


def table(*columns: str) -> Table:
    """An empty table. A column whose name ends in `>` holds numbers: aligned right, never cut."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        right = name.endswith(">")
        justify: JustifyMethod = "right" if right else "left"
        made.add_column(name.removesuffix(">"), justify=justify, no_wrap=right, overflow="fold")
    return made


def print_table(made: Table) -> None:
    stdout_console().print(made)


def print_line(text: str, style: str = "") -> None:
    """Print one line of results as it is: markup in it has no effect."""
    stdout_console().print(Text(text, style=style), soft_wrap=True)


def write_atomically(file: Path, text: str) -> None:
    """Write the file at once, so that no reader sees half of it."""
    half = file.with_name(f".{file.name}.tmp")
    half.write_text(text)
    half.replace(file)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


@contextmanager
def show_status(text: str, *, quiet: bool) -> Iterator[Status]:
    """Show on standard error what is going on, if that is a terminal."""
    console = stderr_console()
    console.quiet = quiet or not console.is_terminal
    with console.status(text) as status:
        yield status


def remark(text: str, style: str = "dim") -> None:
    """Print a hint or a note on standard error."""
    stderr_console().print(Text(text, style=style), soft_wrap=True)


def print_error(message: str, label: str = "error") -> None:
    """Print an error as one line on standard error."""
    style = "bold red" if label == "error" else "bold yellow"
    line = " ".join(message.split())
    stderr_console().print(f"[{style}]{label}:[/] {escape(line)}", soft_wrap=True)


def printable(data: bytes, columns_max: int = 0) -> str:
    """Bytes of a user as one line of text without control characters."""
    text = data.decode("utf-8", "backslashreplace")
    line = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    return line if not columns_max or len(line) <= columns_max else line[: columns_max - 1] + "…"


def format_number(number: int | None, form: str = ",") -> str:
    """`1,234`, or `?` for an unknown number."""
    return "?" if number is None else f"{number:{form}}"


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_COLUMNS
    return console


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return format_moment(value) if isinstance(value, datetime) else str(value)
