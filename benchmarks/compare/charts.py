"""Charts of a run as SVG: rates against batch sizes, latencies, processor time.

Every axis of figures is logarithmic: the systems differ by orders of magnitude. Colours follow the
reader's scheme, light or dark; systems differ by the shape of their marks, too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.compare.figures import SYSTEMS, Cell, Figure, Run

PANEL_WIDTH, PANEL_HEIGHT = 270, 190
LEFT, TOP, RIGHT, BOTTOM = 64, 64, 16, 34
GAP_X, GAP_Y = 64, 62
ROW_HEIGHT = 26
COLOURS = {
    "QuiverMQ": ("#c2410c", "#fb923c"),
    "Redis Streams": ("#0369a1", "#38bdf8"),
    "NATS JetStream": ("#047857", "#34d399"),
    "RabbitMQ": ("#a21caf", "#e879f9"),
    "Apache Kafka": ("#57534e", "#d6d3d1"),
}
"""On a light ground, on a dark one."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis: whole decades, laid on `start` to `end`."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> "Scale":
        low = math.floor(math.log10(min(values)))
        high = math.ceil(math.log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[tuple[float, str]]:
        for power in range(self.low, self.high + 1):
            yield self.at(10.0**power), short(10.0**power)


def short(value: float) -> str:
    """As people say it: 250 k, 1.2 M."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def draw_all(run: Run) -> dict[str, str]:
    """By the name of the file."""
    charts = {}
    for nodes in sorted({cell.nodes for cell in run.figures}):
        for work, title in (("produce", "produced"), ("consume", "consumed and acknowledged")):
            name = f"{work}-{nodes}.svg"
            charts[name] = _rates(
                run, nodes, work, f"{_nodes(nodes)}: messages {title} a second, by batch size"
            )
        charts[f"latency-{nodes}.svg"] = _latencies(run, nodes)
        charts[f"cpu-{nodes}.svg"] = _processors(run, nodes)
    return {name: drawn for name, drawn in charts.items() if drawn}


def _rates(run: Run, nodes: int, work: str, title: str) -> str:
    """A panel for each durability and message size."""
    cells = [cell for cell in run.figures if cell.nodes == nodes and cell.work == work]
    rows = sorted({cell.fsync for cell in cells})
    columns = sorted({cell.size for cell in cells})
    if not cells:
        return ""
    drawing = Drawing(title, len(columns), len(rows), PANEL_HEIGHT, run.systems())
    for row, fsync in enumerate(rows):
        for column, size in enumerate(columns):
            inside = [cell for cell in cells if cell.fsync == fsync and cell.size == size]
            if inside:
                head = f"{size:,} B, {_durability(fsync=fsync)}"
                drawing.panel(column, row, head)
                _lines(drawing, run, inside)
    return drawing.text()


def _lines(drawing: "Drawing", run: Run, cells: Sequence[Cell]) -> None:
    batches = sorted({cell.batch for cell in cells})
    rates = [run.figures[cell].per_second for cell in cells]
    scale = Scale.around(rates, drawing.y + PANEL_HEIGHT, drawing.y)
    step = PANEL_WIDTH / len(batches)
    places = {batch: drawing.x + (n + 0.5) * step for n, batch in enumerate(batches)}
    for y, label in scale.ticks():
        drawing.line(drawing.x, y, drawing.x + PANEL_WIDTH, y, "grid")
        drawing.label(drawing.x - 6, y + 4, label, "end")
    for batch, x in places.items():
        drawing.label(x, drawing.y + PANEL_HEIGHT + 16, f"{batch:,}", "middle")
    for system in reversed(run.systems()):
        points = [
            (places[cell.batch], scale.at(run.figures[cell].per_second))
            for cell in sorted(cells)
            if cell.system == system
        ]
        drawing.curve(points, system)


def _nodes(count: int) -> str:
    return "One node" if count == 1 else f"{count} nodes"


def _durability(*, fsync: bool) -> str:
    return "with fsync" if fsync else "without fsync"


def _latencies(run: Run, nodes: int) -> str:
    def ends(figure: Figure) -> tuple[float, float] | None:
        if figure.p50_us is None or figure.p99_us is None:
            return None
        return figure.p50_us, figure.p99_us

    works = {("lone", 0): "one message, acknowledged", ("push", 0): "produce to subscriber"}
    title = f"{_nodes(nodes)}: latency in µs, p50 filled, p99 hollow"
    return _spans(run, nodes, works, ends, title)


def _processors(run: Run, nodes: int) -> str:
    def ends(figure: Figure) -> tuple[float, float] | None:
        # Below the resolution of the kernel's clock there is nothing to draw.
        if min(figure.broker_us, figure.client_us) <= 0:
            return None
        return figure.broker_us, figure.client_us

    works = {
        ("produce", 1_000): "produce, 1,000 a call",
        ("consume", 1_000): "consume, 1,000 at a time",
    }
    title = f"{_nodes(nodes)}: processor seconds a million messages, brokers filled, client hollow"
    return _spans(run, nodes, works, ends, title)


def _spans(
    run: Run, nodes: int, works: dict[tuple[str, int], str],
    ends: Callable[[Figure], tuple[float, float] | None], title: str,
) -> str:  # fmt: skip
    """Two marks for each system, at the smallest size."""
    cells = [
        cell
        for cell, figure in run.figures.items()
        if cell.nodes == nodes and (cell.work, cell.batch) in works and ends(figure)
    ]
    if not cells:
        return ""
    size = min(cell.size for cell in cells)
    rows = sorted({cell.fsync for cell in cells})
    height = ROW_HEIGHT * len(run.systems())
    drawing = Drawing(title, len(works), len(rows), height, run.systems())
    for row, fsync in enumerate(rows):
        for column, (key, head) in enumerate(works.items()):
            inside = {
                cell.system: ends(run.figures[cell])
                for cell in cells
                if (cell.fsync, cell.size, (cell.work, cell.batch)) == (fsync, size, key)
            }
            if inside:
                drawing.panel(column, row, f"{head}, {_durability(fsync=fsync)}")
                _marks(drawing, {name: found for name, found in inside.items() if found}, height)
    return drawing.text()


def _marks(drawing: "Drawing", spans: dict[str, tuple[float, float]], height: float) -> None:
    values = [value for both in spans.values() for value in both]
    scale = Scale.around(values, drawing.x, drawing.x + PANEL_WIDTH)
    for x, label in scale.ticks():
        drawing.line(x, drawing.y, x, drawing.y + height, "grid")
        drawing.label(x, drawing.y + height + 16, label, "middle")
    names = [name for name in SYSTEMS if name in spans]
    for number, name in enumerate(names):
        y = drawing.y + (number + 0.5) * ROW_HEIGHT
        filled, hollow = (scale.at(value) for value in spans[name])
        drawing.line(filled, y, hollow, y, f"s{SYSTEMS.index(name)}")
        drawing.mark(hollow, y, name, is_hollow=True)
        drawing.mark(filled, y, name)


class Drawing:
    """Panels in rows and columns under a title and a legend; `x` and `y` are of the last panel."""

    def __init__(
        self, title: str, columns: int, rows: int, panel_height: float, systems: Sequence[str]
    ) -> None:
        self._panel_height = panel_height
        # The legend needs a width of its own.
        self._width = max(LEFT + columns * (PANEL_WIDTH + GAP_X) - GAP_X + RIGHT, 640)
        self._height = TOP + rows * (panel_height + GAP_Y) - GAP_Y + BOTTOM + 14
        self._title = title
        self._parts: list[str] = []
        self.x = self.y = 0.0
        self.label(16, 24, title, "start", "title")
        x = 24.0
        for system in systems:
            self.mark(x, 42, system)
            self.label(x + 10, 46, system, "start")
            x += 30 + 7.5 * len(system)

    def panel(self, column: int, row: int, head: str) -> None:
        self.x = LEFT + column * (PANEL_WIDTH + GAP_X)
        self.y = TOP + 16 + row * (self._panel_height + GAP_Y)
        self.label(self.x, self.y - 8, head, "start", "head")

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self._parts.append(f'<line class="{kind}" {ends}/>')

    def label(self, x: float, y: float, text: str, anchor: str, kind: str = "soft") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{kind}" {place}>{escape(text)}</text>')

    def curve(self, points: Sequence[tuple[float, float]], system: str) -> None:
        if not points:
            return
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        kind = f"curve s{SYSTEMS.index(system)}"
        self._parts.append(f'<polyline class="{kind}" points="{path}"/>')
        for x, y in points:
            self.mark(x, y, system)

    def mark(self, x: float, y: float, system: str, *, is_hollow: bool = False) -> None:
        number = SYSTEMS.index(system)
        sides = (0, 4, 3, 5, 6)[number]
        kind = f"s{number} {'hollow' if is_hollow else 'full'}"
        if not sides:
            self._parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
            return
        corners = " ".join(
            f"{x + 5 * math.sin(turn):.1f},{y - 5 * math.cos(turn):.1f}"
            for turn in (2 * math.pi * n / sides for n in range(sides))
        )
        self._parts.append(f'<polygon class="{kind}" points="{corners}"/>')

    def text(self) -> str:
        size = f'viewBox="0 0 {self._width:.0f} {self._height:.0f}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'aria-label="{escape(self._title)}">\n<title>{escape(self._title)}</title>\n'
            f'<style>{_style()}</style>\n<rect class="ground" width="100%" height="100%"/>\n'
            + "\n".join(self._parts)
            + "\n</svg>\n"
        )


def _style() -> str:
    def scheme(which: int, ground: str, ink: str, soft: str, grid: str) -> str:
        systems = "".join(
            f".s{number}{{stroke:{COLOURS[system][which]};fill:{COLOURS[system][which]}}}"
            for number, system in enumerate(SYSTEMS)
        )
        return (
            f".ground,.hollow{{fill:{ground}}}.title,.head{{fill:{ink}}}.soft{{fill:{soft}}}"
            f".grid{{stroke:{grid}}}{systems}.hollow{{fill:{ground}}}"
        )

    common = (
        "text{font:12px system-ui,sans-serif}.title{font-size:15px;font-weight:600}"
        ".head{font-weight:600;font-size:11px}.curve{fill:none!important;stroke-width:1.8}"
        "line{stroke-width:1.4}.grid{stroke-width:.8}polygon,circle{stroke-width:1.6}"
    )
    light = scheme(0, "#ffffff", "#1c1917", "#57534e", "#e7e5e4")
    dark = scheme(1, "#16181d", "#f5f5f4", "#a8a29e", "#34363c")
    return f"{common}{light}@media(prefers-color-scheme:dark){{{dark}}}"
