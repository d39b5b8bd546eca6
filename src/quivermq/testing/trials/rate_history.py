"""Checks that a topic with a rate limit delivered no more than its rate and its bursts.

A delivery took its token between the moments at which its poll began and was answered. Over any
time, all groups and partitions together get at most what comes in at the rate in that time and
`GRAIN_S`, and one burst; each leader of partition 0, which keeps the limit, begins with another
burst. Terms tell how many leaders there can have been.
"""

from bisect import bisect_right
from typing import Final, NamedTuple

from quivermq.testing import Violation

GRAIN_S: Final = 0.05
"""So much of the rate may come on top: no timer of a broker is finer."""
_US: Final = 1_000_000


class _Poll(NamedTuple):
    began_us: int
    ended_us: int
    messages: int


class RateHistory:
    """The polls of one topic that were answered with messages, of all of its consumers."""

    def __init__(self, per_second: float, burst: int) -> None:
        self.per_second = per_second
        self.burst = burst
        self._polls: list[_Poll] = []
        self._told: list[tuple[int, int]] = []

    def record_poll(self, began_us: int, ended_us: int, messages: int) -> None:
        """A poll was answered."""
        if messages:
            self._polls.append(_Poll(began_us, ended_us, messages))

    def record_term(self, at_us: int, term: int) -> None:
        """Partition 0 had this term at this moment, or a later one."""
        self._told.append((at_us, term))

    def check(self, clock_rate: float = 1.0) -> int:
        """Raise `Violation` if more was delivered than the limit allows; returns the number of
        messages that were judged. The last term that was told must be that of the end. The clocks
        of brokers ran at most `clock_rate` seconds a second."""
        terms = self._highest_terms()
        polls = sorted(self._polls, key=lambda poll: poll.ended_us)
        for start_us in sorted({poll.began_us for poll in polls}):
            bursts = 1 + terms[-1][1] - terms[bisect_right(terms, (start_us, _US)) - 1][1]
            self._check_from(start_us, bursts, polls, self.per_second * clock_rate)
        return sum(poll.messages for poll in polls)

    def _highest_terms(self) -> list[tuple[int, int]]:
        """At which moment which term was known to be reached: a deposed leader tells an old one."""
        highest, found = 0, [(0, 0)]
        for at_us, term in sorted(self._told):
            highest = max(highest, term)
            found.append((at_us, highest))
        return found

    def _check_from(self, start_us: int, bursts: int, polls: list[_Poll], rate: float) -> None:
        delivered = 0
        for poll in polls:
            if poll.began_us < start_us:
                continue
            delivered += poll.messages
            passed_s = (poll.ended_us - start_us) / _US
            most = rate * (passed_s + GRAIN_S) + self.burst * bursts
            if delivered > most:
                raise Violation(
                    f"I8: {delivered} messages were delivered in {passed_s:.3f} s from {start_us} "
                    f"us on; {self.per_second} a second and {bursts} bursts of {self.burst} are "
                    f"{most:.1f}"
                )
