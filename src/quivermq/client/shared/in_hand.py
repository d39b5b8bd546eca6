"""Tracks the messages that loops and handlers are working on, so that their leases are extended.

A handler has a message until it returns, a loop until it asks for the next. Any thread may take
something in hand, while the event loop looks at all that is.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final

from quivermq.client.shared.leased_message import LeasedFields
from quivermq.client.shared.leases import Lease

LOOP_SECONDS_MAX: Final = 3600.0
"""A loop that was left, and not closed, has its last message no longer than this."""

_FOR_EVER: Final = float("inf")

Loop = threading.Thread | asyncio.Task[object]
"""Where a loop over messages runs."""

Worker = Loop | int
"""A loop, or the number of a handler."""


class InHandTracker:
    """Messages in hand, by the loop or handler that works on them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        # With the time until which it is in hand. Plain tuples: one is made for every message.
        self._in_hand: dict[Worker, tuple[Sequence[LeasedFields], float]] = {}

    def take(self, worker: Worker, messages: Sequence[LeasedFields]) -> None:
        """It works on these, and is done with what it had before."""
        until = _FOR_EVER if type(worker) is int else self._now() + LOOP_SECONDS_MAX
        self._in_hand[worker] = (messages, until)

    def empty(self, worker: Worker) -> None:
        """It is done with what it had."""
        self._in_hand.pop(worker, None)

    def leases(self, is_unsettled: Callable[[LeasedFields], bool]) -> set[Lease]:
        """Of all that is in hand and not settled."""
        found: set[Lease] = set()
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


def _is_gone(worker: Worker) -> bool:
    if isinstance(worker, threading.Thread):
        return not worker.is_alive()
    return isinstance(worker, asyncio.Task) and worker.done()
