"""What commands print: tables, lines and JSON that read well on a terminal and in a pipe.

Results go to standard output; progress, hints and errors to standard error, so that a pipe carries
results only. Values that users chose are escaped: a topic's key cannot colour or clear a terminal.
"""

import json
import os
import sys
from collections.abc import Iterable
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table
from rich.text import Text

# Wide enough that no cell of ours is cut, where no terminal sets a limit.
_PIPE_COLUMNS: Final = 200


def results() -> Console:
    """Standard output. Made on each call: whoever redirects the stream is heard."""
    return _console(stderr=False)


def remarks() -> Console:
    """Standard error."""
    return _console(stderr=True)


def table(*columns: str) -> Table:
    """An empty table; a column whose name ends in `>` holds numbers: set right, and never cut."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        right = name.endswith(">")
        justify: JustifyMethod = "right" if right else "left"
        made.add_column(name.removesuffix(">"), justify=justify, no_wrap=right, overflow="fold")
    return made


def print_table(made: Table) -> None:
    results().print(made)


def print_line(text: str, style: str = "") -> None:
    """One line of results, as it is: markup in it means nothing."""
    results().print(Text(text, style=style), soft_wrap=True)


def print_json(value: Any) -> None:
    """One JSON document, for machines."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain) + "\n")


def remark(text: str, style: str = "dim") -> None:
    """One line that is no result: a hint, a note."""
    remarks().print(Text(text, style=style), soft_wrap=True)


def print_error(message: str, label: str = "error") -> None:
    """One clear line on standard error."""
    style = "bold red" if label == "error" else "bold yellow"
    line = " ".join(message.split())
    remarks().print(f"[{style}]{label}:[/] {escape(line)}", soft_wrap=True)


def shown(data: bytes, columns_max: int = 0) -> str:
    """Bytes of a user as one harmless line of text."""
    text = data.decode("utf-8", "backslashreplace")
    line = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    return line if not columns_max or len(line) <= columns_max else line[: columns_max - 1] + "…"


def numbers(values: Iterable[int]) -> str:
    """`1, 2, 3`, or a dash for none."""
    return ", ".join(map(str, values)) or "-"


def known(number: int | None, form: str = ",") -> str:
    """`1,234`, or `?` for what is not known."""
    return "?" if number is None else f"{number:{form}}"


def count(number: int | None, noun: str) -> str:
    """`1 topic`, `2 topics`, `? topics`."""
    if number is None:
        return f"? {noun}s"
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPE_COLUMNS
    return console


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)
