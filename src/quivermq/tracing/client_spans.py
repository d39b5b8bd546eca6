"""Spans of a client: sending, receiving, processing and settling messages.

The parent of a span is the caller's present one. What is done in the background, for messages of
several callers at once, has the one context that all of them have in common as its parent, if there
is one, and links to all of them in any case.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider

from quivermq.batches import repeat_headers
from quivermq.errors import QuiverError
from quivermq.tracing.contexts import (
    LINKS_MAX,
    TRACEPARENT,
    Carried,
    Headers,
    carried,
    carried_by,
    common_parent,
    context_of,
    distinct,
    links_to,
    span_context_of,
    traceparent_in,
    with_context,
)
from quivermq.tracing.conventions import (
    DELIVERY_COUNT,
    GROUP,
    MESSAGE_COUNT,
    OFFSET,
    PARTITION,
    Attributes,
    attributes_of,
    record_error,
    tracer_of,
)
from quivermq.wire import proto

_OUTCOMES: Final = {
    proto.Outcome.Value(name): name.lower() for name in ("ACK", "NACK", "REJECT", "RELEASE")
}
"""Extending a lease settles nothing, and subscriptions do it all the time: it has no span."""


class ClientTracer:
    """Makes the spans of one client. Any thread may use it."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = tracer_of(provider)

    def inject(self, request: proto.Request, of: object = None) -> None:
        """Let a request carry the context `of` a batch, or else the present one."""
        (of if isinstance(of, Carried) else carried()).fill(request)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Tasks that are begun here belong to no span, though their maker may."""
        token = attach(Context())
        try:
            yield
        finally:
            detach(token)

    def current(self) -> str:
        """The present context; "" if there is none."""
        return carried().traceparent

    # ---- sending

    @contextmanager
    def send(self, topic: str, count: int = 1) -> Iterator["SendSpan"]:
        """The span of one call that stores messages, which carry its context."""
        attributes = attributes_of("send", "send", topic)
        if count != 1:
            attributes[MESSAGE_COUNT] = count
        with self._current(f"send {topic}", SpanKind.PRODUCER, attributes) as span:
            yield SendSpan(span)

    def add_context(self, add: Callable[..., Any]) -> Callable[..., Any]:
        """A producer's `add` that lets each message carry the context of its caller."""

        def add_with_context(
            topic: str, value: object, key: object, headers: Headers, *rest: object
        ) -> Any:
            traced = with_context(headers, carried().headers())
            return add(topic, value, key, traced, *rest)

        return add_with_context

    def add_context_to_all(
        self, values: Any, headers: Any
    ) -> tuple[Any, Any, dict[str, bytes] | None]:
        """The columns of many messages with the context of their caller, and that context."""
        context = carried().headers()
        return *_columns_with(context, values, headers), context or None

    def send_batch(
        self, topic: str, partition: int, headers: Sequence[Headers] | None, count: int
    ) -> "BatchSpan":
        """The span of a producer's batch, whose messages may be of many callers."""
        origins = distinct(map(traceparent_in, headers or ()))
        attributes = attributes_of("send", "send", topic)
        attributes[MESSAGE_COUNT], attributes[PARTITION] = count, str(partition)
        has_all = headers is not None and all(each and TRACEPARENT in each for each in headers)
        span = self._tracer.start_span(
            f"send {topic}",
            common_parent(origins),
            # Of the kind that consumers link to, only if any message carries its context.
            SpanKind.CLIENT if has_all else SpanKind.PRODUCER,
            attributes,
            links_to(origins),
        )
        return BatchSpan(span, headers, count)

    # ---- receiving

    @contextmanager
    def receive(self, topic: str, group: str) -> Iterator["ReceiveSpan"]:
        """The span of a poll."""
        attributes = attributes_of("receive", "receive", topic)
        attributes[GROUP] = group
        with self._current(f"receive {topic}", SpanKind.CLIENT, attributes) as span:
            yield ReceiveSpan(span)

    @contextmanager
    def process(self, message: Any, group: str) -> Iterator[None]:
        """The span in which a handler runs. Its parent is the context of the message."""
        attributes = attributes_of("process", "process", message.topic)
        attributes[GROUP], attributes[PARTITION] = group, str(message.partition)
        attributes[OFFSET], attributes[DELIVERY_COUNT] = message.offset, message.delivery_count
        # Not the context of the thread or task that calls handlers, which is anybody's.
        parent = context_of(message)
        delivered = [message.lease.trace] if message.lease.trace else []
        links = links_to([traceparent_in(message.headers), *delivered])
        name = f"process {message.topic}"
        with self._current(name, SpanKind.CONSUMER, attributes, parent, links):
            yield

    def traced_handler(
        self, handler: Callable[[Any], object], group: str
    ) -> Callable[[Any], object]:
        """A handler that runs in the span of its message."""

        def handle(message: Any) -> object:
            with self.process(message, group):
                return handler(message)

        return handle

    def traced_aio_handler(
        self, handler: Callable[[Any], object], group: str
    ) -> Callable[[Any], object]:
        """The same, which may be a coroutine."""

        async def handle(message: Any) -> None:
            with self.process(message, group):
                found = handler(message)
                if inspect.isawaitable(found):
                    await found

        return handle

    # ---- settling

    def origins_of(self, messages: Iterable[Any]) -> list[str]:
        """The contexts in which messages were sent."""
        return distinct(traceparent_in(message.headers) for message in messages)

    @contextmanager
    def settle(
        self, settlements: Sequence[Any], origins: Sequence[str] | None
    ) -> Iterator[Span | None]:
        """The span of settlements. `origins` are the contexts of those who settle in the
        background; None: the present one is meant."""
        names = {
            _OUTCOMES[settlement.terms.outcome]
            for settlement in settlements
            if settlement.terms.outcome in _OUTCOMES
        }
        if not names:
            yield None
            return
        name = names.pop() if len(names) == 1 else "settle"
        lease = settlements[0].lease
        attributes = attributes_of(name, "settle", lease.topic)
        attributes[GROUP] = lease.group
        attributes[MESSAGE_COUNT] = sum(each.message_count for each in settlements)
        delivered = distinct(settlement.lease.trace for settlement in settlements)
        if origins is None and span_context_of(get_current()).is_valid:
            parent, links = get_current(), links_to(delivered)
        else:
            found = distinct(origins or ())
            parent = common_parent(found or delivered)
            links = links_to(distinct([*found, *delivered]))
        title = f"{name} {lease.topic}"
        with self._current(title, SpanKind.CLIENT, attributes, parent, links) as span:
            yield span

    @contextmanager
    def _current(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """A span that is the present one meanwhile, and ends with the error that ended it."""
        span = self._tracer.start_span(name, parent, kind, attributes, links)
        token = attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        except BaseException as error:
            span.record_exception(error)
            record_error(span, code_of(error), str(error))
            raise
        finally:
            detach(token)
            span.end()


class SendSpan:
    """A call that stores messages."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._carried = carried_by(span)

    def headers(self, headers: Headers) -> Headers:
        """The headers of a message with the context in them, unless it has one of its own."""
        return with_context(headers, self._carried.headers())

    def columns(self, values: Any, headers: Any) -> tuple[Any, Any]:
        """Many messages with the context in them. Arrow with headers stays as it is."""
        return _columns_with(self._carried.headers(), values, headers)

    def stored_at(self, partition: int, offset: int) -> None:
        """Where the one message is."""
        self._span.set_attribute(PARTITION, str(partition))
        self._span.set_attribute(OFFSET, offset)


class BatchSpan:
    """A producer's batch on its way."""

    def __init__(self, span: Span, headers: Sequence[Headers] | None, count: int) -> None:
        self._span = span
        self.context = carried_by(span)
        """For the request."""
        context = self.context.headers()
        self.headers = (
            [with_context(each, context) for each in headers or [None] * count]
            if context
            else headers
        )
        """The same headers; messages without a context carry that of the batch."""

    def end(self, outcome: object) -> None:
        """The batch is stored, or given up."""
        if isinstance(outcome, QuiverError):
            self._span.record_exception(outcome)
            record_error(self._span, outcome.code, str(outcome))
        else:
            self._span.set_attribute(OFFSET, getattr(outcome, "first_offset", -1))
        self._span.end()


class ReceiveSpan:
    """A poll, and what it brought."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def took(self, messages: Sequence[Any]) -> None:
        """Link to the producers of these messages."""
        self._took(len(messages), distinct(traceparent_in(each.headers) for each in messages))

    def took_table(self, table: Any) -> None:
        """Link to the producers of the messages in a table."""
        pairs = pa.concat_arrays([each.flatten() for each in table.column("headers").chunks])
        is_parent = pc.equal(pairs.field("key"), TRACEPARENT)
        parents = pairs.field("value").filter(is_parent).unique()[:LINKS_MAX].to_pylist()
        self._took(table.num_rows, [each.decode("ascii", "replace") for each in parents])

    def _took(self, count: int, parents: Iterable[str]) -> None:
        self._span.set_attribute(MESSAGE_COUNT, count)
        for link in links_to(parents):
            self._span.add_link(link.context)


def code_of(error: BaseException) -> str:
    """The type of an error, as a span has it."""
    return error.code if isinstance(error, QuiverError) else type(error).__qualname__


def _columns_with(context: dict[str, bytes], values: Any, headers: Any) -> tuple[Any, Any]:
    if not context or isinstance(headers, pa.Array | pa.ChunkedArray):
        return values, headers
    if isinstance(values, pa.Table | pa.RecordBatch):
        if "headers" in values.schema.names:
            return values, headers
        column = repeat_headers(context, values.num_rows)
        if isinstance(values, pa.RecordBatch):
            values = pa.Table.from_batches([values])
        return values.append_column("headers", column), headers
    if headers is None or isinstance(headers, Mapping):
        return values, with_context(headers, context)
    if not isinstance(headers, Sequence):
        return values, headers
    return values, [with_context(each, context) for each in headers]
