"""Runs the blocks of a page in their order, against a broker, and compares what they print.

The one thing that differs from what a reader does are addresses: someone may use the usual ports
of this machine. So the addresses of a page are replaced by those of the broker, and those in its
output by the page's.
"""

import contextlib
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, Final

import quivermq
from tests.cli.conftest import FREE_PORTS
from tests.pages.blocks import Block
from tests.pages.terminal import Terminal

_COMMAND: Final = re.compile(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)\n?", re.MULTILINE)
_FOREVER: Final = re.compile(r"quiver (up|serve)\b")
# By the command that goes on: the last that it says, and options for any free ports.
_STARTED: Final = {
    "up": ("--data-dir keeps it", ["--free-ports"]),
    "serve": ("NAME admin", [*FREE_PORTS, "--data-dir", "served"]),
}
_LEARNT: Final = re.compile(r"\b127\.0\.0\.1:\d+\b|\bqv_…")

# Fields of JSON that are others each time.
CHANGING: Final = frozenset(
    {
        "cluster_id", "commit_index", "died", "due", "id", "lease", "message", "request_id",
        "size_bytes", "term", "timestamp", "version",
    }
)  # fmt: skip


class PageRun:
    """A page that is being run: a folder, a namespace, a terminal and what was printed last."""

    def __init__(
        self,
        folder: Path,
        addresses: dict[str, str],
        environ: dict[str, str],
        names: dict[str, Any] | None = None,
    ) -> None:
        (folder / "page").mkdir()
        (folder / "state").mkdir()
        self.folder = folder / "page"
        # A reader of the README has it beside the clone.
        (self.folder / ".venv").symlink_to(sys.prefix)
        self._actual = dict(addresses)
        self._namespace: dict[str, Any] = {"__name__": "__main__", **(names or {})}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._terminal = Terminal(self.folder, folder / "state", {**environ, "PATH": path})
        self._said = ""
        self.printed = ""

    def close(self) -> None:
        """End what a reader ends with the program, or by Ctrl-C."""
        for value in self._namespace.values():
            if isinstance(value, quivermq.Client):
                value.close()
        self._terminal.close()

    def run(self, block: Block) -> None:
        if block.mark in ("not run", "run by"):
            return
        if block.mark == "file":
            path = self.folder / block.reason
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._as_here(block.text))
        elif block.mark == "output":
            self._compare(block, block.text, self._said)
        elif block.language == "python":
            self._said = self._run_python(block)
        elif block.language == "sh":
            self._said = self._terminal.run(self._as_here(block.text))[0]
        else:
            self._run_console(block)
        self.printed += self._said

    def _run_python(self, block: Block) -> str:
        output = io.StringIO()
        # Lines of a traceback are those of the page.
        source = "\n" * (block.line - 1) + self._as_here(block.text)
        with contextlib.redirect_stdout(output), contextlib.chdir(self.folder):
            exec(compile(source, block.page, "exec"), self._namespace)
        return output.getvalue()

    def _run_console(self, block: Block) -> None:
        """Each command with what is shown behind it."""
        starts = [*_COMMAND.finditer(block.text)]
        assert starts, f"{block.place}: no line begins with a $"
        ends = [*(found.start() for found in starts[1:]), len(block.text)]
        for found, end in zip(starts, ends, strict=True):
            command, expected = self._as_here(found[1]), block.text[found.end() : end]
            if forever := _FOREVER.search(command):
                self._said = self._start(command, *_STARTED[forever[1]])
            else:
                self._said = self._terminal.show(command)
            self._compare(block, expected, self._said)

    def _start(self, command: str, until: str, options: list[str]) -> str:
        """Start brokers of the page's own, which its later commands are for."""
        said = self._terminal.start(f"{command} {shlex.join(options)}", until)
        address = re.search(r"127\.0\.0\.1:\d+", said)
        assert address, said
        self._actual = {"127.0.0.1:7600": address[0]}
        self._terminal.run(f"export QUIVER_SERVERS={address[0]}")
        return re.sub(r" --servers [\d.:]+", "", said)

    def _compare(self, block: Block, expected: str, said: str) -> None:
        if block.language == "json":
            assert steady(values(said)) == steady(values(expected)), block.place
            return
        said = replaced(said, {actual: page for page, actual in self._actual.items()})
        pattern, learnt = as_pattern(expected)
        found = re.fullmatch(pattern, as_lines(said))
        assert found, f"{block.place} shows\n{expected}\nand printed is\n{said}"
        for name, text in zip(learnt, found.groups(), strict=True):
            self._actual.setdefault(name, text)

    def _as_here(self, text: str) -> str:
        return replaced(text, self._actual)


def replaced(text: str, names: dict[str, str]) -> str:
    """The text with other names, each whole: 127.0.0.1:76 is no part of 127.0.0.1:760."""
    for name, other in names.items():
        text = re.sub(rf"{re.escape(name)}(?!\d)", lambda _, other=other: other, text)
    return text


def as_lines(text: str) -> str:
    """Without what depends on the width of a column, or on the time."""
    text = re.sub(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|\d+\.\d+(?= s\b)", "…", text)
    text = re.sub(r"([─━-])\1+", r"\1", re.sub(r"[ \t]+", " ", text))
    return "\n".join(line.strip() for line in text.strip().splitlines())


def as_pattern(expected: str) -> tuple[str, list[str]]:
    """An expression for what a page shows, and the names of its groups: what later blocks use."""
    pattern, learnt, at, text = "", [], 0, as_lines(expected)
    for found in _LEARNT.finditer(text):
        pattern += _escaped(text[at : found.start()])
        pattern += r"(127\.0\.0\.1:\d+)" if found[0][0] == "1" else r"(qv_[\w-]+)"
        learnt.append(found[0])
        at = found.end()
    return pattern + _escaped(text[at:]), learnt


def _escaped(text: str) -> str:
    whole = re.sub(r"(?m)^…$", "\0", text)
    return re.escape(whole).replace("\0", r"(?:.|\n)*?").replace("…", ".*?")


def values(text: str) -> list[Any]:
    """JSON values, one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def steady(value: Any) -> Any:
    """JSON without what is another each time."""
    if isinstance(value, dict):
        return {
            name: type(each).__name__ if name in CHANGING else steady(each)
            for name, each in value.items()
        }
    return [steady(each) for each in value] if isinstance(value, list) else value
