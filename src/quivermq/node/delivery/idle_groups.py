"""Finds shared groups that no consumer has used for a while, as far as a leader can tell.

It counts the time since it came to lead, or since the last use, in which it could hear consumers.
No wall clock counts, nor what another leader saw: after a change of leader the count begins
anew, so a group is forgotten late rather than early.
"""

from collections.abc import Iterable
from typing import Final

USED_MAX: Final = 20_000


class CountedTime:
    """Milliseconds in which this broker went on: one that stood still heard no consumer, and that
    is no fault of the groups."""

    def __init__(self, step_ms: int) -> None:
        """It is counted on every `step_ms`, or a little later."""
        self.ms = 0
        self.step_ms = step_ms
        self._last_ms: int | None = None

    def count(self, steady_ms: int) -> None:
        """So late is it now."""
        if self._last_ms is not None:
            self.ms += min(max(steady_ms - self._last_ms, 0), 2 * self.step_ms)
        self._last_ms = steady_ms


class IdleGroups:
    """When each group of a partition was last used, since this was made."""

    def __init__(self, time: CountedTime) -> None:
        self._time = time
        self._began_ms = time.ms
        self._used: dict[str, int] = {}
        self._retention_ms = 0
        self._look_ms = 0
        """Before this no group can have been idle for long enough."""

    def use(self, group: str) -> None:
        self._used[group] = self._time.ms
        if len(self._used) > USED_MAX:
            # Of names that were deleted since, most likely. Every group gets a whole time again.
            self._used = {}
            self._began_ms = self._time.ms

    def is_time_to_look(self, retention_ms: int) -> bool:
        """Whether a group may have been idle for so long."""
        return retention_ms != self._retention_ms or self._time.ms >= self._look_ms

    def idle(self, groups: Iterable[str], retention_ms: int) -> list[str]:
        """Those of all groups of the partition that were not used for so long."""
        self._used = {group: self._used.get(group, self._began_ms) for group in groups}
        self._retention_ms = retention_ms
        # A use is noted by the time that was counted last, so up to one step too early.
        since_ms = self._time.ms - retention_ms - self._time.step_ms
        found = [group for group, at_ms in self._used.items() if at_ms <= since_ms]
        first_ms = min(self._used.values(), default=self._time.ms)
        self._look_ms = first_ms + retention_ms + self._time.step_ms
        return found
