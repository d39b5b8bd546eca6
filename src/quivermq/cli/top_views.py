"""The tables of `quiver top`: columns, order, filter, and which columns fit a width. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from quivermq.cli.top_samples import TopSample
from quivermq.quantities import format_size

GAP: Final = 2
_NAME_COLUMNS: Final = 12
"""A name is cut to no less, unless the terminal is narrower than that."""
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `rank` says how soon it gives way on a narrow terminal: high ones first."""

    name: str
    field: str
    text: Callable[[Any], str]
    rank: int
    is_text: bool = False
    """Aligned left, and sorted from a to z; figures are aligned right, the largest first."""


@dataclass(frozen=True, slots=True)
class TopView:
    """A table: which rows of a sample, their columns, and the column that sorts at first."""

    name: str
    columns: tuple[Column, ...]
    sort: str
    empty: str

    def rows(self, sample: TopSample, *, with_system: bool = True) -> list[Any]:
        """The rows of a sample; without topics and groups of the system, if these are not wanted.

        Their names begin with `_`.
        """
        found: Sequence[Any] = getattr(sample, self.name)
        if with_system:
            return list(found)
        return [
            row
            for row in found
            if not (row.name.startswith("_") or getattr(row, "topic", "").startswith("_"))
        ]

    def column(self, name: str) -> Column:
        return next(each for each in self.columns if each.name == name)


@dataclass(frozen=True, slots=True)
class TopTable:
    """Cells as text, in columns of these widths."""

    columns: tuple[Column, ...]
    widths: tuple[int, ...]
    rows: list[tuple[Any, list[str]]]
    """Each row, and its cells."""

    def padded(self, cells: Sequence[str]) -> list[str]:
        """The cells, each cut and padded to its column."""
        found = []
        for column, width, cell in zip(self.columns, self.widths, cells, strict=True):
            text = cell if len(cell) <= width else cell[: max(0, width - 1)] + "…"
            found.append(text.ljust(width) if column.is_text else text.rjust(width))
        return found

    def line(self, cells: Sequence[str]) -> str:
        return (" " * GAP).join(self.padded(cells))


def arrange(rows: Sequence[Any], column: Column, *, is_reverse: bool, text: str) -> list[Any]:
    """The rows that have the text in a name, sorted: figures from the largest, names from a. Rows
    without a value come last either way."""
    wanted = text.lower()
    found = [
        row
        for row in rows
        if any(
            wanted in str(getattr(row, field, "")).lower() for field in ("name", "topic", "address")
        )
    ]
    found.sort(key=lambda row: row.name)
    known = [row for row in found if getattr(row, column.field) is not None]
    unknown = [row for row in found if getattr(row, column.field) is None]
    known.sort(key=lambda row: getattr(row, column.field), reverse=is_reverse is column.is_text)
    return known + unknown


def fit(columns: Sequence[Column], rows: Sequence[Any], width: int) -> TopTable:
    """The columns that a width has room for. The first one always stays, and is cut if it must."""
    texts = [[column.text(getattr(row, column.field)) for column in columns] for row in rows]
    natural = [
        max([len(column.name), *(len(cells[number]) for cells in texts)])
        for number, column in enumerate(columns)
    ]
    first = min(natural[0], _NAME_COLUMNS)
    left = width - first
    chosen = {0}
    for number in sorted(range(1, len(columns)), key=lambda number: columns[number].rank):
        if natural[number] + GAP <= left:
            left -= natural[number] + GAP
            chosen.add(number)
    order = sorted(chosen)
    widths = [natural[number] for number in order]
    widths[0] = min(natural[0], first + left)
    return TopTable(
        tuple(columns[number] for number in order),
        tuple(widths),
        [
            (row, [cells[number] for number in order])
            for row, cells in zip(rows, texts, strict=True)
        ],
    )


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as blocks of eight heights; the largest is the full one."""
    shown = list(values)[-width:]
    most = max(shown, default=0.0)
    if most <= 0:
        return _BLOCKS[1] * len(shown)
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(1, min(steps, round(value / most * steps)))] for value in shown)


def rate(value: float | None) -> str:
    """`1.2k`; `-` for an unknown one."""
    if value is None:
        return "-"
    if 0 < value < 9.95:
        return f"{value:.1f}"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:.1f}{unit}"
    return f"{value:.0f}"


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def size(value: float | None) -> str:
    return "-" if value is None else format_size(int(value))


def change(value: float | None) -> str:
    """`+3.0`, `-120`; nothing if there is none."""
    if value is None:
        return "-"
    if abs(value) < 0.05:
        return "0"
    return f"{'+' if value > 0 else '-'}{rate(abs(value))}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f}%"


def milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1000:.1f} ms"


def nodes(value: Sequence[int]) -> str:
    return ",".join(map(str, value)) or "none"


_RATES: Final = (
    Column("in/s", "in_rate", rate, 1),
    Column("out/s", "out_rate", rate, 2),
    Column("bytes in/s", "bytes_in", size, 8),
    Column("bytes out/s", "bytes_out", size, 9),
)
VIEWS: Final[Mapping[str, TopView]] = {
    "topics": TopView(
        "topics",
        (
            Column("topic", "name", str, 0, is_text=True),
            *_RATES,
            Column("messages", "messages", number, 5),
            Column("size", "size", size, 6),
            Column("lag", "lag", number, 3),
            Column("in flight", "in_flight", number, 7),
            Column("parts", "partitions", number, 11),
            Column("leaders", "leaders", nodes, 10, is_text=True),
            Column("health", "health", str, 4, is_text=True),
        ),
        "in/s",
        "no topics; quiver topic create TOPIC creates one",
    ),
    "groups": TopView(
        "groups",
        (
            Column("group", "name", str, 0, is_text=True),
            Column("topic", "topic", str, 2, is_text=True),
            Column("lag", "lag", number, 1),
            Column("change/s", "change", change, 5),
            Column("acked/s", "acked_rate", rate, 3),
            Column("in flight", "in_flight", number, 4),
            Column("dead", "dead", number, 7),
            Column("state", "state", str, 6, is_text=True),
        ),
        "lag",
        "no groups; quiver consume TOPIC --group NAME makes one",
    ),
    "brokers": TopView(
        "brokers",
        (
            Column("broker", "id", str, 0, is_text=True),
            Column("address", "address", str, 9, is_text=True),
            Column("state", "state", str, 1, is_text=True),
            Column("leads", "leads", number, 4),
            Column("replicas", "replicas", number, 10),
            *(
                Column(each.name, each.field, each.text, each.rank + 1 if each.rank < 8 else 13)
                for each in _RATES
            ),
            Column("clients", "connections", number, 7),
            Column("cpu", "cpu", percent, 5),
            Column("memory", "memory", size, 8),
            Column("disk free", "disk_free", size, 11),
            Column("fsync p99", "fsync", milliseconds, 6),
            Column("version", "version", str, 12, is_text=True),
        ),
        "broker",
        "no brokers",
    ),
}
