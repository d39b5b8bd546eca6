"""Answers requests about dead letters: lists them, sends them back, drops them, revives them."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from quivermq.cluster import Level
from quivermq.errors import InvalidRequest, OffsetOutOfRange
from quivermq.intervals import IntervalSet, intervals_of, join
from quivermq.node.delivery.dead_letter_batches import offsets_wanted
from quivermq.node.delivery.dead_letter_mover import DeadLetterMovers
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.registry import DispatcherRegistry, check_group
from quivermq.node.handlers.fetch import FetchHandler
from quivermq.node.handlers.groups import batched, checked_intervals
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.queue import TO_GROUP, Interval, LeaseManager, Piece
from quivermq.wire import LetterFilter, check_answer, proto

_LIST_BYTES: Final = 1 << 20
"""The expected size of a list before it is made."""
_INTERVAL_BYTES: Final = 20
_SCANNED_BYTES: Final = 64 << 20
"""Letters that one request looks at, if it has a filter; the answer names where to go on."""
_MOVED_WAIT_S: Final = 5.0
"""A redrive to groups waits so long to tell its outcome."""


class _Found(NamedTuple):
    """Letters that a request is about."""

    intervals: list[Interval] | None
    """None: all that are there."""
    next: int = 0
    """There may be more from this offset on; 0: there are none."""


class DeadLetterHandlers:
    """Answers for the partitions that are led here; the client asks each leader."""

    def __init__(
        self,
        partitions: PartitionLookup,
        dispatchers: DispatcherRegistry,
        fetching: FetchHandler,
        movers: DeadLetterMovers,
    ) -> None:
        self._partitions = partitions
        self._dispatchers = dispatchers
        self._fetching = fetching
        self._movers = movers

    def handlers(self) -> dict[str, Handler]:
        return {"redrive": self.redrive, "redrive_to": self.redrive_to, "revive": self.revive}

    def bulky(self) -> dict[str, Bulky]:
        return {"list_dead": Bulky(self.list_dead, lambda _: _LIST_BYTES)}

    async def redrive(self, request: proto.Request) -> proto.Response:
        """As releases before 0.3.0 ask it."""
        body = request.redrive
        return await self._redrive(
            proto.Redrive(
                topic=body.topic,
                topic_id=body.topic_id,
                partition=body.partition,
                intervals=body.intervals,
                purge=body.purge,
            )
        )

    async def redrive_to(self, request: proto.Request) -> proto.Response:
        body = request.redrive_to
        if body.to and self._dispatchers.level < Level.LETTERS:
            raise InvalidRequest(
                f"the cluster is at feature level {self._dispatchers.level}, at which dead letters "
                'go back to all groups: redrive with to="all", or run `quiver cluster upgrade`'
            )
        if body.to not in {"", TO_GROUP}:
            # It must be there when it is asked for; later, letters wait for it.
            self._partitions.topic(body.to)
        return await self._redrive(body)

    async def _redrive(self, body: proto.Redrive) -> proto.Response:
        named = checked_intervals(body.intervals)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.confirm()
        # What comes in meanwhile is for the next request.
        kept = dispatcher.start, dispatcher.end
        found = _Found(named or None)
        if body.HasField("filter") or body.first:
            found = await self._matching(dispatcher, named, body.filter, body.first)
        send = partial(_purge, kept)
        if not body.purge:
            send = partial(_redrive, kept, dispatcher.now_ms(), body.to)
        messages = 0
        with self._movers.watch(dispatcher) as watch:
            for part in [None] if found.intervals is None else batched(found.intervals):
                while moved := await dispatcher.commit_lease_ops(partial(send, part)):
                    # There may be more.
                    messages += moved
            if body.to == TO_GROUP and messages:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_MOVED_WAIT_S):
                        await watch.until_moved(messages)
        stayed = min(watch.stayed, messages) if body.to == TO_GROUP else 0
        redriven = proto.Redriven(messages=messages - stayed, stayed=stayed, next=found.next)
        return proto.Response(redriven=redriven)

    async def list_dead(self, request: proto.Request, room: Room) -> Answer:
        body = request.list_dead
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.confirm()
        found = _Found(_dead(dispatcher))
        if body.HasField("filter") or body.first:
            found = await self._matching(dispatcher, [], body.filter, body.first)
        intervals = found.intervals or []
        size = _INTERVAL_BYTES * len(intervals)
        check_answer(size, "redrive or purge some by their offsets first")
        await room(size)
        listed = proto.DeadListed(next=found.next)
        async with self._partitions.slices.turn() as turn:
            for low, high in intervals:
                listed.intervals.add(start=low, end=high)
                await turn.rest()
        return proto.Response(dead_listed=listed), ()

    async def _matching(
        self,
        dispatcher: DeliveryDispatcher,
        named: list[Interval],
        wanted: proto.LetterFilter,
        first: int,
    ) -> _Found:
        """Letters that a filter wants, of those that are left and named: as many as can be looked
        at in one request."""
        letters = LetterFilter.parse(wanted)
        left = _dead(dispatcher)
        if named:
            dead = IntervalSet(left)
            left = [part for low, high in join(named) for part in dead.within(low, high)]
        found: list[int] = []
        scanned, loop = 0, asyncio.get_running_loop()
        for low, high in left:
            at = max(low, first)
            while at < high:
                if scanned > _SCANNED_BYTES:
                    return _Found(intervals_of(found) if found else [], at)
                try:
                    frames = await self._fetching.read_on(dispatcher.hosted, at)
                except OffsetOutOfRange:
                    # Retention was faster.
                    at = max(at + 1, int(dispatcher.start))
                    continue
                scanned += sum(map(len, frames))
                found += await loop.run_in_executor(
                    self._fetching.readers, offsets_wanted, letters, frames, (at, high)
                )
                at = frames[-1].header.next_offset if frames else high
        return _Found(intervals_of(found) if found else [])

    async def revive(self, request: proto.Request) -> proto.Response:
        """Let a group have messages again that became dead letters."""
        body = request.revive
        check_group(body.group)
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, body.partition)
        await dispatcher.confirm()
        dispatcher.trim()
        pieces = sorted(
            Piece(piece.start, piece.start + piece.count, piece.priority, 0)
            for piece in body.pieces
            if piece.count
        )
        start = int(dispatcher.start)
        gone = await dispatcher.commit_lease_ops(
            lambda leases: leases.dead_letters.revive(body.group, body.redrive, pieces, start),
            of=body.group,
        )
        intervals = [proto.Interval(start=low, end=high) for low, high in gone]
        return proto.Response(revived=proto.Revived(gone=intervals))


def _dead(dispatcher: DeliveryDispatcher) -> list[Interval]:
    start, end = dispatcher.start, dispatcher.end
    return dispatcher.with_leases(lambda leases: leases.dead_letters.dead(start, end))


def _purge(kept: Interval, intervals: list[Interval] | None, leases: LeaseManager) -> int:
    return leases.dead_letters.purge(*kept, intervals)


def _redrive(
    kept: Interval, now_ms: int, to: str, intervals: list[Interval] | None, leases: LeaseManager
) -> int:
    return leases.dead_letters.redrive(*kept, intervals, now_ms, to)
