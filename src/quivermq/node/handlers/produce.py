"""Answers produce requests, without a task, a future or a copy in between; grants producer ids."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from quivermq.batches import Frame
from quivermq.cluster import Edit, View, grant_producers
from quivermq.errors import InvalidRequest, QuiverError, Timeout
from quivermq.node.counters import Counters
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.replica import Produced, Result
from quivermq.wire import proto

Finished = Callable[[proto.Response | QuiverError], None]

_GRANTED_AT_ONCE: Final = 1000
_LOOK_AGAIN_S: Final = 0.05
"""How late a request may be told that its time is over."""


class ProduceHandler:
    """Takes batches in for the partitions that are led here."""

    def __init__(
        self,
        partitions: PartitionLookup,
        counters: Counters,
        on_stored: Callable[[HostedReplica, Frame, Produced], None],
    ) -> None:
        self._partitions = partitions
        self._counters = counters
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._open: set[PendingProduce] = set()
        # One timer for all, set for the first deadline: most requests end long before theirs.
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def produce(
        self, body: proto.Produce, frames: Sequence[Frame], finished: Finished, timeout_s: float
    ) -> None:
        """Store batches; `finished` is called once, maybe at once, at the latest in `timeout_s`.

        Raises refusals.
        """
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition)
        if not frames:
            raise InvalidRequest("a produce request needs at least one batch")
        pending = PendingProduce(
            hosted, frames, finished, self._counters, self._on_stored, self._open.discard
        )
        pending.deadline = self._loop.time() + timeout_s
        self._open.add(pending)
        for number, frame in enumerate(frames):
            hosted.produce(frame, partial(pending.done, number))
        if self._timer is None or pending.deadline < self._due:
            self._look_at(pending.deadline)

    def _look_at(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._end_overdue)

    def _end_overdue(self) -> None:
        now = self._loop.time()
        self._timer = None
        overdue = [pending for pending in self._open if pending.deadline <= now]
        # By age: the order of a set is that of addresses in memory.
        for pending in sorted(overdue, key=lambda pending: pending.began):
            pending.give_up()
        if self._open:
            first = min(pending.deadline for pending in self._open)
            self._look_at(max(first, now + _LOOK_AGAIN_S))

    def close(self) -> None:
        """Look at no deadline any more: the replicas end what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class PendingProduce:
    """One request, until all its batches are stored or refused."""

    __slots__ = (
        "_closed",
        "_counters",
        "_error",
        "_finished",
        "_frames",
        "_hosted",
        "_left",
        "_on_stored",
        "_stored",
        "began",
        "deadline",
    )

    def __init__(
        self,
        hosted: HostedReplica,
        frames: Sequence[Frame],
        finished: Finished,
        counters: Counters,
        on_stored: Callable[[HostedReplica, Frame, Produced], None],
        closed: Callable[["PendingProduce"], None],
    ) -> None:
        self.deadline = 0.0
        self._closed = closed
        self._hosted = hosted
        self._on_stored = on_stored
        self._frames = frames
        self._finished = finished
        self._counters = counters
        self._left = len(frames)
        self._stored: list[Produced | None] = [None] * len(frames)
        self._error: QuiverError | None = None
        self.began = time.perf_counter()

    def done(self, number: int, result: Result) -> None:
        if isinstance(result, Produced):
            self._stored[number] = result
            if not result.is_repeat:
                self._on_stored(self._hosted, self._frames[number], result)
        elif isinstance(result, QuiverError) and self._error is None:
            self._error = result
        self._left -= 1
        if self._left == 0:
            self._finish()

    def give_up(self) -> None:
        """Answer that the outcome is unknown. What is stored after all is still counted."""
        name, waited_s = self._hosted.name, time.perf_counter() - self.began
        self._closed(self)
        finished, self._finished = self._finished, lambda _: None
        finished(
            Timeout(
                f"{name} did not store it within {waited_s:.1f} s, and may still do so; try again. "
                f"If this goes on, see whether its disks are full or too slow"
            )
        )

    def _finish(self) -> None:
        counters = self._counters
        self._closed(self)
        self._count()
        if self._error is not None:
            self._finished(self._error)
            return
        response = proto.Response()
        batches = response.produced.batches
        for stored in self._stored:
            if stored is not None:
                batches.add(
                    first_offset=stored.base_offset,
                    count=stored.count,
                    timestamp_ms=stored.timestamp_ms,
                    is_repeat=stored.is_repeat,
                )
        counters.produce_seconds.observe(time.perf_counter() - self.began)
        self._finished(response)

    def _count(self) -> None:
        """Count what was stored, and not what was stored before."""
        name = self._hosted.name
        traffic = self._counters.traffic[name.topic, name.partition]
        for frame, stored in zip(self._frames, self._stored, strict=True):
            if stored is not None and not stored.is_repeat:
                traffic.messages_in += stored.count
                traffic.bytes_in += len(frame)


class ProducerIds:
    """Grants ids to idempotent producers."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        # Ids that the metadata partition granted to this broker: first and behind last.
        self._granted = (0, 0)
        self._granting = asyncio.Lock()

    def handlers(self) -> dict[str, Callable[[proto.Request], Awaitable[proto.Response]]]:
        return {"new_producer": self.new_producer}

    async def new_producer(self, request: proto.Request) -> proto.Response:  # noqa: ARG002
        async with self._granting:
            first, end = self._granted
            if first == end or first < self._metadata.view.producer_floor:
                first, end = await self._grant()
            self._granted = (first + 1, end)
        granted = proto.ProducerGranted(producer_id=first, producer_epoch=0)
        return proto.Response(producer_granted=granted)

    async def _grant(self) -> tuple[int, int]:
        """A run of ids that no other broker gets; raises `NotLeader` where that is not known."""
        first = 0

        def build(view: View) -> Edit | None:
            nonlocal first
            edit, first = grant_producers(view, _GRANTED_AT_ONCE)
            return edit

        await self._metadata.edit(build)
        return first, first + _GRANTED_AT_ONCE
