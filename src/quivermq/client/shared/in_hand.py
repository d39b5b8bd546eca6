"""Tracks the messages that loops and handlers are working on, so that their leases are extended.

A handler has a message until it returns, a loop until it asks for the next. Any thread may take
something in hand, while the event loop looks at all that is.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final

from quivermq.client.shared.delivery_run import DeliveryRun
from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease

LOOP_SECONDS_MAX: Final = 3600.0
"""A loop that was left, and not closed, has its last message no longer than this."""

Loop = threading.Thread | asyncio.Task[object]
"""Where a loop over messages runs."""

Worker = Loop | int
"""A loop, or the number of a handler."""


class InHandTracker:
    """Messages in hand, by the loop or handler that works on them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.handled: dict[int, LeasedFields] = {}
        """The one message that a handler works on, by its number: written for every message."""
        self.runs: dict[int | object, DeliveryRun] = {}
        """Of handlers and loops that are given several in a row: by the number of a handler, and by
        anything else of a loop."""
        # Of loops, with the time until which it is in hand.
        self._in_hand: dict[Loop, tuple[Sequence[LeasedFields], float]] = {}

    def take(self, worker: Loop, messages: Sequence[LeasedFields]) -> None:
        """It works on these, and is done with what it had before."""
        self._in_hand[worker] = (messages, self._now() + LOOP_SECONDS_MAX)

    def take_one(self, worker: Worker, message: LeasedFields) -> None:
        """The same for one message."""
        if isinstance(worker, int):
            self.handled[worker] = message
        else:
            self.take(worker, (message,))

    def empty(self, worker: Worker) -> None:
        """It is done with what it had."""
        if isinstance(worker, int):
            self.handled.pop(worker, None)
        else:
            self._in_hand.pop(worker, None)

    def take_run(self, owner: int | object, run: DeliveryRun) -> None:
        """It works on these, and is done with the run before."""
        if not isinstance(owner, int):
            run.until = self._now() + LOOP_SECONDS_MAX
        self.runs[owner] = run

    def leave_run(self, owner: int | object) -> None:
        """It is done with its run."""
        self.runs.pop(owner, None)

    def leases(self, is_unsettled: Callable[[LeasedFields], bool]) -> set[Lease]:
        """Of all that is in hand and not settled."""
        found = {each.lease for each in list(self.handled.values()) if is_unsettled(each)}
        now = self._now()
        for worker, (messages, until) in list(self._in_hand.items()):
            if now >= until or _is_gone(worker):
                self._in_hand.pop(worker, None)
                continue
            for message in messages:
                # Many share a lease: each of these is looked at until one is not settled.
                if message.lease not in found and is_unsettled(message):
                    found.add(message.lease)
        return found


def _is_gone(worker: Loop) -> bool:
    if isinstance(worker, threading.Thread):
        return not worker.is_alive()
    return worker.done()
