"""Lines of keys: tables against texts, and a property against the standard parser."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quivermq.pipelines.toml_lines import first_text_line, key_lines, line_of

TEXT = '''\
# a comment with [brackets] and "quotes
title = "a # in a string"

[pipeline]  # behind a header
name = 'x'
spark."spark.sql.x" = 1
list = [
  "]",  # ]
  '[',
]
last.dotted = true

[[steps]]
name = "one"
sql = """
SELECT "[[steps]]" -- name = 3
FROM x
"""

[[steps]]
sql = \'\'\'SELECT '' \'\'\'
name = "two"
[steps.watermark]
column = "at"

[sinks."with space"]
from = "one"
inline = { a = 1, b = """
2""" }
[a.b.c]
'''


def test_each_key_is_found_on_its_line() -> None:
    found = key_lines(TEXT)
    rows = TEXT.splitlines()
    expected = {
        ("title",): "title",
        ("pipeline",): "[pipeline]",
        ("pipeline", "name"): "name = 'x'",
        ("pipeline", "spark", "spark.sql.x"): "spark.",
        ("pipeline", "list"): "list = [",
        ("pipeline", "last", "dotted"): "last.dotted",
        ("steps",): "[[steps]]",
        ("steps", 0, "name"): 'name = "one"',
        ("steps", 0, "sql"): 'sql = """',
        ("steps", 1, "name"): 'name = "two"',
        ("steps", 1, "watermark", "column"): "column",
        ("sinks", "with space"): "[sinks.",
        ("sinks", "with space", "from"): "from",
        ("sinks", "with space", "inline"): "inline",
        ("a", "b", "c"): "[a.b.c]",
    }
    for path, begins in expected.items():
        assert rows[found[path] - 1].startswith(begins), path
    assert found["steps", 1] == found["steps", 0, "sql"] + 5
    assert ("steps", 0, "FROM") not in found
    assert all(path[0] != "SELECT" for path in found)


def test_a_key_without_a_line_of_its_own_has_that_of_its_table() -> None:
    found = key_lines(TEXT)
    assert (
        line_of(found, ("sinks", "with space", "inline", "a"))
        == found["sinks", "with space", "inline"]
    )
    assert line_of(found, ("steps", 0, "missing")) == found["steps", 0]
    assert line_of(found, ("nothing",)) == 1


def test_a_long_string_begins_behind_its_first_line_break() -> None:
    assert first_text_line('sql = """\nSELECT 1\n"""', 1) == 2
    assert first_text_line("sql  =  '''\nSELECT 1'''", 1) == 2
    assert first_text_line('sql = """SELECT 1\n"""', 1) == 1
    assert first_text_line('sql = "SELECT 1"', 1) == 1
    assert first_text_line('sql = """\\\n\n   SELECT 1\n"""', 1) == 3
    assert first_text_line("sql = '''\\\nSELECT 1'''", 1) == 1


_KEYS = st.text("abc-_9", min_size=1, max_size=3)
_STRINGS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=12)
_PIECES = st.one_of(
    st.builds("# {}".format, st.text("[]{}='\" abc", max_size=8)),
    st.just(""),
    st.builds("[{}.{}]".format, _KEYS, _KEYS),
    st.builds("[[{}]]".format, _KEYS),
    st.builds("{} = 1 # {}".format, _KEYS, st.text("[]'\"", max_size=4)),
    st.builds("{}.{} = [1,\n # ]\n 2]".format, _KEYS, _KEYS),
    st.builds("{} = '{}'".format, _KEYS, st.text('[]{}"#= a', max_size=8)),
    st.builds('{} = "{}"'.format, _KEYS, st.sampled_from(["", "[", r"\"", r"\\", "# a", "'"])),
    st.builds(
        '{} = """{}"""'.format,
        _KEYS,
        st.sampled_from(["", "\n[a]\nb = 1\n", r'\"""', '""', "'''", "\n# \n", "\\\\"]),
    ),
    st.builds("{} = '''{}'''".format, _KEYS, st.sampled_from(["", "\n[x]\n", "''", "\\", '"""'])),
)


@given(st.lists(_PIECES, max_size=10))
def test_every_key_that_the_parser_finds_has_a_line(pieces: list[str]) -> None:
    text = "\n".join(pieces)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = key_lines(text)
    assert {path for path in found if path} == set(_paths(data, ()))
    starts = [1]
    for piece in pieces:
        starts.append(starts[-1] + piece.count("\n") + 1)
    assert set(found.values()) <= set(starts)


def _paths(value: Any, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
    here = [path] if path else []
    if isinstance(value, dict):
        return here + [each for key in value for each in _paths(value[key], (*path, key))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return here + [each for at, item in enumerate(value) for each in _paths(item, (*path, at))]
    return here
