"""The house rules, checked: size, names, import direction, purity."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "quivermq"

# Low to high: a room may import only rooms before it, and never the pairs in FORBIDDEN. No room
# imports testing: what only tests use lives there.
LAYERS = [
    "errors", "quantities", "validation", "moments", "topic_settings", "addresses", "intervals",
    "names", "events", "batches", "log_context", "client_file", "settings", "tls", "raft", "queue",
    "wire", "tracing", "cluster", "log", "replica", "client", "cluster_findings",
    "cluster_samples", "backup", "node", "transports", "lakehouse", "spark", "pipelines",
    "integrations", "portal", "testing", "cli",
]  # fmt: skip
FORBIDDEN = {
    ("queue", "raft"), ("wire", "raft"), ("wire", "queue"), ("client", "raft"),
    ("client", "queue"), ("client", "log"), ("client", "replica"), ("spark", "node"),
    ("lakehouse", "node"), ("pipelines", "node"), ("portal", "node"), ("portal", "queue"),
    ("cluster_samples", "raft"), ("cluster_samples", "queue"), ("cluster_samples", "log"),
    ("cluster_samples", "replica"), ("portal", "transports"), ("portal", "log"),
    ("portal", "replica"), ("portal", "raft"),
    ("cli", "raft"), ("integrations", "node"), ("cli", "testing"), ("raft", "batches"),
    ("raft", "settings"),
}  # fmt: skip
PURE = {
    "errors", "quantities", "validation", "topic_settings", "addresses", "intervals", "names",
    "events", "batches", "raft", "queue", "wire", "cluster", "replica",
}  # fmt: skip
IMPURE = {
    "asyncio", "socket", "ssl", "threading", "os", "io", "time", "datetime", "random",
    "pathlib", "logging", "subprocess", "tempfile", "uuid", "secrets",
}  # fmt: skip
BANNED_NAMES = {"util", "utils", "common", "helpers", "misc", "manager", "base"}
FILE_LINES_MAX, FUNCTION_LINES_MAX, LINE_COLUMNS_MAX = 720, 60, 100


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            # `from quivermq import log` names a room as surely as `import quivermq.log`.
            if node.module == "quivermq":
                yield from ((node.lineno, f"quivermq.{alias.name}") for alias in node.names)


def shape_faults(where: str, text: str, tree: ast.Module, room: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) > FILE_LINES_MAX:
        yield f"{where}: {len(lines)} lines (max {FILE_LINES_MAX})"
    if not ast.get_docstring(tree):
        yield f"{where}: no module docstring"
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_COLUMNS_MAX:
            yield f"{where}:{number}: longer than {LINE_COLUMNS_MAX} columns"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield f"{where}:{node.lineno}: {node.name} is {length} lines"
            if room in PURE and isinstance(node, ast.AsyncFunctionDef):
                yield f"{where}:{node.lineno}: async in a pure room"


def import_faults(where: str, tree: ast.Module, room: str) -> Iterator[str]:
    for number, name in imports(tree):
        head, *rest = name.split(".")
        if room in PURE and head in IMPURE:
            yield f"{where}:{number}: {room} is pure, it may not import {head}"
        if head == "quivermq" and rest and rest[0] in LAYERS and room in LAYERS:
            above = LAYERS.index(rest[0]) > LAYERS.index(room)
            if above or (room, rest[0]) in FORBIDDEN:
                yield f"{where}:{number}: {room} may not import {rest[0]}"
        if head == "quivermq" and len(rest) > 1 and rest[0] != room and "generated" not in rest:
            yield f"{where}:{number}: import it from quivermq.{rest[0]}, not from {name}"


def faults_of(text: str, parts: tuple[str, ...]) -> list[str]:
    """What is wrong with the module at `parts` below src/quivermq."""
    where = "/".join(parts)
    tree = ast.parse(text)
    room = parts[0].removesuffix(".py")
    faults = [*shape_faults(where, text, tree, room), *import_faults(where, tree, room)]
    if BANNED_NAMES & {part.removesuffix(".py") for part in parts}:
        faults.append(f"{where}: a name that says nothing")
    return faults


def test_the_sources_keep_the_house_rules() -> None:
    faults = [
        fault
        for path in sorted(SRC.rglob("*.py"))
        if "generated" not in path.parts
        for fault in faults_of(path.read_text(), path.relative_to(SRC).parts)
    ]
    assert not faults, "\n" + "\n".join(faults)


def test_each_house_rule_catches_its_breach() -> None:
    doc = '"""Doc."""\n'
    assert faults_of("x = 1\n", ("log", "x.py")) == ["log/x.py: no module docstring"]
    assert "may not import os" in faults_of(doc + "import os\n", ("raft", "x.py"))[0]
    assert "may not import node" in faults_of(doc + "import quivermq.node\n", ("log", "x.py"))[0]
    assert (
        "may not import node" in faults_of(doc + "from quivermq import node\n", ("log", "x.py"))[0]
    )
    for room in ("log", "node", "spark", "cli"):
        source = doc + "from quivermq.testing.simulated_disk import SimulatedDisk\n"
        assert "may not import testing" in faults_of(source, (room, "x.py"))[0]
    inside = doc + "from quivermq.batches.limits import MIB\n"
    assert "import it from quivermq.batches" in faults_of(inside, ("log", "x.py"))[0]
    assert not faults_of(inside, ("batches", "x.py"))
    assert "async" in faults_of(doc + "async def f(): ...\n", ("queue", "x.py"))[0]
    assert "says nothing" in faults_of(doc, ("log", "utils.py"))[0]
    assert "columns" in faults_of(doc + "x = " + "1" * 100 + "\n", ("log", "x.py"))[0]
    assert "lines" in faults_of(doc + "\n" * FILE_LINES_MAX, ("log", "x.py"))[0]
    body = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
    assert "f is" in faults_of(doc + body, ("log", "x.py"))[0]


_OWN_FOLDERS = {
    "__pycache__", "attacks", "cluster", "deploy", "fuzz", "limits", "museum", "mutants",
    "pages", "upgrades",
}  # fmt: skip


def test_every_test_folder_mirrors_a_source_folder() -> None:
    rooms = {path.name for path in SRC.iterdir() if path.is_dir()}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    strangers = folders - rooms - _OWN_FOLDERS
    assert not strangers, f"tests/ has folders that src/ has not: {sorted(strangers)}"
