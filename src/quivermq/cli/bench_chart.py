"""Charts of `quiver bench` as text: rates as bars, rates over time, and latencies. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from quivermq.cli.top_views import rate

HEIGHT: Final = 6
POINTS_LEAST: Final = 8
"""With fewer points, a rate over time says nothing."""
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_LIMITS_US: Final = (
    50, 100, 200, 300, 400, 500, 700, 1_000, 1_500, 2_000, 3_000, 5_000, 7_000, 10_000, 15_000,
    20_000, 30_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
)  # fmt: skip

Point = tuple[float, int]
"""Seconds since the beginning, and how many messages were done by then."""


def bars(figures: Sequence[tuple[str, float]], width: int) -> list[str]:
    """A bar for each figure; the longest is that of the largest."""
    most = max((value for _, value in figures), default=0.0) or 1.0
    names = max((len(name) for name, _ in figures), default=0)
    room = max(8, width - names - 12)
    return [
        f"{name.ljust(names)}  {_bar(value / most * room)} {rate(value)}/s"
        for name, value in figures
    ]


def over_time(points: Sequence[Point], width: int) -> list[str]:
    """Messages a second, over the time of a measurement; nothing if there are too few points."""
    if len(points) < POINTS_LEAST or points[-1][0] <= 0:
        return []
    label = 8
    columns = min(max(8, width - label - 1), 2 * len(points))
    rates = _rates(points, columns)
    most = max(rates)
    if most <= 0:
        return []
    eighths = [round(each / most * HEIGHT * 8) for each in rates]
    lines = []
    for row in range(HEIGHT, 0, -1):
        cells = "".join(_BLOCKS[max(0, min(8, each - (row - 1) * 8))] for each in eighths)
        name = rate(most) if row == HEIGHT else ""
        lines.append(f"{name.rjust(label - 1)} ┤{cells.rstrip()}")
    lines.append(f"{'0'.rjust(label - 1)} └{'─' * columns}")
    lines.append(f"{' ' * (label + 1)}0 s{f'{points[-1][0]:.1f} s'.rjust(columns - 3)}")
    return lines


def latencies(times_us: Sequence[float], width: int) -> list[str]:
    """How many messages took how long, a bar for each range that has any between the ends."""
    if not times_us:
        return []
    counts = [0] * (len(_LIMITS_US) + 1)
    for each in times_us:
        counts[bisect_left(_LIMITS_US, each)] += 1
    used = [place for place, count in enumerate(counts) if count]
    most, room = max(counts), max(8, width - 24)
    lines = []
    for place in range(used[0], used[-1] + 1):
        is_last = place == len(_LIMITS_US)
        limit = _LIMITS_US[-1] if is_last else _LIMITS_US[place]
        name = f"{'over' if is_last else 'to'} {_microseconds(limit)}"
        lines.append(f"{name.rjust(12)}  {_bar(counts[place] / most * room)} {counts[place]:,}")
    return lines


def _rates(points: Sequence[Point], columns: int) -> list[float]:
    """The mean rate of each of so many equal spans; between two points it is even."""
    end = points[-1][0]
    step = end / columns
    counts, place = [], 0
    known = [(0.0, 0), *points]
    for column in range(columns + 1):
        at = min(column * step, end)
        while place + 2 < len(known) and known[place + 1][0] < at:
            place += 1
        (before, low), (after, high) = known[place], known[place + 1]
        share = (at - before) / (after - before) if after > before else 1.0
        counts.append(low + (high - low) * min(1.0, max(0.0, share)))
    return [max(0.0, (late - early) / step) for early, late in pairwise(counts)]


def _bar(length: float) -> str:
    whole, part = divmod(round(length * 8), 8)
    return "█" * whole + (_EIGHTHS[part] if part else "")


def _microseconds(limit: int) -> str:
    if limit < 1_000:
        return f"{limit} µs"
    return f"{limit / 1_000:g} ms" if limit < 1_000_000 else f"{limit / 1_000_000:g} s"
