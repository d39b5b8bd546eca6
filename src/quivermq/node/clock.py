"""The clock of a broker, though its machine's clock may be set to anything at any moment.

Two times come out of it, both in milliseconds since 1970:

- `now_ms`: what entries are stamped with and delays are measured by. It runs with the steady clock,
  which is never set. At every tick it is compared with the machine's clock and follows that, unless
  most brokers, by what they say of theirs, agree on another time: then it follows them. Where
  there is no majority, a clock that was set ahead is followed after a minute: what is stamped with
  a time to come cannot be put right.
- `age_ms`: what retention goes by, since what it deletes is gone. It never follows the machine's
  clock ahead at once, but only when most brokers agree with it, or after a day.

Idempotence, order and leases go by neither of them. Both clocks are compared with fractions of a
millisecond: cut to whole ones each for itself, they would let a message be stamped a millisecond
before it was sent, and a seek to that moment would pass it by.

A `Moment` is a point in time that knows of time that was lost: while this process was stopped or
its machine suspended, others may have elected another leader. The clock of the event loop stands
still while a machine is suspended, so a moment reads a clock that counts suspension, and the wall
clock, which a machine that was paused from outside has set right afterwards. A wall clock that is
set looks like lost time too, and costs no more than a question to the quorum.
"""

import logging
import time
from collections.abc import Callable
from statistics import median_low
from typing import Final, NamedTuple

from quivermq.batches import TIMESTAMP_MS_MAX

logger = logging.getLogger("quivermq.clock")

DIFFERENCE_MS_MAX: Final = 5_000
"""Clocks that differ by no more than this agree."""
HEARD_MS: Final = 10_000
"""The clock of another broker counts for so long after it was heard."""
HELD_MS: Final = 60 * 1000
"""A clock that was set ahead is followed after so long, where no majority confirms it."""
BELIEVED_AFTER_MS: Final = 24 * 3600 * 1000
"""And retention follows it so long after that."""
_REPEAT_MS: Final = 3600 * 1000
_CLOCKS_MIN: Final = 3
"""Two clocks that differ do not tell which of them is right."""


def machine_ms() -> float:
    """The machine's clock."""
    return min(max(time.time_ns() / 1e6, 0.0), TIMESTAMP_MS_MAX)


def steady_ms() -> float:
    """Of a clock that is never set, and that goes on while the machine is suspended."""
    return time.clock_gettime_ns(_STEADY_CLOCK) / 1e6


