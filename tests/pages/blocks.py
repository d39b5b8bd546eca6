"""Code blocks of a page, with the marks that stand before them.

A block of `python`, `sh` or `console` is run. Any other block, and one of these that cannot be run,
has an HTML comment before it, which readers of the page do not see:

    <!-- output -->                 what the block before it prints; `…` stands for anything
    <!-- file: orders.toml -->      a file that later blocks use
    <!-- run by: PATH::TEST -->     a test of its own runs it
    <!-- not run: REASON -->        nothing runs it

`<!-- setup` begins a comment with Python that runs before the next block.
"""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RUN: Final = frozenset({"python", "sh", "console"})
MARKS: Final = ("output", "file", "run by", "not run", "setup")
_FENCE: Final = r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$"
_MARK: Final = r"^ *<!-- (?P<mark>[a-z ]+?)(?::[ ](?P<reason>[^\n]+?))?(?P<code>\n.*?)? *-->"
_PART: Final = re.compile(f"{_FENCE}|{_MARK}", re.DOTALL | re.MULTILINE)


WRITTEN = "compare"
"""The mark of a part that `benchmarks.compare` writes; it has no code."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block, or the Python of a setup comment."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def page_names() -> list[str]:
    """Every page, by its path in the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def blocks_of(page: str) -> list[Block]:
    return list(parse(page, (ROOT / page).read_text()))


def parse(page: str, text: str) -> Iterator[Block]:
    mark, end = None, 0
    for found in _PART.finditer(text):
        if found["mark"] == WRITTEN:
            continue
        line = text.count("\n", 0, found.start()) + 1
        if mark and text[end : found.start()].strip():
            raise ValueError(f"{page}:{line}: a mark that stands before no block: {mark[0]}")
        end = found.end()
        if found["mark"] is None:
            code = textwrap.dedent(found["text"])
            kind, reason = (mark["mark"], mark["reason"] or "") if mark else ("", "")
            yield Block(page, line + 1, found["language"], code, kind, reason)
            mark = None
        elif found["mark"] not in MARKS or (found["mark"] == "setup") != bool(found["code"]):
            raise ValueError(f"{page}:{line}: a comment that is no mark: {found[0]}")
        elif found["mark"] == "setup":
            yield Block(page, line + 1, "python", found["code"].lstrip("\n"), "setup")
        else:
            mark = found


def faults(block: Block) -> Iterator[str]:
    """What is missing at a block for it to be run, or to say why it is not."""
    if block.mark in ("file", "run by", "not run") and not block.reason:
        yield f"{block.place}: the mark `{block.mark}` says nothing"
    if not block.mark and block.language not in RUN:
        yield f"{block.place}: a block of `{block.language}` that has no mark"
    if block.mark == "run by":
        path, _, test = block.reason.partition("::")
        if not test or f"def {test}(" not in (ROOT / path).read_text():
            yield f"{block.place}: there is no test {block.reason}"
