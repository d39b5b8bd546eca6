"""Defines the contents of a pipeline's file: sources, steps, sinks and settings.

Holds all checks that need neither Spark nor a broker.
"""

import re
from pathlib import Path
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

from quivermq.errors import InvalidRequest
from quivermq.names import check_topic_name
from quivermq.quantities import parse_duration

_VIEW_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_LONGEST_MS: Final = 10_000 * 86_400_000
_SHOWN: Final = 60
BAD_ROWS_SUFFIX: Final = "_bad"


def duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `10s`, `1 minute`, `1h30m`, `2 days`; a number alone is refused."""
    total = parse_duration(text, bare=None) * 1_000
    if total > _LONGEST_MS:
        raise ValueError(f"{short(text)} is too long: 10000 days are the most")
    return round(total)


def short(value: Any) -> str:
    """A value as messages show it: a very long one is cut."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _as_duration(value: Any) -> Any:
    return duration_ms(value) if isinstance(value, str) else value


def _check_text(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a character that no name and no path can have: \\u0000")
    return text


def _check_topic(name: str) -> str:
    try:
        check_topic_name(name, internal=True)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None
    return name


def _check_target(name: str) -> str:
    if name.startswith("_"):
        raise ValueError(f"{name} is a topic of the system, as all that begin with _: name another")
    return name


def _check_pattern(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{short(pattern)} is not a regular expression: {error}") from None
    return pattern


def _check_place(location: str) -> str:
    try:
        Path(location).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{short(location)}: this home folder is not known: write the whole path"
        ) from None
    return location


def _check_setting(value: Any) -> Any:
    if not isinstance(value, str | int | float):
        raise ValueError("must be text in quotes, a number, true or false")  # noqa: TRY004
    return _check_text(value) if isinstance(value, str) else value


def _check_view_name(name: str) -> str:
    if not _VIEW_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be a view's name in SQL: use letters, digits and underscores, "
            "and begin with a letter"
        )
    return name


DurationMs = Annotated[int, BeforeValidator(_as_duration), Field(strict=True, ge=0, le=_LONGEST_MS)]
ViewName = Annotated[str, AfterValidator(_check_view_name)]
Text = Annotated[str, Field(min_length=1), AfterValidator(_check_text)]
Topic = Annotated[Text, AfterValidator(_check_topic)]
TargetTopic = Annotated[Topic, AfterValidator(_check_target)]
Pattern = Annotated[Text, AfterValidator(_check_pattern)]
FilePath = Annotated[Text, AfterValidator(_check_place)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Settings = dict[str, Annotated[Any, AfterValidator(_check_setting)]]
"""Settings of Spark or of a format: strings, numbers and booleans."""


class _Part(BaseModel):
    """A table of the file; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Watermark(_Part):
    """How late rows may come: `{ column = "at", delay = "1 minute" }`."""

    column: Text
    delay: DurationMs


class SourceConfig(_Part):
    """A source of rows: topics, which are streams, or a table, as it is at the start."""

    topic: Topic | None = None
    topics: list[Topic] | None = Field(default=None, min_length=1)
    pattern: Pattern | None = None
    table: FilePath | None = None
    json_columns: Text | None = Field(default=None, alias="json")
    headers: bool = False
    watermark: Watermark | None = None
    start: Text = "earliest"
    max_rows: Count | None = None
    archive: FilePath | None = None
    version: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    options: Settings = Field(default_factory=dict)

    @property
    def is_stream(self) -> bool:
        return self.table is None

    @property
    def named_topics(self) -> list[str]:
        """The topics that it names; none for a pattern or a table."""
        return [self.topic] if self.topic else list(self.topics or ())

    def reads(self, topic: str) -> bool:
        """Whether a topic of this name is read, or will be when it is created."""
        if self.pattern:
            return re.fullmatch(self.pattern.strip(), topic) is not None
        return topic in self.named_topics

    @property
    def subscription(self) -> tuple[str, str]:
        """The option of the format `quiver` that selects the topics, and its value."""
        if self.pattern:
            return "subscribePattern", self.pattern
        return "subscribe", ",".join(self.named_topics)

    @model_validator(mode="after")
    def _is_one_thing(self) -> "SourceConfig":
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


class StepConfig(_Part):
    """A view made by a query over sources and earlier steps."""

    name: ViewName
    sql: Text
    watermark: Watermark | None = None


class SinkConfig(_Part):
    """The topic or table that gets the rows of a view."""

    from_: Text = Field(alias="from")
    topic: TargetTopic | None = None
    table: FilePath | None = None
    mode: Literal["append", "update", "complete"] = "append"
    key: Text | None = None
    value: Text | None = None
    partitions: Count | None = None
    trigger: DurationMs | None = None
    options: Settings = Field(default_factory=dict)

    @property
    def target(self) -> str:
        """The target as messages show it: `topic totals`."""
        return f"topic {self.topic}" if self.topic else f"table {self.table}"

    @model_validator(mode="after")
    def _is_one_thing(self) -> "SinkConfig":
        if bool(self.topic) == bool(self.table):
            both = "has topic and table: make two sinks of it" if self.topic else ""
            raise ValueError(both or 'needs topic = "..." or table = "...": where rows go')
        for name in ("key", "value", "partitions"):
            if self.table and getattr(self, name):
                raise ValueError(f"{name} is for topics; a table gets the view's columns")
        if self.table and self.mode != "append":
            raise ValueError(f"mode {self.mode} needs a topic: rows can only be added to a table")
        return self


class PipelineConfig(_Part):
    """The table `[pipeline]`: its name and settings."""

    name: Text
    servers: Text | None = None
    token: Text | None = None
    trigger: DurationMs = 1_000
    checkpoint: FilePath | None = None
    master: Text | None = None
    spark: Settings = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _can_be_a_folder(cls, name: str) -> str:
        if not _PIPELINE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name: use letters, digits, dots, - and _")
        return name


class Pipeline(_Part):
    """A whole file."""

    pipeline: PipelineConfig
    sources: dict[ViewName, SourceConfig] = Field(min_length=1)
    steps: list[StepConfig] = Field(default_factory=list)
    sinks: dict[ViewName, SinkConfig] = Field(min_length=1)

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
