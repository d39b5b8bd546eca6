"""Keeps the polls that wait for messages of one partition, by group, first come, first served.

Waking is sparing: as many as there are messages for, so that a message that comes back wakes one
poll and not a thousand.
"""

import asyncio
from collections import OrderedDict
from typing import Protocol


class WaitingPoll(Protocol):
    """A poll that found nothing."""

    consumer: int
    wants: int
    """How many messages it would take."""

    def wake(self) -> bool:
        """Let it look again; False if it was woken before, or waits no more."""


class Waiter:
    """A poll that awaits its turn; it may wait at several partitions at once."""

    __slots__ = ("consumer", "wants", "woken")

    def __init__(self, consumer: int, wants: int) -> None:
        self.consumer = consumer
        self.wants = wants
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_woken(self) -> bool:
        return self.woken.done() and not self.woken.cancelled()

    def wake(self) -> bool:
        if self.woken.done():
            return False
        self.woken.set_result(None)
        return True


class WaitTable:
    """All polls that wait at one partition."""

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[WaitingPoll, None]] = {}
        # Woken, and not come yet: what they want is not there for others.
        self._called: dict[str, dict[WaitingPoll, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def groups(self) -> list[str]:
        """The groups whose polls wait."""
        return list(self._waiting)

    def has(self, group: str) -> bool:
        return group in self._waiting

    def consumers(self, group: str) -> list[int]:
        """The consumers of one group that wait."""
        return [waiter.consumer for waiter in self._waiting.get(group, ())]

    def park(self, group: str, waiter: WaitingPoll, *, in_front: bool) -> None:
        """`in_front`: it was woken in vain, and keeps its place."""
        waiting = self._waiting.setdefault(group, OrderedDict())
        waiting[waiter] = None
        if in_front:
            waiting.move_to_end(waiter, last=False)

    def leave(self, group: str, waiter: WaitingPoll) -> None:
        """It comes, or waits no more."""
        called = self._called.get(group)
        if called is not None:
            called.pop(waiter, None)
            if not called:
                del self._called[group]
        waiting = self._waiting.get(group)
        if waiting is not None:
            waiting.pop(waiter, None)
            if not waiting:
                del self._waiting[group]

    def wake(self, group: str, ready: int) -> int:
        """Wake the polls that have waited longest, until they want all that is ready; how many."""
        woken = 0
        waiting = self._waiting.get(group)
        ready -= sum(waiter.wants for waiter in self._called.get(group, ()))
        while waiting and ready > 0:
            waiter, _ = waiting.popitem(last=False)
            if waiter.wake():
                ready -= waiter.wants
                woken += 1
                self._called.setdefault(group, {})[waiter] = None
        if waiting is not None and not waiting:
            del self._waiting[group]
        return woken

    def wake_all(self) -> None:
        """Nothing comes here any more: wake all, to look elsewhere."""
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                waiter.wake()
