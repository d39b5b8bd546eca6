"""Runs `quiver`, as a process or inside the test process.

A process takes half a second to start, most of it imports.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from quivermq.cli import main


class Done(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


COMMAND = [sys.executable, "-m", "quivermq"]


def environment(**variables: str) -> dict[str, str]:
    """Our environment without the user's settings for QuiverMQ and for colours."""
    hidden = ("QUIVER_", "COLUMNS", "FORCE_COLOR", "CLICOLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**kept, "QUIVER_CLIENT_CONFIG": "", **variables}


def quiver_process(
    *arguments: str | Path,
    stdin: str | bytes = "",
    cwd: Path | None = None,
    variables: dict[str, str] | None = None,
) -> Done:
    """Run a command to its end, as a process."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environment(**(variables or {})),
        timeout=60,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def quiver(
    *arguments: str | Path,
    stdin: str | bytes = "",
    cwd: Path | None = None,
    variables: dict[str, str] | None = None,
) -> Done:
    """The same in this process, with streams, variables and folder of its own."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = {
        "stdin": io.TextIOWrapper(io.BytesIO(given)),
        "stdout": io.TextIOWrapper(io.BytesIO(), write_through=True),
        "stderr": io.TextIOWrapper(io.BytesIO(), write_through=True),
    }
    with (
        mock.patch.multiple(sys, argv=["quiver", *map(str, arguments)], **streams),
        mock.patch.dict(os.environ, environment(**(variables or {})), clear=True),
        contextlib.chdir(cwd or Path.cwd()),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    printed = [streams[name].buffer.getvalue().decode() for name in ("stdout", "stderr")]  # type: ignore[attr-defined]
    return Done(code if isinstance(code, int) else 0, *printed)


def quiver_json(*arguments: str | Path, **options: Any) -> Any:
    """Run a command that must succeed; what it printed as JSON."""
    done = quiver(*arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def error_line(done: Done, code: int) -> str:
    """The one line on standard error of a command that failed as it should."""
    assert done.returncode == code, (done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")
