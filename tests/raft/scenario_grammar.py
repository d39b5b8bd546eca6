"""The grammar of scenario files: directive, optional input, `----`, expected output, blank line.

    # a comment
    add-nodes 3 voters=(1,2,3) index=10
    ----
    ok

Output that itself holds blank lines stands between doubled separators.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SEPARATOR = "----"
ARGUMENT = re.compile(r"([^\s=()]+)(?:=(\([^)]*\)|\S*))?")
LOG_LINE = re.compile(r"\s*(DEBUG|INFO|WARN|ERROR|FATAL)\s")


@dataclass(frozen=True)
class Argument:
    """`key`, `key=value` or `key=(value, value)`."""

    key: str
    values: tuple[str, ...] = ()


@dataclass
class Directive:
    """One command of a scenario, and what it should print."""

    line: int
    text: str
    command: str
    arguments: list[Argument]
    input: str
    expected: str
    head: list[str] = field(default_factory=list)  # comments, command and input, as written

    @property
    def words(self) -> list[str]:
        """Arguments without a value."""
        return [argument.key for argument in self.arguments if not argument.values]

    @property
    def ids(self) -> list[int]:
        return [int(word) for word in self.words]

    @property
    def options(self) -> dict[str, tuple[str, ...]]:
        return {argument.key: argument.values for argument in self.arguments if argument.values}

    def option(self, key: str, default: str = "") -> str:
        values = self.options.get(key, ())
        return values[0] if values else default


def parse_arguments(text: str) -> list[Argument]:
    arguments = []
    for key, value in ARGUMENT.findall(text):
        inner = value.removeprefix("(").removesuffix(")")
        values = tuple(part.strip() for part in inner.split(",")) if inner else ()
        arguments.append(Argument(key, values))
    return arguments


def parse(path: Path) -> list[Directive]:
    """All directives of a file; raises ValueError with the line of the first fault."""
    lines = path.read_text().split("\n")
    directives = []
    position = 0
    head: list[str] = []
    while position < len(lines):
        line = lines[position].rstrip()
        if not line or line.startswith("#"):
            head.append(lines[position])
            position += 1
            continue
        start = position
        while line.endswith("\\"):
            position += 1
            line = line[:-1] + lines[position].strip()
        position += 1
        given = []
        while position < len(lines) and lines[position].rstrip() != SEPARATOR:
            given.append(lines[position])
            position += 1
        if position == len(lines):
            raise ValueError(f"{path}:{start + 1}: {line!r} has no {SEPARATOR}")
        expected, after = _output(lines, position + 1)
        command, _, rest = line.partition(" ")
        head += lines[start:position]
        directives.append(
            Directive(
                line=start + 1,
                text=line,
                command=command,
                arguments=parse_arguments(rest),
                input="\n".join(given),
                expected=expected,
                head=head,
            )
        )
        head, position = [], after
    return directives


def _output(lines: list[str], position: int) -> tuple[str, int]:
    """The expected output from `position` on, and where it ends."""
    taken = []
    if position < len(lines) and lines[position].rstrip() == SEPARATOR:
        position += 1
        while lines[position : position + 2] != [SEPARATOR, SEPARATOR]:
            taken.append(lines[position])
            position += 1
        return "\n".join(taken), position + 2
    while position < len(lines) and lines[position].strip():
        taken.append(lines[position])
        position += 1
    return "\n".join(taken), position


def structural(output: str) -> str:
    """Output without log lines; a command that only logged has nothing to say but ok."""
    kept = [line.rstrip() for line in output.split("\n") if not LOG_LINE.match(line)]
    return "\n".join(kept).strip("\n") or "ok"


def rendered(directives: list[Directive], outputs: list[str]) -> Iterator[str]:
    """The lines of a scenario file with these outputs."""
    for directive, output in zip(directives, outputs, strict=True):
        yield from directive.head
        yield SEPARATOR
        if "\n\n" in output:
            yield from [SEPARATOR, output, SEPARATOR, SEPARATOR]
        else:
            yield output
