"""Spans of a broker: one for each request that stores, delivers or settles messages.

    append    a produce request, from its arrival to its answer
    deliver   a poll that brought messages; the time that it waited for them is part of it
    settle    acknowledgements and the like
    forward   any of these at a broker that passed it on

The parent is the context that the request carries; for requests of doors that have it elsewhere, in
a header of HTTP say, the present one. A broker looks at requests and at headers of batches, never
at messages: the cost is per request and batch.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, TracerProvider

from quivermq.batches import Frame
from quivermq.tracing.contexts import (
    TRACEPARENT,
    TRACESTATE,
    Carried,
    Headers,
    carried,
    carried_by,
    restored,
    with_context,
)
from quivermq.tracing.conventions import (
    GROUP,
    MESSAGE_COUNT,
    NODE,
    OFFSET,
    OPERATION_NAME,
    PARTITION,
    Attributes,
    attributes_of,
    record_error,
    tracer_of,
)
from quivermq.tracing.replication_spans import ReplicationSpans
from quivermq.wire import proto

Reply = Callable[[proto.Response, Sequence[Frame]], None]

_EXTEND: Final = proto.Outcome.Value("EXTEND")


class RequestSpan:
    """The span of one request, until it is answered."""

    def __init__(self, topic: str, span: Span, ended: Callable[[], None]) -> None:
        self._topic = topic
        self._span = span
        self._on_end = ended
        self._is_ended = False

    def name_forward(self, node: int) -> None:
        """The request is passed on to another broker, whose spans tell the rest."""
        self._span.update_name(f"forward {self._topic}")
        self._span.set_attribute(OPERATION_NAME, "forward")
        self._span.set_attribute("messaging.quivermq.forwarded_to", node)

    def answer(self, response: proto.Response) -> None:
        """This is the answer."""
        if response.WhichOneof("body") == "error":
            self.fail(response.error.code, response.error.message)
            return
        if len(response.produced.batches):
            self._span.set_attribute(OFFSET, response.produced.batches[0].first_offset)
        self._end()

    def fail(self, code: str, text: str = "") -> None:
        """It is refused, or was given up."""
        record_error(self._span, code, text)
        self._end()

    def abandon(self) -> None:
        """No answer came, and none will: the client has gone, or has cancelled it."""
        if not self._is_ended:
            self.fail("Cancelled")

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._on_end()
            self._span.end()


class DeliverySpan:
    """The span of a poll. It is made when the poll is answered: most polls bring nothing."""

    def __init__(self, tracer: "BrokerTracer", request: proto.Request, parent: Context) -> None:
        self._tracer = tracer
        self._poll = request.poll
        self._parent = parent
        self._began_ns = time.time_ns()

    def name_forward(self, node: int) -> None:
        """The broker that leads makes the span."""

    def answer(self, response: proto.Response) -> None:
        """Tell the client the context, if messages leave and no other broker told it."""
        polled = response.polled
        if response.WhichOneof("body") == "error":
            self.fail(response.error.code, response.error.message)
        elif len(polled.leased) and not polled.traceparent:
            span = self._start()
            pieces = (piece for leased in polled.leased for piece in leased.pieces)
            span.set_attribute(MESSAGE_COUNT, sum(piece.count for piece in pieces))
            if len(polled.leased) == 1:
                span.set_attribute(PARTITION, str(polled.leased[0].partition))
            polled.traceparent = carried_by(span).traceparent
            span.end()

    def fail(self, code: str, text: str = "") -> None:
        """It is refused."""
        span = self._start()
        record_error(span, code, text)
        span.end()

    def abandon(self) -> None:
        """Nothing was delivered."""

    def _start(self) -> Span:
        return self._tracer.start(
            "deliver", "", self._poll.topic, self._parent, self._began_ns, {GROUP: self._poll.group}
        )


OpenSpan = RequestSpan | DeliverySpan


class BrokerTracer:
    """Makes the spans of one broker, on its event loop."""

    def __init__(
        self,
        provider: TracerProvider,
        node: int,
        end_provider: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`end_provider` exports what is left; None: the provider is another's."""
        self._end_provider = end_provider
        self._tracer = tracer_of(provider)
        self._node = node
        self._open: dict[str, RequestSpan] = {}
        self.replication = ReplicationSpans(self._tracer, node)

    def begin(self, request: proto.Request, frames: Sequence[Frame]) -> OpenSpan | None:
        """A request has come; None: there are no spans of its kind."""
        body = request.WhichOneof("body")
        if body == "produce":
            return self._begin_append(request, frames)
        if body == "poll":
            return DeliverySpan(self, request, _parent_of(request))
        if body == "settle":
            return self._begin_settle(request)
        return None

    @contextmanager
    def incoming(self, headers: Mapping[str, str]) -> Iterator[None]:
        """Work for a call whose headers may have a context, as those of HTTP and gRPC do."""
        token = attach(restored(headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")))
        try:
            yield
        finally:
            detach(token)

    def add_context(self, headers: Sequence[Headers]) -> list[Headers]:
        """The headers of messages that a door lays out: those without a context carry that of
        the call."""
        context = carried().headers()
        return [with_context(each, context) for each in headers]

    def open_span(self, request: proto.Request) -> RequestSpan | None:
        """The span of a request that has begun, and is not answered."""
        return self._open.get(request.traceparent)

    def _begin_append(self, request: proto.Request, frames: Sequence[Frame]) -> RequestSpan:
        produce = request.produce
        more: Attributes = {
            PARTITION: str(produce.partition),
            MESSAGE_COUNT: sum(frame.header.count for frame in frames),
        }
        span = self.start("append", "", produce.topic, _parent_of(request), None, more)
        context = carried_by(span)
        if span.is_recording():
            self.replication.watch(frames, span, context)
        return self._opened(request, produce.topic, span, context, frames)

    def _begin_settle(self, request: proto.Request) -> RequestSpan | None:
        settle = request.settle
        if len(settle.settlements) and settle.settlements[0].outcome == _EXTEND:
            return None
        more: Attributes = {GROUP: settle.group}
        span = self.start("settle", "settle", settle.topic, _parent_of(request), None, more)
        return self._opened(request, settle.topic, span, carried_by(span), ())

    def _opened(
        self,
        request: proto.Request,
        topic: str,
        span: Span,
        context: Carried,
        frames: Sequence[Frame],
    ) -> RequestSpan:
        """From here on the request carries the span: so a broker that it is passed on to, or
        that stores a copy, makes children of it."""
        context.fill(request)

        def ended() -> None:
            self._open.pop(context.traceparent, None)
            self.replication.unwatch(frames)

        opened = RequestSpan(topic, span, ended)
        if context.traceparent:
            self._open[context.traceparent] = opened
        return opened

    def start(
        self,
        operation: str,
        kind: str,
        topic: str,
        parent: Context,
        began_ns: int | None,
        more: Attributes,
    ) -> Span:
        """A span of this broker."""
        attributes = {**attributes_of(operation, kind, topic), NODE: self._node, **more}
        return self._tracer.start_span(
            f"{operation} {topic}", parent, SpanKind.SERVER, attributes, start_time=began_ns
        )

    async def close(self) -> None:
        """End what is open, and export what is left."""
        for opened in list(self._open.values()):
            opened.abandon()
        self.replication.close()
        if self._end_provider is not None:
            await self._end_provider()


def _parent_of(request: proto.Request) -> Context:
    if request.traceparent:
        return restored(request.traceparent, request.tracestate)
    return get_current()
