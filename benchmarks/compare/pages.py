"""Tables of a run, and the marked regions of the pages that show them.

What stands between the two marks of a region is rewritten from the file of the last run, and is
never edited by hand: a test compares them.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.compare.charts import draw_all, short
from benchmarks.compare.figures import OURS, Best, Cell, Conditions, Run
from benchmarks.compare.goals import TIMES, judge

ROOT = Path(__file__).parents[2]
RESULTS_FILE = Path("benchmarks/compare/results.json")
RESULTS_PAGE = Path("benchmarks/RESULTS.md")
README = Path("README.md")
CHARTS = Path("benchmarks/charts")
BEGIN, END = "<!-- compare: begin -->", "<!-- compare: end -->"
TITLES = {
    "produce": "produce, {batch} a call",
    "consume": "consume and acknowledge, {batch} at a time",
    "lone": "one message, acknowledged: p50",
    "push": "produce to subscriber: p50",
    "clients": "{batch} clients, one message at a time",
    "groups": "{batch} groups, message by message",
    "poll": "poll of {batch} and ack, both waited for; others: consume",
    "default poll": "poll without a number",
    "arrow": "consume as Arrow, {batch} at a time; others: as messages",
    "sticky": "sticky consumer, {batch} at a time; others: consume",
    "handler": "subscribe with a handler a message; others: consume 1 at a time",
}
ORDER = tuple(TITLES)
README_COLUMNS = 105
README_BATCHES = (1, 100, 10_000)
README_WORKS = (
    ("lone", 0), ("push", 0), ("clients", 64), ("poll", 1), ("poll", 1_000), ("handler", 0),
)  # fmt: skip


def rewrite(run: Run, root: Path = ROOT) -> None:
    """The pages and charts below `root`, from this run."""
    for path, text in pages(run, root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    wanted = {root / CHARTS / name for name in draw_all(run)}
    for chart in (root / CHARTS).glob("*.svg"):
        if chart not in wanted:
            chart.unlink()


def pages(run: Run, root: Path) -> dict[Path, str]:
    """What each file should contain."""
    found = {
        root / RESULTS_PAGE: results_region(run),
        root / README: readme_region(run),
    }
    texts = {path: with_region(path.read_text(), region) for path, region in found.items()}
    charts = {root / CHARTS / name: drawn for name, drawn in draw_all(run).items()}
    return texts | charts


def with_region(page: str, region: str) -> str:
    """The page with this in its region. It has to have one, and only one."""
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page needs one region from {BEGIN} to {END}")
    return pattern.sub(lambda _: f"{BEGIN}\n{region.strip()}\n{END}", page)


def results_region(run: Run) -> str:
    parts = [
        *_about(run),
        "### Where QuiverMQ loses",
        *_losses(run),
        "### Goals",
        goals_table(run),
        "### Charts",
        *(f"![{name}](charts/{name})" for name in draw_all(run)),
        *_tables(run),
        *_left_out(run),
    ]
    return "\n\n".join(parts)


def readme_region(run: Run) -> str:
    """Ratios at equal batch sizes to the best of the others; those that are lost come first."""
    sizes = {cell.size for cell in run.figures}
    size = min(sizes, default=0)
    rows = []
    for cell in _readme_cells(run, size):
        both = [run.best(cell._replace(fsync=fsync)) for fsync in (False, True)]
        known = [best.times_better for best in both if best]
        if known:
            # A stable sort by whether it is lost: both groups keep the order of the work.
            rows.append((min(known) >= 1, [_title(cell), *map(_readme_ratio, both)]))
    rows.sort(key=lambda row: row[0])
    others = [system for system in run.systems() if system != OURS]
    intro = (
        f"Messages of {size} B from one Python process, all acknowledged. How many times better "
        f"than the best of {_listed(others)} at the same batch size, each with its own client; "
        f"below one (**bold**) QuiverMQ is slower. {run.about.get('machine', '')}, "
        f"{run.about.get('date', '')}, commit {run.about.get('commit', '')}:"
    )
    table = _markdown(["", "without fsync", "fsync before each acknowledgement"],
                      [cells for _, cells in rows])  # fmt: skip
    return f"{textwrap.fill(intro, README_COLUMNS)}\n\n{table}"


def _readme_cells(run: Run, size: int) -> Iterator[Cell]:
    for work, batch in README_WORKS:
        yield Cell(OURS, 1, False, size, work, batch)
    for work in ("produce", "consume"):
        for batch in README_BATCHES:
            yield Cell(OURS, 1, False, size, work, batch)
    if any(cell.nodes == 3 for cell in run.figures):
        yield Cell(OURS, 3, False, size, "lone")
        for work in ("produce", "consume"):
            yield Cell(OURS, 3, False, size, work, 1_000)


def _readme_ratio(best: Best | None) -> str:
    if best is None:
        return ""
    ratio = f"{_ratio(best.times_better)} {TIMES}"
    ratio = f"**{ratio}**" if best.times_better < 1 else ratio
    return f"{ratio} {best.peer}" + (f" ({best.ours:,.0f} µs)" if best.is_latency else "")


def goals_table(run: Run) -> str:
    rows = []
    for judged in judge(run):
        found, goal = judged.found, judged.goal
        cells = [goal.title, goal.text]
        if found is None:
            cells += ["", "", ""]
        else:
            unit = goal.unit
            measured = _ratio(found.measured) if unit == TIMES else f"{found.measured:,.0f}"
            theirs = "" if found.theirs is None else f"{short(found.theirs)}, {found.peer}"
            cells += [f"{measured} {unit}", short(found.ours), theirs]
        verdict = judged.verdict
        rows.append([*cells, f"**{verdict}**" if verdict == "MISSED" else verdict])
    return _markdown(["what", "goal", "measured", "QuiverMQ", "beside", ""], rows)


def _about(run: Run) -> Iterator[str]:
    about = run.about
    yield (
        f"{about.get('date', '')}, commit {about.get('commit', '')}. {about.get('machine', '')}. "
        f"{about.get('how', '')}"
    )
    yield _markdown(["system", "versions"], [[name, run.versions[name]] for name in run.versions])


def _losses(run: Run) -> Iterator[str]:
    lost = []
    for cell in sorted(run.figures):
        best = run.best(cell) if cell.system == OURS else None
        if best and best.times_better < 1:
            lost.append((best.times_better, cell, best))
    judged = sum(1 for cell in run.figures if cell.system == OURS and run.best(cell))
    if not lost:
        yield f"In none of {judged} rows."
        return
    yield f"In {len(lost)} of {judged} rows, the worst first:"
    rows = [
        [
            _title(cell), Conditions(cell.nodes, cell.fsync).title, f"{cell.size:,} B",
            _value(cell, best.ours), f"{_value(cell, best.theirs)}, {best.peer}",
            f"{_ratio(1 / times)} {TIMES} worse",
        ]
        for times, cell, best in sorted(lost)
    ]  # fmt: skip
    yield _markdown(["what", "class", "size", "QuiverMQ", "the best", ""], rows)


def _tables(run: Run) -> Iterator[str]:
    """A table for each class and size; figures first, then processor time of the smallest size."""
    systems = run.systems()
    classes = sorted({Conditions(cell.nodes, cell.fsync) for cell in run.figures})
    for conditions in classes:
        yield f"### {conditions.title[0].upper()}{conditions.title[1:]}"
        sizes = sorted({cell.size for cell in _of(run, conditions)})
        for size in sizes:
            yield f"{size:,} B; messages/s, or µs where it says p50 (in brackets: p99)."
            yield _markdown(
                ["what", *systems, "QuiverMQ / best"],
                [
                    [_title(cell), *(_shown(run, cell, name) for name in systems),
                     _advantage(run, cell)]
                    for cell in _rows(run, conditions, size)
                ],
            )  # fmt: skip
        yield f"Processor seconds for a million messages of {sizes[0]:,} B: brokers + client."
        yield _markdown(
            ["what", *systems],
            [
                [_title(cell), *(_processors(run, cell, name) for name in systems)]
                for cell in _rows(run, conditions, sizes[0])
            ],
        )


def _of(run: Run, conditions: Conditions) -> list[Cell]:
    return [cell for cell in run.figures if (cell.nodes, cell.fsync) == conditions]


def _rows(run: Run, conditions: Conditions, size: int) -> list[Cell]:
    """One cell for each row, as if it were of our own."""
    found = {cell._replace(system=OURS) for cell in _of(run, conditions) if cell.size == size}
    return sorted(found, key=lambda cell: (ORDER.index(cell.work), cell.batch))


def _shown(run: Run, cell: Cell, system: str) -> str:
    figure = run.figures.get(cell._replace(system=system))
    if figure is None:
        return ""
    if figure.p50_us is None or figure.p99_us is None:
        return f"{figure.per_second:,.0f}"
    return f"{figure.p50_us:,.0f} ({figure.p99_us:,.0f})"


def _advantage(run: Run, cell: Cell) -> str:
    best = run.best(cell)
    if best is None:
        return ""
    text = f"{_ratio(best.ratio)} {TIMES}"
    return f"**{text}**" if best.times_better < 1 else text


def _processors(run: Run, cell: Cell, system: str) -> str:
    figure = run.figures.get(cell._replace(system=system))
    if figure is None:
        return ""
    return f"{figure.broker_us:.3g} + {figure.client_us:.3g}"


def _left_out(run: Run) -> Iterator[str]:
    if run.left_out:
        yield "### Left out"
        yield "\n".join(f"- {line}" for line in run.left_out)


def _title(cell: Cell) -> str:
    title = TITLES[cell.work].format(batch=f"{cell.batch:,}")
    return title if cell.nodes == 1 else f"{cell.nodes} nodes: {title}"


def _value(cell: Cell, value: float) -> str:
    return f"{value:,.0f} µs" if cell.is_latency else f"{short(value)}/s"


def _ratio(value: float) -> str:
    if value >= 10:
        return f"{value:.0f}"
    if value >= 2:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
