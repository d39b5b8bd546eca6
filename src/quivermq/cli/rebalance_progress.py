"""Shows the progress of a rebalance until nothing is left to move."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quivermq.cli.output import print_error, remark, stderr_console

if TYPE_CHECKING:
    from quivermq.client import RebalanceInfo

_WATCH_SECONDS: Final = 0.3
_STALL_SECONDS: Final = 10.0


def watch(
    what: str,
    ask: Callable[[], "RebalanceInfo"],
    is_done: Callable[["RebalanceInfo"], bool],
    *,
    quiet: bool,
) -> "RebalanceInfo":
    """Wait until it is done, with a bar on a terminal. Ctrl-C does not stop the rebalance."""
    console = stderr_console()
    found = ask()
    total = found.moves_left + found.leaders_left
    stalls = _StallReporter(quiet=quiet)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    ) as progress:
        task = progress.add_task(what, total=total)
        while not is_done(found):
            stalls.look(found)
            time.sleep(_WATCH_SECONDS)
            found = ask()
            left = found.moves_left + found.leaders_left
            total = max(total, left)
            moving = f": {found.moving[0]}" if found.moving else ""
            progress.update(
                task, description=escape(what + moving), total=total, completed=total - left
            )
    return found


class _StallReporter:
    """Reports problems, and a rebalance that makes no progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._trouble = ""
        self._left = -1
        self._since = 0.0

    def look(self, found: "RebalanceInfo") -> None:
        if found.trouble and found.trouble != self._trouble and not self._quiet:
            self._trouble = found.trouble
            print_error(found.trouble, label="warning")
        left = found.moves_left + found.leaders_left
        now = time.monotonic()
        if left != self._left:
            self._left, self._since = left, now
        elif now - self._since > _STALL_SECONDS and not self._quiet:
            self._since = now
            what = found.moving[0] if found.moving else "no broker says for what"
            remark(f"{left} left, waiting: {what} (Ctrl-C does not stop it)", "yellow")
