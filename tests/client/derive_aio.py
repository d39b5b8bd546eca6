"""Derives the asyncio client from the blocking one: `make aio` writes its two modules.

Every method of `Client` and `AdminClient` is taken over with its documentation. `run(...)` becomes
`await ...`, and so does a call of a method that `AsyncClientLifecycle` defines with `async def`; a
method that awaits becomes `async def`. A class that has an asyncio counterpart is replaced by it.
Examples in the documentation are translated likewise.
"""

import ast
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

CLIENT: Final = Path(__file__).parents[2] / "src" / "quivermq" / "client"
SOURCES: Final = ("admin_client.py", "client.py")

COUNTERPARTS: Final = {
    "AdminClient": "AsyncAdminClient",
    "ClientLifecycle": "AsyncClientLifecycle",
    "Client": "AsyncClient",
    "Consumer": "AsyncConsumer",
    "LeasedMessage": "AsyncLeasedMessage",
    "LeasedTable": "AsyncLeasedTable",
    "Producer": "AsyncProducer",
    "Reader": "AsyncReader",
    "Subscription": "AsyncSubscription",
}
MODULES: Final = {
    "quivermq.client.admin_client": "quivermq.client.aio_admin_client",
    "quivermq.client.shared.subscription": "quivermq.client.shared.aio_subscription",
}

MODULE_TEXT: Final = '''\
# Generated from {source} by tests/client/derive_aio.py: change it there, and run `make aio`.
"""The asyncio client: every call of the blocking one, awaitable, with its documentation."""
'''
CLASS_TEXTS: Final = {
    "AdminClient": '"""Administers a cluster; `AsyncClient` adds what produces and consumes."""',
    "Client": '''"""A connection to a cluster, on the event loop that it was made on.

    Any number of tasks may use it at the same time. Use it with `async with`, or `close()` it.
    """''',
}

# In examples: what is awaited beside calls of the client, and what is iterated with `async for`.
_AWAITED: Final = {("message", "ack"), ("batch", "ack"), ("producer", "send")}
_ITERATED: Final = ("subscription", "consumer")
_PROMPT: Final = re.compile(r"^( *)(>>>|\.\.\.) ?(.*)$")


def target_of(source: str) -> Path:
    """The asyncio module that a module is derived to."""
    return CLIENT / f"aio_{source}"


def derive(source: str) -> str:
    """The whole text of the asyncio module of a module of the client."""
    text = (CLIENT / source).read_text()
    tree = ast.parse(text)
    client = class_in(tree)
    awaited = coroutines_of("lifecycle.py", "AsyncClientLifecycle")
    calls = {name for each in SOURCES for name in waiting_calls(each, awaited)}
    parts = [MODULE_TEXT.format(source=source)]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported = source_of(text, node)
            for name, counterpart in MODULES.items():
                imported = imported.replace(f"{name} ", f"{counterpart} ")
            parts.append(rename(imported))
    head = rename(f"class {client.name}({ast.unparse(client.bases[0])}):")
    parts.append(f"\n\n{head}\n    {CLASS_TEXTS[client.name]}\n")
    for method in methods_of(client):
        code = translate(source_of(text, method), lambda tree: awaits_in(tree, awaited))
        code = re.sub(
            r'"""(.*?)"""', lambda found: document(found[0], calls), code, flags=re.DOTALL
        )
        code = f"async {code}" if method.name in calls else code
        parts.append(textwrap.indent(rename(code), "    ") + "\n")
    return tidy("\n".join(parts), target_of(source))


def class_in(tree: ast.Module) -> ast.ClassDef:
    """The only class of a module."""
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return found


def methods_of(client: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in client.body if isinstance(node, ast.FunctionDef)]


def waiting_calls(source: str, awaited: set[str]) -> set[str]:
    """The methods of a module's class that wait for a broker."""
    client = class_in(ast.parse((CLIENT / source).read_text()))
    return {each.name for each in methods_of(client) if any(awaits_in(each, awaited))}


def coroutines_of(module: str, name: str) -> set[str]:
    """The methods of a class that are `async def`."""
    tree = ast.parse((CLIENT / module).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name for node in found.body if isinstance(node, ast.AsyncFunctionDef)}


def source_of(text: str, node: ast.AST) -> str:
    """The text of a node, its first line without indentation like all others."""
    return textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")


def rename(source: str) -> str:
    """The same with the asyncio counterparts of classes, but not within `quivermq.Client`."""
    pattern = rf"(?<![\w.])({'|'.join(COUNTERPARTS)})(?!\w)"
    return re.sub(pattern, lambda found: COUNTERPARTS[found[1]], source)


def awaits_in(tree: ast.AST, awaited: set[str]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Calls that wait, each with the expression that is to be awaited in its place."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="run"), args=[coroutine]):
                yield node, coroutine
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                if name in awaited:
                    yield node, node


def document(text: str, calls: set[str]) -> str:
    """A docstring with its examples translated."""
    lines: list[str] = []
    example: list[str] = []
    for line in [*text.splitlines(), ""]:
        found = _PROMPT.match(line)
        if example and (found is None or found[2] == ">>>"):
            lines += translate_example(example, calls)
            example = []
        if found is None:
            lines.append(line)
        else:
            example.append(line)
    return "\n".join(lines[:-1])


def translate_example(lines: list[str], calls: set[str]) -> list[str]:
    """One statement of an example, with its prompts."""
    found = [match for line in lines if (match := _PROMPT.match(line))]
    code = translate(
        "\n".join(match[3] for match in found), lambda tree: example_awaits(tree, calls)
    )
    code = re.sub(r"^with client", "async with client", code)
    code = re.sub(
        rf"^( *)for (\w+) in ({'|'.join(_ITERATED)}|client\.read)",
        r"\1async for \2 in \3",
        code,
        flags=re.MULTILINE,
    )
    indent = found[0][1]
    prompts = (f"{indent}{'...' if number else '>>>'}" for number in range(len(lines)))
    return [f"{prompt} {line}" for prompt, line in zip(prompts, code.split("\n"), strict=True)]


def example_awaits(tree: ast.AST, calls: set[str]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Calls that wait in an example; of a delivery, the result is the delivery awaited."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="delivery") as delivery)):
                yield node, delivery
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)):
                if (name == "client" and attr in calls) or (name, attr) in _AWAITED:
                    yield node, node


def translate(source: str, find: Callable[[ast.AST], Iterator[tuple[ast.expr, ast.expr]]]) -> str:
    """The source with all that `find` yields awaited, inner expressions first."""
    while True:
        tree = ast.parse(source)
        awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
        left = [each for each in find(tree) if id(each[1]) not in awaited]
        if not left:
            return source
        node, value = left[-1]
        needs_parentheses = any(
            isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is node
            for parent in ast.walk(tree)
        )
        inner = f"await {ast.get_source_segment(source, value)}"
        start, end = (
            place(source, node.lineno, node.col_offset),
            place(source, node.end_lineno or 0, node.end_col_offset or 0),
        )
        source = source[:start] + (f"({inner})" if needs_parentheses else inner) + source[end:]


def place(source: str, line: int, column: int) -> int:
    """Where a line and column of the syntax tree are in the text, which is ASCII."""
    return sum(len(each) for each in source.splitlines(keepends=True)[: line - 1]) + column


def tidy(text: str, target: Path) -> str:
    """Without the imports that only `connect` needs, in the format of all sources."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(target), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select=F401,I"], ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *command, *name], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    for each in SOURCES:
        target_of(each).write_text(derive(each))
