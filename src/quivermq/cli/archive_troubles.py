"""Translates errors of Spark into one line: our own message, if one of ours is the cause."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quivermq.errors import QuiverError

_OURS: Final = re.compile(r"\bquivermq\.[\w.]+: (.+)")


@contextmanager
def spark_troubles() -> Iterator[None]:
    """Raise errors of Spark as `QuiverError`, without its traceback."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  (slow to load)

    try:
        yield
    except PySparkException as error:
        raise QuiverError(one_line(str(error))) from error


def one_line(text: str) -> str:
    """The message of our own error in the text, if there is one; else the first line."""
    found = _OURS.search(text)
    if found:
        return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed and does not say why"
