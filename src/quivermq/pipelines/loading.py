"""Loads a pipeline's TOML file, and reports every problem with its line."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from quivermq.errors import InvalidRequest
from quivermq.pipelines.model import (
    BAD_ROWS_SUFFIX,
    Pipeline,
    PipelineConfig,
    SinkConfig,
    SourceConfig,
    StepConfig,
    Watermark,
    short,
)
from quivermq.pipelines.toml_lines import KeyPath, first_text_line, key_lines, line_of
from quivermq.validation import explain, explain_toml

_PLACE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_LONG_NUMBER: Final = re.compile(r"[0-9_]{4000,}")
_KINDS: Final = {
    "string_type": "must be text in quotes",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": 'must be a list: ["..."]',
    "dict_type": "must be a table",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem of a file, and its line."""

    line: int
    message: str


class InvalidPipeline(InvalidRequest):
    """The file has problems; `problems` are in the order of its lines."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        self.lines = tuple(f"{name}:{each.line}: {each.message}" for each in self.problems)
        super().__init__("\n".join(self.lines))


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A file without problems."""

    path: Path
    text: str
    pipeline: Pipeline
    lines: Mapping[KeyPath, int] = field(repr=False)

    @property
    def name(self) -> str:
        return self.pipeline.pipeline.name

    @property
    def checkpoint(self) -> str:
        """The folder for the checkpoints of the sinks; by default beside the file."""
        return self.place(self.pipeline.pipeline.checkpoint or f"checkpoints/{self.name}")

    def place(self, location: str) -> str:
        """Resolve a path relative to the file; a URL stays."""
        if "://" in location:
            return location
        return str((self.path.parent / Path(location).expanduser()).resolve())

    def line(self, *path: str | int) -> int:
        return line_of(dict(self.lines), path)

    def sql_line(self, step: int, line: int = 1) -> int:
        """The line of the file that holds the given line of a step's SQL."""
        key = self.line("steps", step, "sql")
        first = first_text_line(self.text, key)
        # A string that is not written over several lines may still hold line breaks, as `\n`.
        rows = self.pipeline.steps[step].sql.count("\n") + 1
        return first + line - 1 if 1 <= line <= rows and self._is_long_string(key) else first

    def invalid(self, *problems: Problem) -> InvalidPipeline:
        return InvalidPipeline(str(self.path), problems)

    def _is_long_string(self, line: int) -> bool:
        row = self.text.split("\n")[line - 1]
        return '"""' in row or "'''" in row


def load(path: str | Path) -> PipelineFile:
    """Read a pipeline's file. Raises `InvalidPipeline` with every problem and its line."""
    place = Path(path)
    try:
        text = place.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidRequest(f"there is no file {path}") from None
    except IsADirectoryError:
        raise InvalidRequest(f"{path} is a folder: name a pipeline's TOML file") from None
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path} is no text in UTF-8") from None
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequest(f"{short(str(path))} cannot be read: {said}") from None
    return parse(text, place)


