"""The number of messages that a poll asks for, where its user names none.

Most of a small poll is the two round trips of it and of its acknowledgement, so a loop over cheap
messages needs large polls; a queue of slow jobs needs small ones, because messages that wait in one
consumer are kept from the others, and their leases run out. No number fits both. So a loop begins
small, and gets as many as it was seen to get through in a moment (decision 0053). Nothing is
fetched ahead: every message that is leased is in the user's hands.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leases import Lease

FIRST_MESSAGES: Final = 100
"""Of the first poll of a loop, and the least."""
MESSAGES_MAX: Final = 10_000
TURN_SECONDS: Final = 0.1
"""A poll asks for no more than the loop was seen to get through in so long."""
GROWTH: Final = 4
"""Of one poll over the last: a loop may have had a few cheap messages by chance."""
LOOPS_MAX: Final = 1_000
_SECONDS_MIN: Final = 1e-6

LoopKey = tuple[str, str, int, int]
"""A topic and a group, and the thread and task that poll."""


class _LastPoll(NamedTuple):
    size: int
    messages: int
    """The messages that it brought."""
    ended: float
    leases: Sequence[Lease]


class PollSizes:
    """Tracks the loops that poll, and how fast each of them is. Any thread may use it."""

    def __init__(self, held_leases: HeldLeases, now: Callable[[], float]) -> None:
        self._held_leases = held_leases
        self._now = now
        self._last: dict[LoopKey, _LastPoll] = {}

    def choose(self, topic: str, group: str) -> int:
        """The size of the next poll of the thread or task that asks."""
        last = self._last.get(_key(topic, group))
        if last is None or any(map(self._is_held, last.leases)):
            # What is not settled is still worked on, elsewhere perhaps: more would only wait.
            return FIRST_MESSAGES
        pace = last.messages / max(_SECONDS_MIN, self._now() - last.ended)
        fitting = min(int(pace * TURN_SECONDS), last.size * GROWTH, MESSAGES_MAX)
        return max(FIRST_MESSAGES, fitting)

    def record(self, topic: str, group: str, size: int, count: int, leases: list[Lease]) -> None:
        """A poll of this thread or task returned with messages."""
        key = _key(topic, group)
        self._last.pop(key, None)
        while len(self._last) >= LOOPS_MAX:
            self._last.pop(next(iter(self._last)), None)
        self._last[key] = _LastPoll(size, count, self._now(), leases)

    def _is_held(self, lease: Lease) -> bool:
        source = LeaseSource(lease.topic, lease.group, lease.partition)
        return self._held_leases.is_held(source, lease.token)


def _key(topic: str, group: str) -> LoopKey:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        task = None
    return topic, group, threading.get_ident(), id(task)
