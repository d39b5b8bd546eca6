"""The status of `quiver shell`: the cluster, the messages held and the group's counts."""

import time
from typing import TYPE_CHECKING, Final

from rich.live import Live
from rich.text import Text

from quivermq.cli.output import count, numbers, printable, remark, stdout_console
from quivermq.cli.shell_modes import SharedMode, ShellMode, StickyMode
from quivermq.errors import QuiverError

if TYPE_CHECKING:
    from quivermq.client import Client, GroupInfo

_LIVE_SECONDS: Final = 1.0


class ShellStatus:
    """Asks for the status, again and again if it is to be live."""

    def __init__(
        self, client: "Client", topic: str | None, group: str, mode: str, opened: ShellMode | None
    ) -> None:
        self._client = client
        self._topic = topic
        self._group = group
        self._mode = mode
        self._opened = opened
        self._last: tuple[float, int] | None = None
        """When the group was looked at, and how many messages it had done."""

    def lines(self) -> list[str]:
        """The status, a sentence a line."""
        cluster = self._client.cluster()
        alive = sum(node.alive for node in cluster.nodes)
        found = [f"cluster of {count(len(cluster.nodes), 'broker')}, {alive} alive"]
        if self._topic is None:
            return [*found, "no topic in use; subscribe TOPIC [GROUP]"]
        found.append(f"topic {self._topic}, group {self._group}, mode {self._mode}")
        if isinstance(self._opened, SharedMode):
            found.append(f"held: {_ranges(list(self._opened.held))}")
        elif isinstance(self._opened, StickyMode):
            found.append(f"partitions: {numbers(self._opened.consumer.assignment)}")
        groups = self._client.groups(self._topic)
        return found + [self._counts(each) for each in groups if each.name == self._group]

    def _counts(self, group: "GroupInfo") -> str:
        now, rate = time.monotonic(), ""
        if self._last is not None and now > self._last[0]:
            rate = f" ({max(0, group.done - self._last[1]) / (now - self._last[0]):,.0f}/s)"
        self._last = (now, group.done)
        return (
            f"lag {group.lag:,}, in flight {group.in_flight:,}, delayed {group.delayed:,}, "
            f"done {group.done:,}{rate}, dead {group.dead:,}"
        )


def show_live(status: ShellStatus) -> None:
    """Show the status in place, until Ctrl-C; brokers that do not answer are waited for."""
    remark("Ctrl-C ends")
    with Live(console=stdout_console(), auto_refresh=False) as live:
        try:
            while True:
                try:
                    text = "\n".join(status.lines())
                except QuiverError as error:
                    text = f"no answer: {printable(str(error).encode())}"
                live.update(Text(text), refresh=True)
                time.sleep(_LIVE_SECONDS)
        except KeyboardInterrupt:
            return


def _ranges(held: list[int]) -> str:
    if not held:
        return "nothing"
    last = f" to [{held[-1]}]" if len(held) > 1 else ""
    return f"{count(len(held), 'message')}, [{held[0]}]{last}"
