"""Makes pages of templates. Everything that comes from users is escaped."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import quivermq
from quivermq.portal.payloads import headers_of, shown
from quivermq.quantities import count, format_duration, format_size, numbers

_FOLDER: Final = Path(__file__).parent
STATIC: Final = _FOLDER / "static"
UNKNOWN: Final = "\N{EN DASH}"
THEMES: Final = ("light", "dark")
_SCALES: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))

_NAVIGATION: Final = (
    ("/", "Overview", "overview"),
    ("/topics", "Topics", "topics"),
    ("/groups", "Groups", "groups"),
    ("/dead-letters", "Dead letters", "letters"),
    ("/cluster", "Cluster", "cluster"),
    ("/pipelines", "Pipelines", "pipelines"),
    ("/users", "Users", "users"),
    ("/audit", "Audit log", "audit"),
)


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page."""
    portal = request.app.state.portal
    theme = request.cookies.get("theme", "")
    text = _environment.get_template(template).render(
        navigation=_NAVIGATION,
        section=_section(request.url.path),
        theme=theme if theme in THEMES else "auto",
        signed_in=bool(getattr(request.state, "token", "")),
        poller=portal.poller,
        snapshot=portal.poller.snapshot,
        now=time.time(),
        version=quivermq.__version__,
        **context,
    )
    return HTMLResponse(text, status)


def _section(path: str) -> str:
    """The link of the navigation that a page belongs to."""
    parts = path.split("/")
    if len(parts) == 5 and parts[3] == "groups":
        return "/groups"
    return f"/{parts[1]}"


def render_part(template: str, **context: Any) -> str:
    """A piece of a page, for scripts."""
    return _environment.get_template(template).render(**context)


def number(value: float | None) -> str:
    """`1,234`; a dash for what is not known."""
    return UNKNOWN if value is None else f"{round(value):,}"


def short_number(value: float | None, unit: str = "") -> str:
    """`1.2 k`, `34.5 M`: three digits are enough to see where it is."""
    if value is None:
        return UNKNOWN
    for scale, prefix in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    shown_value = (
        f"{value:.1f}" if 0 < abs(value) < 10 and value != round(value) else f"{value:.0f}"
    )
    return f"{shown_value} {unit}".rstrip()


def seconds(value: float | None) -> str:
    """A short time: `0.8 ms`, `12 ms`, `1.4 s`."""
    if not value:
        return UNKNOWN
    if value < 1:
        return f"{value * 1e3:.{1 if value < 0.01 else 0}f} ms"
    return f"{value:.1f} s"


def age(value: float) -> str:
    """A time that passes, in whole seconds: `12s`, `1h5m`."""
    whole = int(value)
    return format_duration(whole if whole < 3600 else whole - whole % 60)


def moment(milliseconds: float | None) -> str:
    """A time in UTC, to the second."""
    if not milliseconds:
        return UNKNOWN
    try:
        found = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return UNKNOWN
    return found.strftime("%Y-%m-%d %H:%M:%S")


def died(text: str) -> str:
    """When a message became a dead letter, as its header says: milliseconds, or anything."""
    return moment(int(text)) if text.isdecimal() and len(text) < 16 else text[:40]


def ago(at: float, now: float) -> str:
    """`12 s ago`."""
    age = max(0.0, now - at)
    if age < 120:
        return f"{age:.0f} s ago"
    return f"{age / 60:.0f} min ago" if age < 7200 else f"{age / 3600:.0f} h ago"


def duration(value: float | None) -> str:
    """`7d`; `none` without a limit."""
    return "none" if value is None else format_duration(value)


def size(value: float | None) -> str:
    return UNKNOWN if value is None else format_size(int(value))


def _plain_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _combined(given: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    return given | changed


_environment = Environment(
    loader=FileSystemLoader(_FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "number": number,
    "short": short_number,
    "seconds": seconds,
    "moment": moment,
    "died": died,
    "age": age,
    "duration": duration,
    "size": size,
    "shown": shown,
    "headers": headers_of,
    "numbers": numbers,
    "tojson_plain": _plain_json,
    "combined": _combined,
}
_environment.globals |= {"count": count, "ago": ago}
