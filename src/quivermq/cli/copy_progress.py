"""Shows how far a backup or a restore is, with a bar on a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from quivermq.backup import CopyProgress
from quivermq.cli.output import stderr_console
from quivermq.quantities import format_size


@contextmanager
def show_progress(*, quiet: bool) -> Iterator[Callable[[CopyProgress], None]]:
    """A function to be told how far it is; nothing is shown where there is no terminal."""
    console = stderr_console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[copied]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as progress:
        task = progress.add_task("", total=None, copied="")

        def report(found: CopyProgress) -> None:
            progress.update(
                task,
                description=escape(found.stage),
                total=found.messages_total or None,
                completed=found.messages,
                copied=format_size(found.bytes),
            )

        yield report
