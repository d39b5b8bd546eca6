"""Points in time that know of time that was lost: while this process was stopped or its machine
suspended, others may have elected another leader.

The clock of the event loop stands still while a machine is suspended. So both are read here: a
clock that counts suspension, and the wall clock, which a machine that was paused from outside has
set right afterwards. If somebody sets the wall clock, that looks like lost time too, and costs no
more than a question to the quorum. They are read where it matters: after a pause, whatever was
due before runs before any timer that could notice.
"""

import time
from typing import Final, NamedTuple

_COUNTS_SUSPENSION: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Moment(NamedTuple):
    """What the clocks showed."""

    awake_or_not_s: float
    wall_s: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.clock_gettime(_COUNTS_SUSPENSION), time.time())

    def age_s(self) -> float:
        """How long ago this was, by the clock that says longest."""
        now = Moment.now()
        return max(now.awake_or_not_s - self.awake_or_not_s, abs(now.wall_s - self.wall_s))


LONG_AGO: Final = Moment(float("-inf"), 0.0)


class Lapses:
    """Counts how often this broker stood still. To be looked at often."""

    def __init__(self) -> None:
        self._seen = Moment.now()
        self._count = 0

    def look(self, longest_s: float) -> int:
        """The count; one more if the last look is longer ago than `longest_s`."""
        if self._seen.age_s() > longest_s:
            self._count += 1
        self._seen = Moment.now()
        return self._count
