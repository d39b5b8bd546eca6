"""What Spark reports of our own code, as the one line that was meant for people."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quivermq.errors import QuiverError

_OURS: Final = re.compile(r"\bquivermq\.[\w.]+: (.+)")


@contextmanager
def spark_troubles() -> Iterator[None]:
    """Raise errors of Spark as ours, without its traceback."""
    from pyspark.errors import PySparkException  # noqa: PLC0415  (slow to load)

    try:
        yield
    except PySparkException as error:
        raise QuiverError(one_line(str(error))) from error


def one_line(text: str) -> str:
    """Our own message, if one of ours is in there; else the first line that Spark has."""
    found = _OURS.search(text)
    if found:
        return found[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "Spark failed and does not say why"
