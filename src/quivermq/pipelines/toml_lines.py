"""Finds the line of each key in a TOML text, which the standard parser does not report.

The text has passed that parser, so this scanner only recognises strings, comments and brackets, and
skips everything else.
"""

import re
import tomllib
from typing import Final

KeyPath = tuple[str | int, ...]

_KEY_PART: Final = re.compile(r"""[ \t]*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
_OPENED: Final = re.compile(r"""=[ \t]*(\"{3}|'{3})$""")
_CONTINUED: Final = re.compile(r"""=[ \t]*\"{3}\\[ \t]*$""")
_DELIMITERS: Final = ('"""', "'''", '"', "'")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and key, by its path: `("steps", 0, "sql")`.

    Keys within inline tables and arrays are left out: they have the line of what holds them.
    """
    return _Scan(text.replace("\r\n", "\n")).lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int:
    """The line of `path`, or of the nearest table around it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def first_text_line(text: str, line: int) -> int:
    """The line on which the string of the key on `line` begins.

    A line break directly behind three quotes does not belong to the string; nor do blanks behind a
    backslash at the end of a line.
    """
    rows = text.replace("\r\n", "\n").split("\n")
    opened = rows[line - 1] if line <= len(rows) else ""
    if _CONTINUED.search(opened):
        while line < len(rows) and not rows[line].strip():
            line += 1
        return line + 1
    return line + 1 if _OPENED.search(opened) else line


class _Scan:
    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._table: KeyPath = ()
        self._counts: dict[KeyPath, int] = {}
        while self._skip_space():
            if self._text[self._at] == "[":
                self._read_header()
            else:
                self._read_assignment()

    @property
    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _skip_space(self) -> bool:
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter == "#":
                self._to_line_end()
            elif letter.isspace() or letter == "\ufeff":
                self._at += 1
            else:
                return True
        return False

    def _to_line_end(self) -> None:
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _read_header(self) -> None:
        line = self._line
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        names = self._read_key()
        path: KeyPath = ()
        for name in names[:-1]:
            path = self._latest((*path, name))
        path = (*path, names[-1])
        if is_array:
            self._counts[path] = self._counts.get(path, -1) + 1
            self.lines.setdefault(path, line)
            path = (*path, self._counts[path])
        self._note(path, line)
        self._table = path
        self._to_line_end()

    def _latest(self, path: KeyPath) -> KeyPath:
        """Below an array of tables, a header refers to its last table."""
        return (*path, self._counts[path]) if path in self._counts else path

    def _read_assignment(self) -> None:
        line = self._line
        names = self._read_key()
        if not names:  # the standard parser refuses this
            self._to_line_end()
            return
        self._note((*self._table, *names), line)
        self._at += 1  # the equals sign
        self._skip_value()

    def _note(self, path: KeyPath, line: int) -> None:
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _read_key(self) -> list[str]:
        names = []
        while part := _KEY_PART.match(self._text, self._at):
            self._at = part.end()
            names.append(_plain(part[1]))
            if not self._text.startswith(".", self._at):
                break
            self._at += 1
        return names

    def _skip_value(self) -> None:
        """Skip one value: to the end of a line on which no bracket and no string is open."""
        depth = 0
        while self._at < len(self._text):
            letter = self._text[self._at]
            if letter in "\"'":
                self._skip_string()
            elif letter == "#":
                self._to_line_end()
            elif letter == "\n" and not depth:
                return
            else:
                depth += (letter in "[{") - (letter in "]}")
                self._at += 1

    def _skip_string(self) -> None:
        mark = next(each for each in _DELIMITERS if self._text.startswith(each, self._at))
        at = self._at + len(mark)
        while at < len(self._text) and not self._text.startswith(mark, at):
            at += 2 if mark[0] == '"' and self._text[at] == "\\" else 1
        at += len(mark)
        # Up to two quotes may stand before the three that end a long string.
        while len(mark) == 3 and self._text.startswith(mark[0], at):
            at += 1
        self._at = at


def _plain(key: str) -> str:
    if key[0] not in "\"'":
        return key
    return next(iter(tomllib.loads(f"{key} = 0")))
