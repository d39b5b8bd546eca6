"""Derives the asyncio client from the blocking one: `make aio` writes `client/aio_client.py`.

Every method of `Client` is taken over with its documentation. `run(...)` becomes `await ...`,
and so does a call of a method that `AsyncClientLifecycle` defines with `async def`; a method that
awaits becomes `async def`. A class that has an asyncio counterpart is replaced by it. Examples in
the documentation are translated likewise.
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
TARGET: Final = CLIENT / "aio_client.py"

COUNTERPARTS: Final = {
    "ClientLifecycle": "AsyncClientLifecycle",
    "Client": "AsyncClient",
    "Consumer": "AsyncConsumer",
    "LeasedMessage": "AsyncLeasedMessage",
    "LeasedTable": "AsyncLeasedTable",
    "Producer": "AsyncProducer",
    "Reader": "AsyncReader",
    "Subscription": "AsyncSubscription",
}
MODULES: Final = {"quivermq.client.shared.subscription": "quivermq.client.shared.aio_subscription"}

MODULE_TEXT: Final = '''\
# Generated from client.py by tests/client/derive_aio.py. Change that file, and run `make aio`.
"""The asyncio client: every call of the blocking one, awaitable, with its documentation."""
'''
CLASS_TEXT: Final = '''"""A connection to a cluster, on the event loop that it was made on.

    Any number of tasks may use it at the same time. Use it with `async with`, or `close()` it.
    """'''

# In examples: what is awaited beside calls of the client, and what is iterated with `async for`.
_AWAITED: Final = {("message", "ack"), ("batch", "ack"), ("producer", "send")}
_ITERATED: Final = ("subscription", "consumer")
_PROMPT: Final = re.compile(r"^( *)(>>>|\.\.\.) ?(.*)$")


def derive() -> str:
    """The whole text of the asyncio client's module."""
    text = (CLIENT / "client.py").read_text()
    tree = ast.parse(text)
    (client,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    awaited = coroutines_of("lifecycle.py", "AsyncClientLifecycle")
    methods = [node for node in client.body if isinstance(node, ast.FunctionDef)]
    calls = {method.name for method in methods if any(awaits_in(method, awaited))}
    parts = [MODULE_TEXT]
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            source = source_of(text, node)
            for name, counterpart in MODULES.items():
                source = source.replace(f"{name} ", f"{counterpart} ")
            parts.append(rename(source))
    parts.append(f"\n\nclass AsyncClient(AsyncClientLifecycle):\n    {CLASS_TEXT}\n")
    for method in methods:
        source = translate(source_of(text, method), lambda tree: awaits_in(tree, awaited))
        source = re.sub(
            r'"""(.*?)"""', lambda found: document(found[0], calls), source, flags=re.DOTALL
        )
        source = f"async {source}" if method.name in calls else source
        parts.append(textwrap.indent(rename(source), "    ") + "\n")
    return tidy("\n".join(parts))


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


def tidy(text: str) -> str:
    """Without the imports that only `connect` needs, in the format of all sources."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(TARGET), "-"]
    for command in (["check", "--quiet", "--fix-only", "--select=F401,I"], ["format", "--quiet"]):
        done = subprocess.run(
            [*ruff, *command, *name], input=text, capture_output=True, text=True, check=True
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(derive())
