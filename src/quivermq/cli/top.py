"""`quiver top`: brokers, topics and groups of a cluster while it works, on one screen."""

import asyncio
import logging
import os
import sys
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from quivermq.cli.errors import UsageError
from quivermq.cli.options import (
    DEFAULT_SERVERS,
    AsJson,
    Servers,
    duration_option,
    timeout_option,
)
from quivermq.cli.output import count, print_json, print_line, remark, stdout_console
from quivermq.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from quivermq.cli.top_samples import Sampler, TopSample
    from quivermq.client import ConnectOptions

T = TypeVar("T")
app = typer.Typer(add_completion=False)
_SHORTEST_SECONDS: Final = 0.1


class ViewName(Enum):
    """The tables."""

    TOPICS = "topics"
    GROUPS = "groups"
    BROKERS = "brokers"


@app.command()
def top(
    view: Annotated[
        ViewName | None,
        typer.Option(help="The table to begin with; --once prints this one only."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="COLUMN", help="Sort by this column, as 'in/s' or lag.")
    ] = "",
    text: Annotated[
        str, typer.Option("--filter", metavar="TEXT", help="Only rows with this in a name.")
    ] = "",
    with_system: Annotated[
        bool, typer.Option("--all", help="Also topics and groups of the system.")
    ] = False,
    interval: Annotated[
        float, duration_option("How often to look.", "--interval", show_default="2s")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look twice, print plain tables, and end.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    timeout: Annotated[float, timeout_option("5s")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Show brokers, topics and groups while they work, until q.

    Keys: Tab or 1 2 3 for the table, s to sort, / to filter, ? for the others.
    Without a terminal, as with --once or --json, it prints tables and ends.
    """
    shown = view or ViewName.TOPICS
    _check(shown.value, sort, interval)
    options = _options(servers, timeout)
    is_live = not (once or as_json) and _is_terminal()
    if is_live:
        from quivermq.cli.top_screen import Screen  # noqa: PLC0415  (help needs none of it)
        from quivermq.cli.top_terminal import run_screen  # noqa: PLC0415

        screen = Screen(
            shown.value, sort=sort, text=text, with_system=with_system, interval=interval
        )
        asyncio.run(_with_sampler(options, lambda sampler: run_screen(screen, sampler)))
        return
    sample = asyncio.run(_with_sampler(options, lambda sampler: _look_twice(sampler, interval)))
    names = [shown.value] if view or sort else [each.value for each in ViewName]
    _print(sample, names, sort=sort, text=text, with_system=with_system, as_json=as_json)


def _check(view: str, sort: str, interval: float) -> None:
    from quivermq.cli.top_views import VIEWS  # noqa: PLC0415  (help needs none of it)

    if interval < _SHORTEST_SECONDS:
        raise UsageError(f"--interval: at least {_SHORTEST_SECONDS:g}s")
    known = [column.name for column in VIEWS[view].columns]
    if sort and sort not in known:
        raise UsageError(f"--sort: {view} have no {sort!r}, but {', '.join(known)}")


def _options(servers: str, timeout: float) -> "ConnectOptions":
    from quivermq.client import ConnectOptions, parse_servers  # noqa: PLC0415  (help needs none)

    try:
        parse_servers(servers)
    except InvalidRequest as error:
        raise UsageError(f"--servers: {error}") from None
    return ConnectOptions.of(servers, token=None, tls=None, timeout=timeout)


async def _with_sampler(options: "ConnectOptions", work: "Callable[[Sampler], Awaitable[T]]") -> T:
    """Connect, and work with a sampler. Not by `quivermq.aio`, which loads Arrow."""
    from quivermq.cli.top_samples import Sampler  # noqa: PLC0415  (help needs no client)
    from quivermq.client import AsyncClient  # noqa: PLC0415

    client, logger = AsyncClient(options), logging.getLogger("quivermq.client")
    # The screen says that brokers are away; a line for each attempt would spoil it.
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        await client.ping()
        return await work(Sampler(client, options))
    finally:
        logger.setLevel(level)
        await client.close()


def _is_terminal() -> bool:
    is_both = sys.stdin.isatty() and sys.stdout.isatty()
    return is_both and os.environ.get("TERM", "dumb") != "dumb"


async def _look_twice(sampler: "Sampler", interval: float) -> "TopSample":
    """Rates are those between two samples."""
    await sampler.sample()
    await asyncio.sleep(interval)
    return await sampler.sample()


def _print(
    sample: "TopSample",
    names: list[str],
    *,
    sort: str,
    text: str,
    with_system: bool,
    as_json: bool,
) -> None:
    from quivermq.cli.top_views import VIEWS, arrange, fit  # noqa: PLC0415

    found: dict[str, list[Any]] = {}
    for name in names:
        view = VIEWS[name]
        rows = view.rows(sample, with_system=with_system)
        found[name] = arrange(rows, view.column(sort or view.sort), is_reverse=False, text=text)
    if as_json:
        told: dict[str, Any] = {name: [asdict(row) for row in rows] for name, rows in found.items()}
        told["findings"] = [asdict(each) for each in sample.findings]
        print_json(told)
        return
    nodes = sample.cluster.nodes
    alive = sum(node.alive for node in nodes)
    print_line(f"{count(len(nodes), 'broker')}, {alive} alive")
    for finding in sample.findings:
        remark(finding.text, "red" if finding.level == "bad" else "yellow")
    console = stdout_console()
    # A pipe has room for everything.
    width = console.width if console.is_terminal else sys.maxsize
    for name, rows in found.items():
        print_line("")
        if not rows:
            remark(f"nothing has {text!r} in its name" if text else VIEWS[name].empty)
            continue
        table = fit(VIEWS[name].columns, rows, width)
        print_line(table.line([each.name.upper() for each in table.columns]).rstrip(), "bold")
        for _, cells in table.rows:
            print_line(table.line(cells).rstrip())
