"""Batches settlements in the background: few requests, however many messages.

One task for each broker. While one request is in flight, further settlements are gathered for the
next; so no settlement waits for a timer, and a broker that hangs holds up only its own.
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


class _Entry(NamedTuple):
    """A settlement, and the future of a caller that waits until it is durable."""

    settlement: Settlement
    waiter: Waiter | None
    tries: int = 1
    origins: Sequence[str] = ()
    """Trace contexts in which it was settled."""


class AckBatcher:
    """Sends settlements in the background. Lives on the event loop that it was made on."""

    def __init__(self, router: Router, settling: Settler, on_progress: Callable[[], None]) -> None:
        self.messages = 0
        """Messages whose settlements are not durable yet."""
        self._router = router
        self._tracer = router.tracer
        self._settling = settling
        self._on_progress = on_progress
        self._entries: dict[int, list[_Entry]] = {}
        self._marks: dict[int, list[Waiter]] = {}
        """Callers of `flush`, who wait until all entries before are settled."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._failure: QuiverError | None = None
        self._may_retry = True

    @property
    def is_busy(self) -> bool:
        """Something is on its way to a broker."""
        return bool(self._tasks)

    def enqueue(
        self, settlements: Sequence[Settlement], origins: Sequence[str] | None = None
    ) -> None:
        """Send these without waiting for the result; see `take_failure`."""
        if origins is None:
            origins = () if self._tracer is None else (self._tracer.current(),)
        for settlement in settlements:
            self._add(_Entry(settlement, None, origins=origins))

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Send these, and wait until all are durable; raises `LeaseLost` at the end."""
        # Of the caller: the task that sends has the context of some other one.
        origins = () if self._tracer is None else (self._tracer.current(),)
        waiters = []
        for settlement in settlements:
            waiters.append(asyncio.get_running_loop().create_future())
            self._add(_Entry(settlement, waiters[-1], origins=origins))
        outcomes = await asyncio.gather(*waiters, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            raise failures[0]

    async def flush(self) -> None:
        """Wait until all settlements so far are durable, or given up."""
        marks = []
        for leader in self._tasks:
            marks.append(asyncio.get_running_loop().create_future())
            self._marks.setdefault(leader, []).append(marks[-1])
        await asyncio.gather(*marks)

    def take_failure(self) -> QuiverError | None:
        """The first failure since the last call, of settlements that no caller waits for."""
        failure, self._failure = self._failure, None
        return failure

    def stop_retrying(self) -> None:
        """From here on, failed settlements are not tried again."""
        self._may_retry = False

    async def stop(self) -> None:
        """Give up what is left."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, entry: _Entry) -> None:
        lease = entry.settlement.lease
        partition = lease.partition
        route = self._router.map.route(lease.topic)
        is_known = route is not None and partition < len(route.leaders)
        leader = route.leaders[partition] if route is not None and is_known else 0
        self.messages += entry.settlement.message_count
        self._entries.setdefault(leader, []).append(entry)
        if leader not in self._tasks:
            self._tasks[leader] = asyncio.create_task(self._work(leader))

    async def _work(self, leader: int) -> None:
        entries: list[_Entry] = []
        marks: list[Waiter] = []
        try:
            while entries := self._entries.pop(leader, []):
                marks = self._marks.pop(leader, [])
                again = await self._send(entries)
                self._count_done(entries, again)
                if again:
                    self._entries[leader] = [*again, *self._entries.get(leader, [])]
                    self._marks[leader] = [*marks, *self._marks.get(leader, [])]
                else:
                    _pass_marks(marks)
                entries, marks = [], []
        finally:
            del self._tasks[leader]
            # There are any only if it was stopped.
            left = [*entries, *self._entries.pop(leader, [])]
            for entry in left:
                self._finish(entry, ConnectionFailed("closed before these messages were settled"))
            self._count_done(left)
            _pass_marks([*marks, *self._marks.pop(leader, [])])

    def _count_done(self, entries: Sequence[_Entry], again: Sequence[_Entry] = ()) -> None:
        self.messages -= sum(entry.settlement.message_count for entry in entries)
        self.messages += sum(entry.settlement.message_count for entry in again)
        self._on_progress()

    async def _send(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Returns what is to be tried again."""
        # A topic that was created again must not suffer for what is gone with the first.
        by_topic: dict[bytes, list[_Entry]] = {}
        for entry in entries:
            by_topic.setdefault(entry.settlement.lease.topic_id, []).append(entry)
        again = []
        for some in by_topic.values():
            again += await self._send_topic(some)
        return again

    async def _send_topic(self, entries: Sequence[_Entry]) -> list[_Entry]:
        try:
            late = await self._settling.try_settle(_merge(entries), self._origins_of(entries))
        except QuiverError as error:
            again = [entry for entry in entries if self._is_worth_more(entry, error)]
            for entry in entries:
                if not self._is_worth_more(entry, error):
                    self._finish(entry, error)
            return [entry._replace(tries=entry.tries + 1) for entry in again]
        lost = {(settlement.lease, settlement.terms): settlement.intervals for settlement in late}
        for entry in entries:
            self._finish(entry, _loss(entry.settlement, lost))
        return []

    def _origins_of(self, entries: Sequence[_Entry]) -> Sequence[str]:
        if self._tracer is None:
            return ()
        return [origin for entry in entries for origin in entry.origins]

    def _is_worth_more(self, entry: _Entry, error: QuiverError) -> bool:
        """No caller waits for it, so it can wait for the cluster: its lease may still hold."""
        return (
            error.retriable and entry.waiter is None and entry.tries < TRIES_MAX and self._may_retry
        )

    def _finish(self, entry: _Entry, failure: QuiverError | None) -> None:
        if entry.waiter is None:
            if failure is not None and self._failure is None:
                # A program with handlers only may never ask for it.
                logger.warning("%s", failure)
                self._failure = failure
        elif not entry.waiter.done():
            if failure is None:
                entry.waiter.set_result(None)
            else:
                entry.waiter.set_exception(failure)


def _pass_marks(marks: Sequence[Waiter]) -> None:
    for mark in marks:
        if not mark.done():
            mark.set_result(None)


def _merge(entries: Sequence[_Entry]) -> list[Settlement]:
    """One settlement for all messages of a lease that have the same terms."""
    if len(entries) == 1:
        return [entries[0].settlement]
    merged: dict[tuple[Lease, SettlementTerms], list[Interval]] = {}
    for lease, terms, intervals in (entry.settlement for entry in entries):
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