def parse(text: str, path: Path) -> PipelineFile:
    """Parse the text of a file; `path` is its place."""
    text = text.removeprefix("\ufeff")  # a byte order mark, which Windows editors write
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPipeline(str(path), [_syntax_problem(str(error), text)]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidPipeline(str(path), [_limit_problem(error, text)]) from None
    where = key_lines(text)
    try:
        made = PipelineFile(path, text, Pipeline.model_validate(data), where)
    except ValidationError as error:
        problems = [_problem(each, where) for each in error.errors()]
        raise InvalidPipeline(str(path), problems) from None
    if problems := list(_find_contradictions(made)):
        raise InvalidPipeline(str(path), problems)
    return made


def _syntax_problem(message: str, text: str) -> Problem:
    place = _PLACE.search(message)
    line = int(place[1]) if place and place[1] else text.count("\n") + 1
    said = _PLACE.sub("", message)
    return Problem(line, f"this is no TOML: {said[:1].lower()}{said[1:]}")


def _limit_problem(error: ValueError | RecursionError, text: str) -> Problem:
    """The problem of a text that exceeds a limit of the parser, which names no line."""
    if isinstance(error, RecursionError):
        depths = [row.count("[") + row.count("{") for row in text.split("\n")]
        return Problem(depths.index(max(depths)) + 1, explain_toml(error))
    found = _LONG_NUMBER.search(text)
    line = text.count("\n", 0, found.start()) + 1 if found else 1
    return Problem(line, explain_toml(error))


def _problem(error: Any, where: dict[KeyPath, int]) -> Problem:
    path = tuple(each for each in error["loc"] if each != "[key]")
    line = line_of(where, path)
    if error["type"] == "missing":
        return Problem(line, _missing_message(path))
    if error["type"] == "extra_forbidden":
        return Problem(line, _unknown_message(path))
    if path == ("steps",) and error["type"] == "list_type":
        return Problem(line, "write [[steps]], in two brackets: there may be several")
    if error["type"] == "value_error":
        return Problem(line, f"{_describe(path)}: {error['ctx']['error']}")
    kind = _KINDS.get(error["type"])
    if kind is None:
        kind = explain(error, show=False)
    value = error["input"]
    is_shown = isinstance(value, str | int | float) and path[-1:] != ("token",)
    given = f", not {short(value)}" if is_shown else ""
    return Problem(line, f"{_describe(path)} {kind}{given}")


def _missing_message(path: KeyPath) -> str:
    name = str(path[-1])
    if len(path) == 1:
        return {
            "pipeline": 'there is no [pipeline]: it needs at least name = "..."',
            "sources": "there are no sources: add [sources.NAME] with topic or table",
            "sinks": "there are no sinks: add [sinks.NAME] with from, and topic or table",
        }[name]
    return f"{_describe(path[:-1])} needs {name} = ..."


def _unknown_message(path: KeyPath) -> str:
    allowed = [field.alias or name for name, field in _model_at(path[:-1]).model_fields.items()]
    within = f" in {_describe(path[:-1])}" if path[:-1] else ""
    return f"unknown key {path[-1]}{within}: {suggest(str(path[-1]), allowed)}"


def _model_at(path: KeyPath) -> type[BaseModel]:
    if path[-1:] == ("watermark",):
        return Watermark
    models: dict[str | int, type[BaseModel]] = {
        "pipeline": PipelineConfig,
        "sources": SourceConfig,
        "steps": StepConfig,
        "sinks": SinkConfig,
    }
    return models[path[0]] if path else Pipeline


def _describe(path: KeyPath) -> str:
    """A path as messages show it: `sources.orders`, `step 2`."""
    if path[:1] == ("steps",) and len(path) > 1 and isinstance(path[1], int):
        return " ".join([f"step {path[1] + 1}", *(str(each) for each in path[2:])])
    return ".".join(map(str, path)) or "the file"


def _find_contradictions(file: PipelineFile) -> Iterator[Problem]:
    """Find problems between parts that are valid by themselves."""
    pipeline = file.pipeline
    views = pipeline.views
    yield from _source_contradictions(file)
    seen = {name.lower(): name for name in views if views[name][0] == "sources"}
    for index, step in enumerate(pipeline.steps):
        if step.name.lower() in seen:
            yield Problem(
                file.line("steps", index, "name"),
                f"there is a {seen[step.name.lower()]} already: each view needs a name of its own",
            )
        seen[step.name.lower()] = step.name
    for name, sink in pipeline.sinks.items():
        if sink.from_.lower() not in seen:
            yield Problem(
                file.line("sinks", name, "from"),
                f"sinks.{name} reads {sink.from_}, which is no source and no step: "
                + suggest(sink.from_, views),
            )
    yield from _target_contradictions(file)


def _source_contradictions(file: PipelineFile) -> Iterator[Problem]:
    """Find views of the same name; SQL ignores case."""
    sources = file.pipeline.sources
    bad = {(name + BAD_ROWS_SUFFIX).lower(): name for name in sources if sources[name].json_columns}
    seen: dict[str, str] = {}
    for name in sources:
        line, wanted = file.line("sources", name), name.lower()
        if wanted in bad:
            yield Problem(
                line,
                f"{name} is the view of the rows of {bad[wanted]} that are no JSON: name this "
                "otherwise",
            )
        elif wanted in seen:
            yield Problem(
                line,
                f"there is a {seen[wanted]} already, and SQL does not tell upper case from lower: "
                "each view needs a name of its own",
            )
        seen[wanted] = name


def _target_contradictions(file: PipelineFile) -> Iterator[Problem]:
    """Find tables with two sinks, loops, and modes that need a driver."""
    pipeline = file.pipeline
    is_remote = (pipeline.pipeline.master or "").startswith("sc://")
    written: dict[str, str] = {}
    for name, sink in pipeline.sinks.items():
        if sink.table:
            place = file.place(sink.table)
            if place in written:
                yield Problem(
                    file.line("sinks", name, "table"),
                    f"sinks.{written[place]} writes this table already: join both views by "
                    "UNION ALL in a step",
                )
            written[place] = name
    for name, sink in pipeline.sinks.items():
        if is_remote and sink.mode == "update":
            yield Problem(
                file.line("sinks", name, "mode"),
                f"sinks.{name}: mode update needs a driver of its own; over Spark Connect "
                "there is append, and complete",
            )
        if sink.topic and any(source.reads(sink.topic) for source in pipeline.sources.values()):
            yield Problem(
                file.line("sinks", name, "topic"),
                f"sinks.{name} writes to {sink.topic}, which this pipeline reads: it would never "
                "end",
            )


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean orders?` if a known word is close, else the known words."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(names)}" if names else "there are none"
