"""Running `quiver` as people run it: as a process, with its own streams and exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-m", "quivermq"]


def environment(**variables: str) -> dict[str, str]:
    """Ours, without what the person who runs the tests has set for QuiverMQ or for colours."""
    hidden = ("QUIVER_", "COLUMNS", "FORCE_COLOR", "CLICOLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {**kept, **variables}


def quiver(
    *arguments: str | Path,
    stdin: str | bytes = "",
    cwd: Path | None = None,
    variables: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its output as text."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        capture_output=True,
        check=False,
        cwd=cwd,
        env=environment(**(variables or {})),
        timeout=60,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def quiver_json(*arguments: str | Path, **options: Any) -> Any:
    """Run a command that must succeed; what it printed as JSON."""
    done = quiver(*arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def error_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line on standard error of a command that failed as it should."""
    assert done.returncode == code, (done.stdout, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")
