"""Takes settlements from the threads of a program to the event loop of its subscription.

To wake another thread costs more than to settle a thousand messages: the two then take turns at
the interpreter. So the first settlement wakes the loop at once, and while its request is under way,
those that follow are fetched every few milliseconds (decision 0068).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quivermq.client.shared.handler_run import HandlerRun
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Settlement, SettlementTerms
from quivermq.errors import InvalidRequest

logger = logging.getLogger("quivermq.client")

GATHER_SECONDS: Final = 0.002
_TOO_LATE: Final = "a handler ended after its subscription was closed: not settled"

Handled = tuple[LeasedFields, SettlementTerms]
"""A message that a handler is done with."""
Entry = Handled | list[Settlement] | HandlerRun
"""A run: its handler is done with all of it."""


class SettlesInBackground(Protocol):
    """Where they go; on the event loop."""

    def finish(self, done: Sequence[Handled]) -> None: ...
    def enqueue(self, settlements: Sequence[Settlement]) -> None: ...
    def look_at_runs(self) -> Sequence[tuple[HandlerRun, int]]: ...
    def acknowledge_run(self, run: HandlerRun, until: int) -> None: ...


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
        entries = self._entries
        handled: list[Handled] = []
        settled: list[Settlement] = []
        for _ in range(len(entries)):
            entry = entries.popleft()
            if isinstance(entry, tuple):
                self._settle(settled)
                settled = []
                handled.append(entry)
                continue
            self._finish(handled)
            handled = []
            if isinstance(entry, list):
                _join(settled, entry)
            else:
                self._settle(settled)
                settled = []
                self._acknowledge(entry, entry.end)
        self._finish(handled)
        self._settle(settled)
        for run, until in runs:
            self._acknowledge(run, until)

    def _acknowledge(self, run: HandlerRun, until: int) -> None:
        try:
            self._target.acknowledge_run(run, until)
        except InvalidRequest:
            logger.warning(_TOO_LATE)

    def _finish(self, handled: Sequence[Handled]) -> None:
        if handled:
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


def _join(settled: list[Settlement], settlements: Sequence[Settlement]) -> None:
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