_STEADY_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class BrokerClock:
    """One for each broker; `look` is called at every tick."""

    def __init__(
        self, machine: Callable[[], float] = machine_ms, steady: Callable[[], float] = steady_ms
    ) -> None:
        self._machine = machine
        self._steady = steady
        # What is to be added to the steady clock.
        self._now_offset = self._age_offset = machine() - steady()
        self._held_since: float | None = None
        self._ahead_since: float | None = None
        # By broker: what is to be added to our steady clock for theirs, and when that was heard.
        self._heard: dict[int, tuple[float, float]] = {}
        self.difference_ms = 0
        """How far the machine's clock is ahead of the one that most brokers agree on."""
        self._refuted: float | None = None
        """The correction that the machine's clock would need, while most brokers disagree."""
        self._reported: float | None = None

    def now_ms(self) -> int:
        """The time for timestamps and delays."""
        return min(max(int(self._steady() + self._now_offset), 0), TIMESTAMP_MS_MAX)

    def age_ms(self) -> int:
        """The time by which retention tells what is too old."""
        return max(int(self._steady() + self._age_offset), 0)

    def machine_ms(self) -> int:
        """The machine's clock, right or wrong: other brokers are told this."""
        return int(self._machine())

    def heard(self, node: int, clock_ms: int) -> None:
        """Another broker said what its machine's clock shows."""
        steady = self._steady()
        self._heard[node] = (clock_ms - steady, steady)

    def forget(self, node: int) -> None:
        """A broker is gone."""
        self._heard.pop(node, None)

    def look(self) -> None:
        """Compare clocks."""
        steady = self._steady()
        own = self._machine() - steady
        agreed = self._agreed_offset(own, steady)
        if agreed is None and self._refuted is not None and _agree(own, self._refuted):
            # Most brokers are silent now, but the clock is the one that they refuted.
            agreed = self._now_offset
        self.difference_ms = 0 if agreed is None else round(own - agreed)
        self._refuted = own if agreed is not None and not _agree(own, agreed) else None
        if agreed is None:
            offset = self._held_offset(own, steady)
        else:
            offset, self._held_since = own if self._refuted is None else agreed, None
        jump_ms = offset - self._now_offset
        self._now_offset = offset
        self._follow_with_age(offset, steady, is_confirmed=agreed is not None)
        self._report(jump_ms, steady)

    def _agreed_offset(self, own: float, steady: float) -> float | None:
        """The clock on which most brokers agree, ours among them; None: there is none."""
        heard = [offset for offset, at in self._heard.values() if steady - at <= HEARD_MS]
        offsets = [own, *heard]
        if len(offsets) == _CLOCKS_MIN - 1:
            # Of two that differ, the one that was not set just now is as it was before.
            offsets.append(self._now_offset)
        if len(offsets) < _CLOCKS_MIN:
            return None
        middle = median_low(offsets)
        agreeing = sum(_agree(offset, middle) for offset in offsets)
        return middle if 2 * agreeing > len(offsets) else None

    def _held_offset(self, own: float, steady: float) -> float:
        """The machine's clock, or the time as it was while that has just been set ahead."""
        if own - self._now_offset <= DIFFERENCE_MS_MAX:
            self._held_since = None
            return own
        if self._held_since is None:
            self._held_since = steady
            ahead = _difference(own - self._now_offset)
            logger.warning("the clock of this machine is %s where it was", ahead)
        return own if steady - self._held_since >= HELD_MS else self._now_offset

    def _follow_with_age(self, offset: float, steady: float, *, is_confirmed: bool) -> None:
        is_ahead = offset - self._age_offset > DIFFERENCE_MS_MAX
        if not is_ahead:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = steady
        is_believed = (
            self._ahead_since is not None and steady - self._ahead_since >= BELIEVED_AFTER_MS
        )
        if not is_ahead or is_confirmed or is_believed:
            self._age_offset, self._ahead_since = offset, None

    def _report(self, jump_ms: float, steady: float) -> None:
        """Once, and again every hour while it lasts."""
        if self._refuted is not None:
            if self._reported is None or steady - self._reported >= _REPEAT_MS:
                self._reported = steady
                logger.error(
                    "the clock of this machine is %s most brokers': this broker goes by theirs; "
                    "set the clock",
                    _difference(self.difference_ms),
                )
            return
        if self._reported is not None:
            self._reported = None
            logger.warning("the clock of this machine agrees with most brokers' again")
        if not _agree(jump_ms, 0):
            logger.warning(
                "the time of this broker follows: it is %s where it was", _difference(jump_ms)
            )
        if self._ahead_since == steady:
            logger.error(
                "no majority of brokers confirms the clock: retention by age follows it in a day; "
                "set the clock if it is wrong"
            )


def _agree(one_ms: float, other_ms: float) -> bool:
    return abs(one_ms - other_ms) <= DIFFERENCE_MS_MAX


def _difference(difference_ms: float) -> str:
    size = abs(difference_ms) / 1000
    shown = f"{size:.0f} s" if size < 7200 else f"{size / 3600:.1f} h"
    return f"{shown} {'ahead of' if difference_ms > 0 else 'behind'}"


class Moment(NamedTuple):
    """A point in time, by two clocks."""

    awake_or_not_s: float
    wall_s: float

    @classmethod
    def now(cls) -> "Moment":
        return cls(time.clock_gettime(_STEADY_CLOCK), time.time())

    def age_s(self) -> float:
        """How long ago this was, by the clock that says longest."""
        now = Moment.now()
        return max(now.awake_or_not_s - self.awake_or_not_s, abs(now.wall_s - self.wall_s))


LONG_AGO: Final = Moment(float("-inf"), 0.0)


class Lapses:
    """Counts how often this broker stood still, by calls of `look` that come often."""

    def __init__(self) -> None:
        self._seen = Moment.now()
        self._count = 0

    def look(self, longest_s: float) -> int:
        """The count; one more if the last look is longer ago than `longest_s`."""
        if self._seen.age_s() > longest_s:
            self._count += 1
        self._seen = Moment.now()
        return self._count
