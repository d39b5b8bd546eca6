"""Takes settlements from the threads of a program to the event loop of its subscription.

To wake another thread costs more than to settle a thousand messages: the two then take turns at
the interpreter. So the first settlement wakes the loop at once, and while its request is under way,
those that follow are fetched every few milliseconds (decision 0068).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from typing import Any, Final, Protocol

from quivermq.client.shared.delivery_run import DeliveryRun
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import ACK, Settlement, SettlementTerms, settlements_of
from quivermq.errors import InvalidRequest

logger = logging.getLogger("quivermq.client")

GATHER_SECONDS: Final = 0.002
_TOO_LATE: Final = "a handler ended after its subscription was closed: not settled"

Handled = tuple[LeasedFields, SettlementTerms]
"""A message that a handler is done with."""
Entry = Handled | LeasedFields | list[Settlement] | DeliveryRun
"""A message alone is acknowledged; the handler of a run is done with all of it."""


class SettlesInBackground(Protocol):
    """Where they go; on the event loop."""

    def finish(self, done: Sequence[Handled]) -> None: ...
    def enqueue(self, settlements: Sequence[Settlement]) -> None: ...
    def look_at_runs(self) -> Sequence[tuple[DeliveryRun, int]]: ...
    def acknowledge_run(self, run: DeliveryRun, until: int) -> None: ...


class SettlementOutbox:
    """Settlements on their way to the event loop, in their order."""

    def __init__(self, target: SettlesInBackground, is_busy: Callable[[], bool]) -> None:
        """`is_busy` tells whether settlements are on their way to a broker, or come without a
        word: of handlers that have several messages."""
        self._target = target
        self._is_busy = is_busy
        self._loop = asyncio.get_running_loop()
        self._entries: deque[Entry] = deque()
        self._is_fetched = False
        """`empty` will be called."""

    def put(self, entry: Entry) -> None:
        """Have this settled soon. Any thread may call this."""
        self._entries.append(entry)
        self.wake()

    def wake(self) -> None:
        """Have what is here fetched soon."""
        if not self._is_fetched:
            self._is_fetched = True
            self._loop.call_soon_threadsafe(self._fetch)

    def _fetch(self) -> None:
        # First: a thread that puts something in from here on has it fetched again.
        self._is_fetched = False
        self.empty()
        if self._is_busy():
            self._is_fetched = True
            self._loop.call_later(GATHER_SECONDS, self._fetch)

    def empty(self) -> None:
        """Hand over all that is here."""
        # Before the entries: what a handler failed at is among these by the time that it is done
        # with it, and fails before the rest of its run is acknowledged.
        runs = self._target.look_at_runs()
        take = self._entries.popleft
        entries: list[Any] = [take() for _ in range(len(self._entries))]
        settled: list[Settlement] = []
        for kind, some in groupby(entries, type):
            if issubclass(kind, LeasedFields):
                _join(settled, settlements_of(some, ACK))
            elif kind is list:
                _join(settled, chain.from_iterable(some))
            else:
                self._settle(settled)
                settled = []
                if kind is tuple:
                    self._finish([*some])
                else:
                    self._acknowledge((run, run.end) for run in some)
        self._settle(settled)
        self._acknowledge(runs)

    def _acknowledge(self, runs: Iterable[tuple[DeliveryRun, int]]) -> None:
        for run, until in runs:
            try:
                self._target.acknowledge_run(run, until)
            except InvalidRequest:
                logger.warning(_TOO_LATE)

    def _finish(self, handled: Sequence[Handled]) -> None:
        try:
            self._target.finish(handled)
        except InvalidRequest:
            logger.warning(_TOO_LATE)

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        if settlements:
            try:
                self._target.enqueue(settlements)
            except InvalidRequest:
                logger.warning(
                    "messages were settled after their subscription was closed: not settled"
                )


def _join(settled: list[Settlement], settlements: Iterable[Settlement]) -> None:
    """Add some. What goes on where the last one ends, with the same outcome, becomes a part of it:
    a loop acknowledges thousands of small lists in a row."""
    for settlement in settlements:
        last = settled[-1] if settled else settlement
        goes_on = (
            last.lease is settlement.lease
            and last.terms == settlement.terms
            and last.intervals
            and settlement.intervals
            and last.intervals[-1][1] == settlement.intervals[0][0]
        )
        if goes_on:
            (start, _), ((_, end), *others) = last.intervals[-1], settlement.intervals
            last.intervals[-1:] = [(start, end), *others]
        else:
            settled.append(settlement)
