"""Telling brokers what became of messages, gathered: few requests, however many messages.

One teller for each broker. While one request is under way, everything that comes up is gathered
for the next; so nobody waits for a timer, and a broker that hangs holds up only its own.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quivermq.client.router import Router
from quivermq.client.shared.leases import (
    Lease,
    Settlement,
    SettlementTerms,
    lease_lost,
)
from quivermq.client.shared.settle import Settler
from quivermq.errors import ConnectionFailed, QuiverError
from quivermq.intervals import Interval, join, overlap

logger = logging.getLogger("quivermq.client")

Waiter = asyncio.Future[None]

TRIES_MAX: Final = 3
"""Each takes as long as the client's `timeout`."""


class _Note(NamedTuple):
    """A settlement, and who wants to know when it is durable."""

    settlement: Settlement
    waiter: Waiter | None
    tries: int = 1


class AckBatcher:
    """Carries settlements out in the background. Lives on the event loop that it was made on."""

    def __init__(
        self, router: Router, settling: Settler, topic: str, told: Callable[[], None]
    ) -> None:
        self.messages = 0
        """That are ruled about, and not settled yet."""
        self._router = router
        self._settling = settling
        self._topic = topic
        self._told = told
        self._notes: dict[int, list[_Note]] = {}
        self._marks: dict[int, list[Waiter]] = {}
        """Who waits until all notes before are settled."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: QuiverError | None = None
        self._is_hurried = False

    def tell(self, settlements: Sequence[Settlement]) -> None:
        """Carry these out, without anybody waiting; see `take_failure`."""
        for settlement in settlements:
            self._add(_Note(settlement, None))

    async def told(self, settlements: Sequence[Settlement]) -> None:
        """Carry these out, and wait until it is durable; raises `LeaseLost` at last."""
        waiters = []
        for settlement in settlements:
            waiters.append(asyncio.get_running_loop().create_future())
            self._add(_Note(settlement, waiters[-1]))
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]

    async def flush(self) -> None:
        """Wait until all that was told so far is carried out, or given up."""
        marks = []
        for leader in self._tasks:
            marks.append(asyncio.get_running_loop().create_future())
            self._marks.setdefault(leader, []).append(marks[-1])
        await asyncio.gather(*marks)

    def take_failure(self) -> QuiverError | None:
        """The first failure since the last call that nobody waited for."""
        failure, self._failure = self._failure, None
        return failure

    def hurry(self) -> None:
        """From here on, nothing that failed is tried again."""
        self._is_hurried = True

    async def stop(self) -> None:
        """Give up what is left."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, note: _Note) -> None:
        partition = note.settlement.lease.partition
        route = self._router.map.route(self._topic)
        is_known = route is not None and partition < len(route.leaders)
        leader = route.leaders[partition] if route is not None and is_known else 0
        self.messages += note.settlement.message_count
        self._notes.setdefault(leader, []).append(note)
        if leader not in self._tasks:
            self._tasks[leader] = asyncio.create_task(self._work(leader))

    async def _work(self, leader: int) -> None:
        notes: list[_Note] = []
        marks: list[Waiter] = []
        try:
            while notes := self._notes.pop(leader, []):
                marks = self._marks.pop(leader, [])
                again = await self._settle(notes)
                self._done(notes, again)
                if again:
                    self._notes[leader] = [*again, *self._notes.get(leader, [])]
                    self._marks[leader] = [*marks, *self._marks.get(leader, [])]
                else:
                    _pass(marks)
                notes, marks = [], []
        finally:
            del self._tasks[leader]
            # There are any only if it was stopped.
            left = [*notes, *self._notes.pop(leader, [])]
            for note in left:
                self._finish(note, ConnectionFailed("closed before these messages were settled"))
            self._done(left)
            _pass([*marks, *self._marks.pop(leader, [])])

    def _done(self, notes: Sequence[_Note], again: Sequence[_Note] = ()) -> None:
        self.messages -= sum(note.settlement.message_count for note in notes)
        self.messages += sum(note.settlement.message_count for note in again)
        self._told()

    async def _settle(self, notes: Sequence[_Note]) -> list[_Note]:
        """Returns what is to be tried again."""
        # A topic that was created again must not suffer for what is gone with the first.
        by_topic: dict[bytes, list[_Note]] = {}
        for note in notes:
            by_topic.setdefault(note.settlement.lease.topic_id, []).append(note)
        again = []
        for some in by_topic.values():
            again += await self._settle_some(some)
        return again

    async def _settle_some(self, notes: Sequence[_Note]) -> list[_Note]:
        try:
            late = await self._settling.settled(_merged(notes))
        except QuiverError as error:
            again = [note for note in notes if self._is_worth_more(note, error)]
            for note in notes:
                if not self._is_worth_more(note, error):
                    self._finish(note, error)
            return [note._replace(tries=note.tries + 1) for note in again]
        lost = {(settlement.lease, settlement.terms): settlement.intervals for settlement in late}
        for note in notes:
            self._finish(note, _loss(note.settlement, lost))
        return []

    def _is_worth_more(self, note: _Note, error: QuiverError) -> bool:
        """Nobody waits for it, so it can wait for the cluster: its lease may be there still."""
        return (
            error.retriable
            and note.waiter is None
            and note.tries < TRIES_MAX
            and not self._is_hurried
        )

    def _finish(self, note: _Note, failure: QuiverError | None) -> None:
        if note.waiter is None:
            if failure is not None and self._failure is None:
                # Where only handlers work, nobody may ever ask for it.
                logger.warning("%s", failure)
                self._failure = failure
        elif not note.waiter.done():
            if failure is None:
                note.waiter.set_result(None)
            else:
                note.waiter.set_exception(failure)


def _pass(marks: Sequence[Waiter]) -> None:
    for mark in marks:
        if not mark.done():
            mark.set_result(None)


def _merged(notes: Sequence[_Note]) -> list[Settlement]:
    """One settlement for all messages of a lease that have the same coming to them."""
    merged: dict[tuple[Lease, SettlementTerms], list[Interval]] = {}
    for lease, terms, intervals in (note.settlement for note in notes):
        merged.setdefault((lease, terms), []).extend(intervals)
    return [Settlement(*key, join(intervals)) for key, intervals in merged.items()]


def _loss(
    settlement: Settlement, lost: dict[tuple[Lease, SettlementTerms], list[Interval]]
) -> QuiverError | None:
    late = lost.get((settlement.lease, settlement.terms))
    if late is None:
        return None
    if not settlement.terms.ends_lease:
        return lease_lost([settlement])
    mine = overlap(settlement.intervals, late)
    return lease_lost([settlement._replace(intervals=mine)]) if mine else None
