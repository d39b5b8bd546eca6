"""The service of a broker that traces: each request has its span.

A service of its own kind, so that a broker that does not trace does nothing for it.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from quivermq.batches import Frame
from quivermq.errors import QuiverError
from quivermq.node.callers import BROKER, Caller
from quivermq.node.service import Answer, AnswerRoom, Cancellable, Reply, Room, Service, any_room
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.tracing import BrokerTracer


class _TracedWork:
    """Work that waits without a task: its span ends with it."""

    def __init__(self, work: Cancellable, abandon: Callable[[], None]) -> None:
        self._work = work
        self._abandon = abandon

    def cancel(self) -> None:
        """End it: there is no answer."""
        self._work.cancel()
        self._abandon()


class TracedService(Service):
    """Answers requests, and makes spans of them. What the broker asks itself has none."""

    def __init__(self, tracer: "BrokerTracer", *parts: Any) -> None:
        super().__init__(*parts)
        self._tracer = tracer

    def submit(
        self,
        request: proto.Request,
        frames: list[Frame],
        reply: Reply,
        room: AnswerRoom = any_room,
        caller: Caller | None = None,
    ) -> Cancellable | None:
        """Answer a request; its span ends before the reply leaves."""
        span = self._tracer.begin(request, frames) if caller is not BROKER else None
        if span is None:
            return super().submit(request, frames, reply, room, caller)

        def end_and_reply(response: proto.Response, sent: Sequence[Frame]) -> None:
            span.answer(response)
            reply(response, sent)

        work = super().submit(request, frames, end_and_reply, room, caller)
        if isinstance(work, asyncio.Task):
            work.add_done_callback(lambda _: span.abandon())
            return work
        return None if work is None else _TracedWork(work, span.abandon)

    async def call(
        self,
        request: proto.Request,
        frames: Sequence[Frame] = (),
        room: Room = any_room,
        caller: Caller | None = None,
    ) -> Answer:
        """The answer, from here or from the leader; raises refusals."""
        span = self._tracer.begin(request, frames) if caller is not BROKER else None
        if span is None:
            return await super().call(request, frames, room, caller)
        try:
            answer = await super().call(request, frames, room, caller)
        except QuiverError as error:
            span.fail(error.code, str(error))
            raise
        except BaseException:
            span.abandon()
            raise
        span.answer(answer[0])
        return answer

    async def _forward(
        self,
        node: int,
        request: proto.Request,
        frames: Sequence[Frame],
        left_s: float,
        caller: Caller | None,
    ) -> Answer | None:
        span = self._tracer.open_span(request)
        if span is not None:
            span.name_forward(node)
        return await super()._forward(node, request, frames, left_s, caller)
