"""Writes every event to a file at once, so that what a killed process saw can still be judged.

    group = JournaledCalls(Journal(path), "group")
    group.record_leave("consumer 1", time.monotonic_ns())

    replay(path, {"group": GroupHistory("workers")})

A journal holds calls of recorders such as `GroupHistory`. A judge that replays it makes the same
calls, on recorders of its own.
"""

import os
import pickle
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

_LENGTH: Final = struct.Struct("<I")


class JournaledCall(NamedTuple):
    """A call of a recorder."""

    recorder: str
    method: str
    arguments: tuple[Any, ...]


class Journal:
    """A file to which calls are appended."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, recorder: str, method: str, *arguments: Any) -> None:
        """Append a call; after this it survives the process."""
        kept = tuple(list(one) if isinstance(one, Iterator) else one for one in arguments)
        data = pickle.dumps((recorder, method, kept), pickle.HIGHEST_PROTOCOL)
        os.write(self._file, _LENGTH.pack(len(data)) + data)


class JournaledCalls:
    """Stands in for a recorder: every method that is called on it goes into a journal."""

    def __init__(self, journal: Journal, recorder: str) -> None:
        self._journal = journal
        self._recorder = recorder

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return partial(self._journal.write, self._recorder, method)


def read_journal(path: Path) -> Iterator[JournaledCall]:
    """The whole calls of a journal; of the last one a killed process may have written a part."""
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            return
        yield JournaledCall(*pickle.loads(data[at : at + length]))  # noqa: S301 - our own file
        at += length


def replay(path: Path, recorders: Mapping[str, Any]) -> Counter[str]:
    """Make the calls of a journal; returns how often each method was called."""
    counts: Counter[str] = Counter()
    for recorder, method, arguments in read_journal(path):
        getattr(recorders[recorder], method)(*arguments)
        counts[f"{recorder}.{method}"] += 1
    return counts
