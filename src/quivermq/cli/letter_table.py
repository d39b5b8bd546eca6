"""Prints dead letters as a table that fits: positions stay whole, users' texts are cut."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from rich.markup import escape

from quivermq.cli.output import format_number, print_table, printable, stdout_console, table

if TYPE_CHECKING:
    from quivermq.client import DeadLetter

_FIXED: Final = ("letter", "died", "from", "group", "tries>")
_BETWEEN: Final = 3
"""The width between two columns."""
_LEAST: Final = 6


def print_letters(letters: list["DeadLetter"], *, with_topic: bool = False) -> None:
    """Print at least one letter, in the order given."""
    fixed = [_fixed_cells(letter, letter.topic if with_topic else "") for letter in letters]
    free = [_free_cells(letter) for letter in letters]
    # Without keys, a column for them would only take room from the values.
    names = ["reason", "key", "value"] if any(cells[1] for cells in free) else ["reason", "value"]
    if "key" not in names:
        free = [[reason, value] for reason, _, value in free]
    heads = [name.removesuffix(">") for name in _FIXED]
    taken = sum(max(map(len, cells)) for cells in zip(heads, *fixed, strict=True))
    spare = stdout_console().width - taken - _BETWEEN * (len(_FIXED) + len(names))
    widths = _divide(spare, [max(map(len, cells)) for cells in zip(*free, strict=True)])
    made = table(*_FIXED, *names)
    for column in made.columns:
        column.no_wrap = True
    for whole, rest in zip(fixed, free, strict=True):
        cut = [_cut(text, width) for text, width in zip(rest, widths, strict=True)]
        made.add_row(*map(escape, [*whole, *cut]))
    print_table(made)


def format_died(letter: "DeadLetter", form: str = "") -> str:
    """The time at which the letter died; without `form`, as short as possible."""
    if not letter.died.isdecimal():
        return letter.died
    moment = datetime.fromtimestamp(int(letter.died) / 1000).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime(form or ("%H:%M:%S" if is_today else "%m-%d %H:%M"))


def _fixed_cells(letter: "DeadLetter", topic: str) -> list[str]:
    partition, offset = letter.original_partition, letter.original_offset
    place = f"{format_number(partition, 'd')}/{format_number(offset, 'd')}"
    return [
        f"{letter.partition}/{letter.offset}",
        format_died(letter),
        f"{printable(topic.encode())} {place}" if topic else place,
        letter.group,
        format_number(letter.deliveries, "d"),
    ]


def _free_cells(letter: "DeadLetter") -> list[str]:
    return [
        printable(letter.reason.encode()),
        printable(letter.key or b""),
        printable(letter.value),
    ]


def _divide(spare: int, wanted: list[int]) -> list[int]:
    """The width of each column: what it wants, or an equal share of what narrower ones leave."""
    widths = [0] * len(wanted)
    left, open_columns = spare, sorted(range(len(wanted)), key=lambda column: wanted[column])
    while open_columns:
        share = left // len(open_columns)
        column = open_columns.pop(0)
        widths[column] = max(_LEAST, min(wanted[column], share))
        left -= widths[column]
    return widths


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "…"
