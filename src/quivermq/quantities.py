"""Parses and formats durations, sizes and counts: `7d`, `1h30m`, `10GB`, `2 topics`.

Each parser raises `ValueError` with a message that shows what to write. Imports nothing of ours.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal

_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000,
    "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000,
    "day": 86_400_000, "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*", re.ASCII)
_PLAIN_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?", re.ASCII | re.IGNORECASE)
_PREFIXES: Final = ("", "k", "m", "g", "t", "p")
_SIZE_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_MAX: Final = 2**63 - 1
_SHOWN: Final = 60


def parse_duration(text: str, *, bare: Literal["s", "ms"] | None = "s") -> float:
    """Seconds of `500ms`, `1h30m`, `7d` or `2 weeks`.

    `bare` is the unit of a number alone; None: one is refused.
    """
    wanted = text.strip().lower()
    if bare and _PLAIN_NUMBER.fullmatch(wanted):
        wanted += bare
    total_ms, at = 0.0, 0
    while part := _DURATION_PART.match(wanted, at):
        unit = part[2] if part[2] in _UNIT_MS else part[2].removesuffix("s")
        if unit not in _UNIT_MS:
            break
        total_ms += float(part[1]) * _UNIT_MS[unit]
        at = part.end()
    if not wanted or at < len(wanted):
        raise ValueError(
            f"{_shorten(text)} is not a duration: write 500ms, 30s, 5m, 1h30m, 7d or 2w"
        )
    return _bounded(total_ms / 1_000, text)


def format_duration(seconds: float) -> str:
    """Seconds as text, exact to the millisecond: `1h30m`, `7d`."""
    left = round(seconds * 1_000)
    parts = []
    # Weeks are parsed but not written: 52w1d is harder to read than 365d.
    for unit in ("d", "h", "m", "s", "ms"):
        count, left = divmod(left, _UNIT_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Bytes of `512`, `64KiB`, `10GB`, `1.5 TB`; kB, MB ... count by 1000, KiB, MiB ... by 1024."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError(f"{_shorten(text)} is not a size: write 512, 64KiB, 10MB, 1.5GB or 2TB")
    factor = (1024 if found[3] else 1000) ** _PREFIXES.index(found[2].lower())
    # Whole numbers never pass through a float, which would round the large ones.
    size = int(float(found[1]) * factor) if "." in found[1] else int(found[1]) * factor
    return int(_bounded(size, text))


def format_size(size: int | None) -> str:
    """Three significant digits and the unit: `999 B`, `1.5 MB`, `10 GB`; `?` for None."""
    if size is None:
        return "?"
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_SIZE_UNITS) - 1:
        value /= 1000
        unit += 1
    digits = 0 if unit == 0 or value >= 99.95 else (1 if value >= 9.995 else 2)
    number = f"{value:.{digits}f}"
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {_SIZE_UNITS[unit]}"


def numbers(values: Iterable[int]) -> str:
    """`1, 2, 3`, or a dash for none."""
    return ", ".join(map(str, values)) or "-"


def count(number: int | None, noun: str) -> str:
    """`1 topic`, `2 topics`, `? topics`."""
    if number is None:
        return f"? {noun}s"
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _bounded(value: float, text: str) -> float:
    if value > _MAX:
        raise ValueError(f"{_shorten(text)} is too much")
    return value


def _shorten(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
