"""Long work on the event loop, cut into slices, so that everybody else goes on in between.

    async with slices.turn() as turn:
        for topic in topics:
            ...
            await turn.rest()

All long work of a broker shares one `Slices`: one slice runs at a time, in turns. However many
clients ask for much at once, the loop is not held for longer than a slice.
"""

import asyncio
import time
from types import TracebackType
from typing import Final, Self

SLICE_S: Final = 0.01


class Slices:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    def turn(self) -> "Turn":
        """One long work. Nothing but `rest` is awaited inside: others wait for the turn."""
        return Turn(self._lock)


class Turn:
    """The right to work for a slice, again and again."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_held = False
        self._until = 0.0

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def _begin(self) -> None:
        await self._lock.acquire()
        self._is_held = True
        self._until = time.perf_counter() + SLICE_S

    def _end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()

    async def rest(self) -> None:
        """Let the others go on, if the slice is over."""
        if time.perf_counter() > self._until:
            self._end()
            await asyncio.sleep(0)
            await self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
