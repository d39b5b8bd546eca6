"""Cuts long work on the event loop into slices, so that other work goes on in between.

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
    """The slice of this turn of the loop, shared by all long work."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        # When this turn of the loop has had its slice; 0: none has begun.
        self._until = 0.0

    def turn(self) -> "Turn":
        """One long work. Nothing but `rest` is awaited inside: others wait for the turn."""
        return Turn(self)

    @property
    def is_over(self) -> bool:
        return time.perf_counter() > self._until

    async def begin(self) -> None:
        await self._lock.acquire()
        if not self._until:
            self._until = time.perf_counter() + SLICE_S
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._until = 0.0

    def end(self) -> None:
        """Let the next work go on: with the rest of the slice, or else in the next turn of the
        loop, or many that came together would take a slice each before anything else."""
        if self.is_over:
            asyncio.get_running_loop().call_soon(self._lock.release)
        else:
            self._lock.release()


class Turn:
    """The right to work for a slice, again and again."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._is_held = False

    async def __aenter__(self) -> Self:
        await self._slices.begin()
        self._is_held = True
        return self

    def _end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._slices.end()

    async def rest(self) -> None:
        """Let the others go on, if the slice is over."""
        if self._slices.is_over:
            self._end()
            await asyncio.sleep(0)
            await self._slices.begin()
            self._is_held = True

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()
