"""Reduces the error of a Spark query to one line, and says whether a retry may help."""

import re
from typing import Final

from quivermq.errors import (
    Corrupt,
    Forbidden,
    InvalidRequest,
    OffsetOutOfRange,
    TopicNotFound,
    Unauthenticated,
)

_OURS: Final = re.compile(r"^quivermq\.[\w.]*?(\w+): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*(?:Error|Exception|Warning)): (.+)$", re.MULTILINE
)
_SPARK: Final = re.compile(r"terminated with exception: (.+)", re.DOTALL)
_CONDITION: Final = re.compile(r"\[[A-Z0-9_.]+\] ")
_MACHINE_TALK: Final = re.compile(
    r"( SQLSTATE: \w+|\n=== Streaming Query ===|\n\nJVM stacktrace|\n\tat |\nDriver stacktrace:).*",
    re.DOTALL,
)
_COLUMNS_MAX: Final = 600
# Data that does not fit the SQL, and SQL that does not fit the data.
_LASTING_STATE: Final = re.compile(r"SQLSTATE: (22|42)")
_LASTING: Final = frozenset(
    kind.__name__
    for cause in (
        Corrupt,
        Forbidden,
        InvalidRequest,
        OffsetOutOfRange,
        TopicNotFound,
        Unauthenticated,
    )
    for kind in (cause, *cause.__subclasses__())
)
"""By name: an exception that passed from Python through the JVM is text."""


def failure(text: str) -> str:
    """The innermost cause: ours if there is one, else Python's, else Spark's own message."""
    if found := _OURS.findall(text):
        line = found[-1][1]
    elif "Traceback" in text and (found := _PYTHON.findall(text)):
        line = ": ".join(found[-1])
    else:
        said = _SPARK.search(text)
        line = said[1] if said else text
    line = " ".join(_CONDITION.sub("", _MACHINE_TALK.sub("", line)).split())
    return line if len(line) <= _COLUMNS_MAX else line[: _COLUMNS_MAX - 1] + "…"


def may_pass(text: str) -> bool:
    """Whether a retry may succeed; not if data or settings are wrong."""
    if _LASTING_STATE.search(text):
        return False
    return not any(name in _LASTING for name, _ in _OURS.findall(text))
