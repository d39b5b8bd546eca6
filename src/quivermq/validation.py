"""Turns the errors of pydantic into sentences: what a value must be, and what it is instead.

Pydantic's own words ("unable to parse string as an integer") are for programmers. Settings,
options, pipelines and HTTP bodies say it by these; each adds the name of the flag, variable, key or
field in front. Works on the dicts of `ValidationError.errors()`, so it imports no pydantic.
"""

from collections.abc import Mapping
from typing import Any, Final

_SHOWN_MAX: Final = 60

_KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "string": "text",
    "bytes": "text",
    "dict": "a table of names and values",
    "model": "a table of names and values",
    "model_attributes": "a table of names and values",
    "list": "a list",
    "tuple": "a list",
    "datetime": "a time, like 2025-01-31T12:00:00Z",
    "path": "a path",
}
"""By how the name of an error begins: `int_parsing`, `int_type`, `int_from_float`."""

_BOUNDS: Final = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_LENGTHS: Final = {
    "too_short": ("at least", "min_length"),
    "too_long": ("at most", "max_length"),
    "string_too_short": ("at least", "min_length"),
    "string_too_long": ("at most", "max_length"),
}


def explain(error: Mapping[str, Any], *, show: bool = True) -> str:
    """The sentence without its subject: `must be a whole number, not 'x'`.

    With `show`, it names a short value that was given instead; not for secrets.
    """
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind == "value_error":
        return str(context.get("error") or error["msg"].removeprefix("Value error, "))
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return "is not known here"
    wanted = _wanted(kind, context)
    if wanted is None:
        wanted = str(error["msg"]).removeprefix("Input should be ").removeprefix("Input ")
    given = repr(error.get("input"))
    is_plain = isinstance(error.get("input"), str | int | float | None)
    return f"must be {wanted}" + (
        f", not {given}" if show and is_plain and len(given) <= _SHOWN_MAX else ""
    )


def _wanted(kind: str, context: Mapping[str, Any]) -> str | None:
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"{words} {context[name]}"
    if kind in _LENGTHS:
        words, name = _LENGTHS[kind]
        return f"{words} {context[name]} long"
    if kind in {"literal_error", "enum"}:
        return str(context["expected"])
    name, _, rest = kind.rpartition("_")
    if rest == "float":  # of int_from_float
        name = name.removesuffix("_from")
    return _KINDS.get(name)


def explain_toml(error: ValueError | RecursionError) -> str:
    """Why a text is no TOML; what exceeds a limit of the parser is said in Python's words."""
    if isinstance(error, RecursionError):
        return "brackets are nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "a number has too many digits"
    return str(error)
