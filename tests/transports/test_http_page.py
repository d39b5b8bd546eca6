"""The commands of docs/http.md run as they are written, and show what the page shows."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from tests.transports.stage import on_served_loop, serving
from tests.transports.test_http_api import ANYWHERE

PAGE = Path(__file__).parents[2] / "docs" / "http.md"

# Each time others.
CHANGING = {
    "cluster_id", "commit_index", "died", "due", "id", "lease", "message", "request_id",
    "size_bytes", "term", "timestamp", "version",
}  # fmt: skip


def blocks() -> list[tuple[str, str, str]]:
    """Commands, each with the language of what is shown behind them, and that."""
    found = re.findall(r"```sh\n(.*?)```\n\n```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == PAGE.read_text().count("```sh\n")
    return found


def values(text: str) -> list[Any]:
    """JSON values, one behind the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def steady(value: Any) -> Any:
    """Without what is another each time."""
    if isinstance(value, dict):
        return {
            name: type(each).__name__ if name in CHANGING else steady(each)
            for name, each in value.items()
        }
    return [steady(each) for each in value] if isinstance(value, list) else value


@on_served_loop
async def test_the_commands_of_the_page_show_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "shell"
    folder.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    async with serving(tmp_path / "data", http=ANYWHERE) as server:
        for command, kind, shown in blocks():
            process = await asyncio.create_subprocess_exec(
                "bash",
                "-euc",
                command.replace("127.0.0.1:9600", server.http),
                cwd=folder,
                env={**os.environ, "PATH": path},
                stdout=asyncio.subprocess.PIPE,
            )
            said = (await process.communicate())[0].decode()
            assert process.returncode == 0, command
            if kind == "json":
                assert steady(values(said)) == steady(values(shown)), command
            else:
                fields = [line.partition(":")[0] for line in shown.splitlines()]
                assert [line.partition(":")[0] for line in said.splitlines()] == fields
