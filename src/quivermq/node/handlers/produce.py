"""Answers produce requests, without a task, a future or a copy in between; grants producer ids."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from quivermq.batches import Frame
from quivermq.cluster import Edit, View, grant_producers
from quivermq.errors import InvalidRequest, QuiverError, Timeout
from quivermq.node.counters import Counters
from quivermq.node.deadlines import Deadlines
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.metadata import Metadata
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.replica import Produced, Result
from quivermq.wire import proto


class Finished(Protocol):
    """Answers a request that has no task: called once."""

    def __call__(
        self, result: proto.Response | QuiverError, frames: Sequence[Frame] = (), /
    ) -> None: ...


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
        self._now = asyncio.get_running_loop().time
        self._open: Deadlines[PendingProduce] = Deadlines(PendingProduce.give_up, _LOOK_AGAIN_S)

    def produce(
        self, body: proto.Produce, frames: Sequence[Frame], finished: Finished, timeout_s: float
    ) -> None:
        """Store batches; `finished` is called once, maybe at once, at the latest in `timeout_s`.

        Raises refusals.
        """
        hosted = self._partitions.leading(body.topic, body.topic_id, body.partition)
        if not frames:
            raise InvalidRequest("a produce request needs at least one batch")
        if len(frames) == 1:
            answer = partial(self._answer_stored, hosted, frames[0], finished, time.perf_counter())
            if hosted.produce_at_once(frames[0], answer):
                return
        pending = PendingProduce(
            hosted, frames, finished, self._counters, self._on_stored, self._open.discard
        )
        pending.deadline_s = self._now() + timeout_s
        self._open.add(pending)
        for number, frame in enumerate(frames):
            hosted.produce(frame, partial(pending.done, number))

    def _answer_stored(
        self,
        hosted: HostedReplica,
        frame: Frame,
        finished: Finished,
        began: float,
        stored: Produced,
    ) -> None:
        """Answer a request whose one batch was stored at once."""
        self._on_stored(hosted, frame, stored)
        name = hosted.name
        traffic = self._counters.traffic[name.topic, name.partition]
        traffic.messages_in += stored.count
        traffic.bytes_in += len(frame)
        response = proto.Response()
        _add_batch(response, stored)
        self._counters.produce_seconds.observe(time.perf_counter() - began)
        finished(response)

    def close(self) -> None:
        """Look at no deadline any more: the replicas end what waits."""
        self._open.close()


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
        "deadline_s",
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
        self.deadline_s = 0.0
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
        finished, self._finished = self._finished, _ignore
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
        for stored in self._stored:
            if stored is not None:
                _add_batch(response, stored)
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


def _ignore(result: proto.Response | QuiverError, frames: Sequence[Frame] = (), /) -> None:
    """It was answered before."""


def _add_batch(response: proto.Response, stored: Produced) -> None:
    response.produced.batches.add(
        first_offset=stored.base_offset,
        count=stored.count,
        timestamp_ms=stored.timestamp_ms,
        is_repeat=stored.is_repeat,
    )


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
