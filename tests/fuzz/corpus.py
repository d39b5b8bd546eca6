"""Inputs that are kept: those that were bugs, and those that together reach the most lines."""

import hashlib
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import quivermq
from tests.fuzz.target import Target, trouble

FOUND = Path(__file__).parent / "found"
CORPUS = Path(__file__).parent / "corpus"
CORPUS_BYTES_MAX = 30_000
"""Of one target, packed: all of them stay below half a megabyte."""
_SOURCE = str(Path(quivermq.__file__).parent)
_NOT_MEASURED = str(Path(quivermq.__file__).parent / "testing")
_NO_TIME = (1980, 1, 1, 0, 0, 0)

Lines = set[tuple[CodeType, int]]


def keep_found(name: str, data: bytes) -> Path:
    """Keep an input that is a bug, where tests read it from now on."""
    path = FOUND / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    path.write_bytes(data)
    return path


def load(name: str) -> list[bytes]:
    """The inputs that are kept for a target."""
    path = CORPUS / f"{name}.zip"
    if not path.exists():
        return []
    with zipfile.ZipFile(path) as packed:
        return [packed.read(entry) for entry in packed.namelist()]


def save(name: str, inputs: list[bytes]) -> Path:
    """Keep these, as many as there is room for; the same inputs make the same file."""
    path = CORPUS / f"{name}.zip"
    CORPUS.mkdir(exist_ok=True)
    for count in range(len(inputs), 0, -1):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for number, data in enumerate(inputs[:count]):
                entry = zipfile.ZipInfo(f"{number:03d}", _NO_TIME)
                packed.writestr(entry, data, zipfile.ZIP_DEFLATED)
        if path.stat().st_size <= CORPUS_BYTES_MAX:
            break
    return path


def reduced(target: Target, inputs: Iterable[bytes]) -> tuple[list[bytes], Lines]:
    """Few inputs that reach all lines that these reach, the most telling first, and those lines."""
    reached = {data: lines_of(target, data) for data in sorted(set(inputs), key=len)}
    kept, covered = [], Lines()
    while reached:
        best = max(reached, key=lambda data: (len(reached[data] - covered), -len(data)))
        if not reached[best] - covered:
            break
        covered |= reached.pop(best)
        kept.append(best)
    return kept, covered


def lines_of(target: Target, data: bytes) -> Lines:
    """The lines of the package that an input reaches."""
    lines = Lines()

    def enter(frame: FrameType, _: str, __: Any) -> Any:
        code = frame.f_code
        is_ours = code.co_filename.startswith(_SOURCE)
        if not is_ours or code.co_filename.startswith(_NOT_MEASURED):
            return None

        def step(inner: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add((code, inner.f_lineno))
            return step

        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        trouble(target, data)
    finally:
        sys.settrace(before)
    return lines
