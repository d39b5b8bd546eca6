"""Run scenario files: `python -m tests.raft.scenarios PATH...` (files or folders).

Structural mode: log lines are stripped from both sides, everything else must match exactly.
`--rewrite` writes what our own files print into them.
"""

import argparse
import difflib
import sys
from pathlib import Path

from tests.raft.scenario_commands import Commands
from tests.raft.scenario_grammar import Directive, parse, rendered, structural

OWN = Path(__file__).parent / "scenarios"
GIVEN = Path(__file__).parents[3] / "shared" / "etcd-raft-testdata"


def scenario_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*.txt") if file.is_file())
    return [path]


def first_mismatch(path: Path) -> str:
    """Run one file; empty if all its outputs match, else what went wrong, readable."""
    try:
        directives = parse(path)
    except (OSError, ValueError) as error:
        return f"{path}: cannot be read: {error}"
    commands = Commands()
    for directive in directives:
        try:
            actual = structural(commands.run(directive))
        except Exception as error:
            return f"{path}:{directive.line}: {directive.text}\n{type(error).__name__}: {error}"
        expected = structural(directive.expected)
        if actual != expected:
            return _difference(path, directive, expected, actual)
    return ""


def rewrite(path: Path) -> None:
    """Make a file of ours expect what it prints."""
    if OWN not in path.resolve().parents:
        raise SystemExit(f"{path} is not ours: only files below {OWN} are rewritten")
    directives = parse(path)
    commands = Commands()
    outputs = [commands.run(directive) for directive in directives]
    path.write_text("\n".join(rendered(directives, outputs)) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tests.raft.scenarios", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--rewrite", action="store_true", help="only below tests/raft/scenarios")
    chosen = parser.parse_args(arguments)
    files = [file for path in chosen.paths for file in scenario_files(path)]
    if chosen.rewrite:
        for file in files:
            rewrite(file)
    failures = [mismatch for file in files if (mismatch := first_mismatch(file))]
    print(*failures, sep="\n\n")
    print(f"{len(files) - len(failures)} passed, {len(failures)} failed")
    return 1 if failures or not files else 0


def _difference(path: Path, directive: Directive, expected: str, actual: str) -> str:
    lines = difflib.unified_diff(
        expected.split("\n"), actual.split("\n"), "expected", "actual", lineterm="", n=4
    )
    return "\n".join([f"{path}:{directive.line}: {directive.text}", *lines])


if __name__ == "__main__":
    sys.exit(main())
