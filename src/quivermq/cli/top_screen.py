"""The screen of `quiver top`: what it shows, and what its keys do. It knows no terminal.

`draw` makes lines of styled text for any size; `press` takes the name of a key.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from quivermq.cli.output import count, printable
from quivermq.cli.top_samples import BrokerRow, GroupRow, TopicRow, TopSample
from quivermq.cli.top_views import (
    GAP,
    VIEWS,
    TopTable,
    TopView,
    arrange,
    fit,
    number,
    rate,
    size,
    sparkline,
)

Line = list[tuple[str, str]]
"""Pieces of text with their styles, as prompt_toolkit takes them."""

_BOLD, _DIM, _HEAD = "bold", "fg:ansibrightblack", "reverse"
_GOOD, _WARN, _BAD = "fg:ansigreen", "fg:ansiyellow", "fg:ansired bold"
_SAMPLES: Final = 60
_CHART: Final = 12
_SMALL: Final = 9
"""A terminal with fewer lines shows the table, and little else."""
INTERVALS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
KEYS: Final = (
    ("1 2 3, Tab", "topics, groups, brokers"),
    ("s S", "sort by the next column, by the one before"),
    ("r", "reverse the order"),
    ("/", "show rows with this text; Enter keeps it, Esc drops it"),
    ("↑ ↓ PgUp PgDn", "scroll"),
    ("a", "show the system's topics and groups, or hide them"),
    ("space", "pause, go on"),
    ("+ -", "look more often, less often"),
    ("?", "show this list, or hide it"),
    ("q", "quit"),
)
_HINTS: Final = (
    "q quit", "? keys", "Tab view", "s sort", "/ filter", "r reverse", "space pause",
)  # fmt: skip


class Screen:
    """The state of the screen."""

    def __init__(
        self, view: str, *, sort: str = "", text: str = "", with_system: bool, interval: float
    ) -> None:
        self._sorts = {name: each.sort for name, each in VIEWS.items()}
        self._is_reverse = dict.fromkeys(VIEWS, False)
        self._view = view
        if sort:
            self._sorts[view] = sort
        self._text = text
        self._with_system = with_system
        self.interval = interval
        self.is_paused = False
        self.is_over = False
        self._is_typing = False
        self._is_help = False
        self._first = 0
        self._page = 1
        self._sample: TopSample | None = None
        self._trouble = ""
        self._taken = time.monotonic()
        self._actions: dict[str, Callable[[], None]] = {
            "r": self._reverse,
            "/": self._start_typing,
            "escape": self._drop_filter,
            " ": self._pause,
            "a": self._show_system,
            "?": self._show_help,
            "h": self._show_help,
            "+": self._hurry,
            "-": self._relax,
        }
        self._history: dict[str, deque[float]] = {
            name: deque(maxlen=_SAMPLES) for name in ("in", "out")
        }

    def take(self, sample: TopSample) -> None:
        """Show this sample from now on."""
        if self._sample is not None:
            self._history["in"].append(_total(sample, "in_rate"))
            self._history["out"].append(_total(sample, "out_rate"))
        self._sample, self._trouble, self._taken = sample, "", time.monotonic()

    def fail(self, trouble: str) -> None:
        """Keep the last sample, and say why there is no newer one."""
        self._trouble = printable(" ".join(trouble.split()).encode())

    def press(self, key: str) -> None:
        """Do what a key says: one letter, or a name as `up`, `tab`, `enter`, `escape`."""
        if self._is_typing:
            self._type(key)
        elif key in {"q", "c-c", "c-d", "<sigint>"}:
            self.is_over = True
        elif key in _VIEW_KEYS:
            self._view, self._first = _VIEW_KEYS[key], 0
        elif key in {"tab", "right", "s-tab", "left"}:
            self._view = _next(list(VIEWS), self._view, 1 if key in {"tab", "right"} else -1)
            self._first = 0
        elif key in {"s", "S"}:
            names = [each.name for each in VIEWS[self._view].columns]
            self._sorts[self._view] = _next(names, self._sorts[self._view], 1 if key == "s" else -1)
            self._is_reverse[self._view], self._first = False, 0
        elif key in self._actions:
            self._actions[key]()
        elif key in _SCROLLING:
            self._first = max(0, self._first + _SCROLLING[key](self._page))

    def draw(self, columns: int, lines: int) -> list[Line]:
        """At most so many lines of at most so many columns."""
        columns, lines = max(columns, 1), max(lines, 1)
        if self._is_help:
            drawn = self._help()
        elif self._sample is None:
            drawn = [[(_DIM, self._trouble or "asking the brokers …")]]
        else:
            drawn = self._picture(self._sample, columns, lines)
        return [_cut(line, columns) for line in drawn[:lines]]

    def _type(self, key: str) -> None:
        if key in {"enter", "escape", "c-c", "<sigint>"}:
            self._is_typing = False
            self._text = self._text if key == "enter" else ""
        elif key in {"backspace", "c-h"}:
            self._text = self._text[:-1]
        elif len(key) == 1 and key.isprintable():
            self._text += key
        self._first = 0

    def _start_typing(self) -> None:
        self._is_typing, self._text = True, ""

    def _drop_filter(self) -> None:
        self._text, self._is_help = "", False

    def _pause(self) -> None:
        self.is_paused = not self.is_paused

    def _reverse(self) -> None:
        self._is_reverse[self._view] = not self._is_reverse[self._view]

    def _show_system(self) -> None:
        self._with_system = not self._with_system

    def _show_help(self) -> None:
        self._is_help = not self._is_help

    def _hurry(self) -> None:
        self.interval = max((each for each in INTERVALS if each < self.interval), default=0.5)

    def _relax(self) -> None:
        self.interval = min((each for each in INTERVALS if each > self.interval), default=30.0)

    def _picture(self, sample: TopSample, columns: int, lines: int) -> list[Line]:
        view = VIEWS[self._view]
        head = [self._title(sample, columns)]
        if lines >= _SMALL:
            head += [self._totals(sample, columns), _finding(sample)]
        head.append(self._tabs(view))
        self._page = max(1, lines - len(head) - 2)
        rows = arrange(
            view.rows(sample, with_system=self._with_system),
            view.column(self._sorts[self._view]),
            is_reverse=self._is_reverse[self._view],
            text=self._text,
        )
        self._first = max(0, min(self._first, len(rows) - self._page))
        shown = rows[self._first : self._first + self._page]
        table = fit(view.columns, shown, columns)
        body: list[Line] = [self._table_head(table, columns)]
        body += [[(_style(row), table.line(cells))] for row, cells in table.rows]
        if not rows:
            nothing = f"nothing has {self._text!r} in its name" if self._text else view.empty
            body.append([(_DIM, nothing)])
        blank: list[Line] = [[] for _ in range(lines - len(head) - len(body) - 1)]
        return [*head, *body, *blank, self._foot(len(rows), columns)]

    def _title(self, sample: TopSample, columns: int) -> Line:
        away = time.monotonic() - self._taken
        if self._trouble:
            return [(_BAD, f"no answer for {away:.0f} s: {self._trouble}")]
        nodes = sample.cluster.nodes
        alive = sum(node.alive for node in nodes)
        brokers = count(len(nodes), "broker")
        line: Line = [
            (_BOLD, "quiver top"),
            ("", "  "),
            (_GOOD if alive == len(nodes) else _BAD, f"{brokers}, {alive} alive"),
        ]
        if not sample.cluster.leader:
            line.append((_BAD, "  no leader"))
        moment = time.strftime("%H:%M:%S", time.localtime(sample.at))
        room = columns - sum(len(text) for _, text in line) - len(moment)
        if room >= 2:
            line.append((_DIM, " " * room + moment))
        return line

    def _totals(self, sample: TopSample, columns: int) -> Line:
        """With charts and bytes where there is room for them."""
        for chart, with_bytes in ((_CHART, True), (_CHART // 2, True), (0, True), (0, False)):
            line = self._totals_with(sample, chart, with_bytes=with_bytes)
            if sum(len(text) for _, text in line) <= columns:
                break
        return line

    def _totals_with(self, sample: TopSample, chart: int, *, with_bytes: bool) -> Line:
        line: Line = []
        for name, messages, data in (
            ("in", "in_rate", "bytes_in"),
            ("out", "out_rate", "bytes_out"),
        ):
            line += [(_DIM, f"{name} "), (_BOLD, f"{rate(_total(sample, messages))}/s")]
            if with_bytes:
                line.append(("", f" {size(_total(sample, data))}/s"))
            if chart:
                line.append((_GOOD, f" {sparkline(self._history[name], chart).rjust(chart)}"))
            line.append(("", "  "))
        for name, field in (("lag", "lag"), ("in flight", "in_flight")):
            total = sum(getattr(row, field) for row in sample.topics)
            line += [("", "  " if name == "in flight" else ""), (_DIM, f"{name} ")]
            line.append((_BOLD, number(total)))
        return line

    def _tabs(self, view: TopView) -> Line:
        line: Line = []
        for place, name in enumerate(VIEWS, 1):
            style = f"{_HEAD} {_BOLD}" if name == self._view else _DIM
            line += [(style, f" {place} {name} "), ("", " ")]
        column = view.column(self._sorts[self._view])
        arrow = "↑" if column.is_text is not self._is_reverse[self._view] else "↓"
        line.append((_DIM, f" by {column.name} {arrow}"))
        if self._text and not self._is_typing:
            line.append((_WARN, f"  filter: {self._text}"))
        if self.is_paused:
            line.append((_WARN, "  paused"))
        return line

    def _table_head(self, table: TopTable, columns: int) -> Line:
        """The names of the columns, over the whole width; the one that sorts stands out."""
        line: Line = []
        names = table.padded([each.name.upper() for each in table.columns])
        for column, name in zip(table.columns, names, strict=True):
            is_sorting = column.name == self._sorts[self._view]
            gap = " " * GAP if line else ""
            line += [(_HEAD, gap), (f"{_HEAD} {_BOLD} underline" if is_sorting else _HEAD, name)]
        used = sum(len(text) for _, text in line)
        return [*line, (_HEAD, " " * (columns - used))]

    def _foot(self, rows: int, columns: int) -> Line:
        if self._is_typing:
            return [(_BOLD, "/"), ("", self._text), (_HEAD, " ")]
        last = min(rows, self._first + self._page)
        if rows > self._page:
            where = f"{self._first + 1}-{last} of {rows:,}"
        else:
            where = count(rows, self._view.removesuffix("s"))
        line = f"{where} · every {self.interval:g}s"
        for hint in _HINTS:
            if len(line) + len(hint) + 3 <= columns:
                line += f" · {hint}"
        return [(_DIM, line)]

    def _help(self) -> list[Line]:
        width = max(len(keys) for keys, _ in KEYS)
        lines: list[Line] = [[(_BOLD, "Keys of quiver top")], []]
        for keys, meaning in KEYS:
            lines.append([(_BOLD, keys.ljust(width + 2)), ("", meaning)])
        return lines


_VIEW_KEYS: Final = {str(place): name for place, name in enumerate(VIEWS, 1)}
_SCROLLING: Final[dict[str, Callable[[int], int]]] = {
    "up": lambda _: -1,
    "k": lambda _: -1,
    "down": lambda _: 1,
    "j": lambda _: 1,
    "pageup": lambda page: -page,
    "pagedown": lambda page: page,
    "home": lambda _: -(10**9),
    "end": lambda _: 10**9,
}


def _next(names: list[str], now: str, step: int) -> str:
    return names[(names.index(now) + step) % len(names)]


def _total(sample: TopSample, field: str) -> float:
    return float(sum(getattr(row, field) or 0.0 for row in sample.topics))


def _finding(sample: TopSample) -> Line:
    """The worst finding, and how many more there are."""
    if not sample.findings:
        return [(_GOOD, "nothing needs attention")]
    worst = min(sample.findings, key=lambda each: each.level != "bad")
    more = len(sample.findings) - 1
    style = _BAD if worst.level == "bad" else _WARN
    rest = f"; {more} more, see quiver doctor" if more else ""
    return [(style, f"{printable(worst.text.encode())}{rest}")]


def _style(row: Any) -> str:
    if isinstance(row, TopicRow):
        return {"no leader": _BAD, "replicas behind": _WARN}.get(row.health, "")
    if isinstance(row, GroupRow):
        return _WARN if row.state == "nobody works" else ""
    if isinstance(row, BrokerRow):
        return "" if row.state in {"serving", "leader"} else _BAD
    return ""


def _cut(line: Line, columns: int) -> Line:
    left, cut = columns, []
    for style, text in line:
        cut.append((style, text[:left]))
        left -= len(text[:left])
    return cut
