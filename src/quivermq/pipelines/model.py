"""What a pipeline's file may say: sources, steps, sinks, and how they run.

Whatever can be judged without Spark and without a broker is judged here.
"""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000,
    "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000,
    "day": 86_400_000,
}  # fmt: skip
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_VIEW_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
BAD_ROWS_SUFFIX: Final = "_bad"


def duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `10s`, `1 minute`, `1h30m`, `2 days`."""
    wanted, at, total = text.strip().lower(), 0, 0.0
    while part := _DURATION_PART.match(wanted, at):
        unit = part[2] if part[2] in _UNIT_MS else part[2].removesuffix("s")
        if unit not in _UNIT_MS:
            break
        total += float(part[1]) * _UNIT_MS[unit]
        at = part.end()
    if not wanted or at < len(wanted):
        raise ValueError(f"{text!r} is no duration: write 500ms, 10s, 1 minute or 1h30m")
    return round(total)


def _as_duration(value: Any) -> Any:
    return duration_ms(value) if isinstance(value, str) else value


def _checked_view_name(name: str) -> str:
    if not _VIEW_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a view's name in SQL: use letters, digits and underscores, "
            "and begin with a letter"
        )
    return name


DurationMs = Annotated[int, BeforeValidator(_as_duration), Field(strict=True, ge=0)]
ViewName = Annotated[str, AfterValidator(_checked_view_name)]
Text = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    """A table of the file: its keys are known, and of the right kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Watermark(_Part):
    """How late rows may come: `{ column = "at", delay = "1 minute" }`."""

    column: Text
    delay: DurationMs


class Source(_Part):
    """Where rows come from: topics, which are streams, or a table, as it is at the start."""

    topic: Text | None = None
    topics: list[Text] | None = Field(default=None, min_length=1)
    pattern: Text | None = None
    table: Text | None = None
    json_columns: Text | None = Field(default=None, alias="json")
    headers: bool = False
    watermark: Watermark | None = None
    start: Text = "earliest"
    max_rows: Annotated[int, Field(ge=1)] | None = None
    archive: Text | None = None
    version: Annotated[int, Field(ge=0)] | None = None
    options: dict[str, str | int | bool] = Field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return self.table is None

    @property
    def named_topics(self) -> list[str]:
        """The topics that it names; none for a pattern or a table."""
        return [self.topic] if self.topic else list(self.topics or ())

    @property
    def subscription(self) -> tuple[str, str]:
        """The option of the format `quiver` that says which topics, and its value."""
        if self.pattern:
            return "subscribePattern", self.pattern
        return "subscribe", ",".join(self.named_topics)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Source":
        given = [name for name in ("topic", "topics", "pattern", "table") if getattr(self, name)]
        if not given:
            raise ValueError('needs topic = "...", topics, pattern or table: where rows come from')
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}: keep one of them")
        for name in ("json_columns", "headers", "max_rows", "archive", "watermark"):
            if self.table and getattr(self, name):
                key = name.removesuffix("_columns")
                raise ValueError(f"{key} is for topics; a table is read whole, with its columns")
        if self.version is not None and not self.table:
            raise ValueError("version is for tables: a topic is read from start = ...")
        return self


class Step(_Part):
    """A view made by a query over sources and earlier steps."""

    name: ViewName
    sql: Text
    watermark: Watermark | None = None


class Sink(_Part):
    """Where the rows of a view go: a topic or a table."""

    from_: Text = Field(alias="from")
    topic: Text | None = None
    table: Text | None = None
    mode: Literal["append", "update", "complete"] = "append"
    key: Text | None = None
    value: Text | None = None
    partitions: Annotated[int, Field(ge=1)] | None = None
    trigger: DurationMs | None = None
    options: dict[str, str | int | bool] = Field(default_factory=dict)

    @property
    def target(self) -> str:
        """For people: `topic totals`."""
        return f"topic {self.topic}" if self.topic else f"table {self.table}"

    @model_validator(mode="after")
    def _is_one_thing(self) -> "Sink":
        if bool(self.topic) == bool(self.table):
            both = "has topic and table: make two sinks of it" if self.topic else ""
            raise ValueError(both or 'needs topic = "..." or table = "...": where rows go')
        for name in ("key", "value", "partitions"):
            if self.table and getattr(self, name):
                raise ValueError(f"{name} is for topics; a table gets the view's columns")
        if self.table and self.mode != "append":
            raise ValueError(f"mode {self.mode} needs a topic: rows can only be added to a table")
        return self


class Running(_Part):
    """The table `[pipeline]`: what it is called, and how it runs."""

    name: Text
    servers: Text | None = None
    token: Text | None = None
    trigger: DurationMs = 1_000
    checkpoint: Text | None = None
    master: Text | None = None
    spark: dict[str, str | int | float | bool] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _can_be_a_folder(cls, name: str) -> str:
        if not _PIPELINE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name: use letters, digits, dots, - and _")
        return name


class Pipeline(_Part):
    """A whole file."""

    pipeline: Running
    sources: dict[ViewName, Source] = Field(min_length=1)
    steps: list[Step] = Field(default_factory=list)
    sinks: dict[ViewName, Sink] = Field(min_length=1)

    @property
    def views(self) -> dict[str, tuple[str | int, ...]]:
        """The views that the file makes, each with its path in the file."""
        made: dict[str, tuple[str | int, ...]] = {}
        for name, source in self.sources.items():
            made[name] = ("sources", name)
            if source.json_columns:
                made[name + BAD_ROWS_SUFFIX] = ("sources", name, "json")
        for index, step in enumerate(self.steps):
            made.setdefault(step.name, ("steps", index, "name"))
        return made
