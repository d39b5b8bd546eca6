"""Keeps the polls that wait for messages of one partition, by group, first come, first served.

Waking is sparing: as many as there are messages for, so that a message that comes back wakes one
poll and not a thousand.
"""

import asyncio
from collections import OrderedDict


class Waiter:
    """One poll that found nothing; it may wait at several partitions at once."""

    __slots__ = ("consumer", "wants", "woken")

    def __init__(self, consumer: int, wants: int) -> None:
        self.consumer = consumer
        self.wants = wants
        """How many messages it would take."""
        self.woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_woken(self) -> bool:
        return self.woken.done() and not self.woken.cancelled()

    def wake(self) -> bool:
        """False if it was woken before, or waits no more."""
        if self.woken.done():
            return False
        self.woken.set_result(None)
        return True


class WaitTable:
    """All polls that wait at one partition."""

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[Waiter, None]] = {}
        # Woken, and not come yet: what they want is not there for others.
        self._called: dict[str, dict[Waiter, None]] = {}

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

    def park(self, group: str, waiter: Waiter, *, in_front: bool) -> None:
        """`in_front`: it was woken in vain, and keeps its place."""
        waiting = self._waiting.setdefault(group, OrderedDict())
        waiting[waiter] = None
        if in_front:
            waiting.move_to_end(waiter, last=False)

    def leave(self, group: str, waiter: Waiter) -> None:
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
