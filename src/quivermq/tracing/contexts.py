"""Trace contexts as they travel: in headers of messages, in requests, in links of spans.

A context is written as W3C says, in `traceparent` and `tracestate`. What comes from outside is
checked by OpenTelemetry's own propagator: what is no context counts as none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from quivermq.wire import proto

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

LINKS_MAX: Final = 128
"""Links of one span: as many as OpenTelemetry keeps by default."""

TRACESTATE_CHARACTERS_MAX: Final = 512
"""A longer one is left out, as W3C allows."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()


Headers = Mapping[str, bytes] | None
"""Of a message."""


class Carried(NamedTuple):
    """A context as text; without a `traceparent` there is none."""

    traceparent: str = ""
    tracestate: str = ""

    def headers(self) -> dict[str, bytes]:
        """The headers of a message that carry it."""
        found = {TRACEPARENT: self.traceparent.encode()} if self.traceparent else {}
        if found and self.tracestate:
            found[TRACESTATE] = self.tracestate.encode()
        return found

    def fill(self, request: proto.Request) -> None:
        """Write it into a request; without one, the request has none."""
        request.traceparent, request.tracestate = self


NOTHING: Final = Carried()


def carried(context: Context | None = None) -> Carried:
    """A context, by default the present one, as text."""
    found: dict[str, str] = {}
    _PROPAGATOR.inject(found, context)
    state = found.get(TRACESTATE, "")
    return Carried(
        found.get(TRACEPARENT, ""), state if len(state) <= TRACESTATE_CHARACTERS_MAX else ""
    )


def carried_by(span: Span) -> Carried:
    """The context of a span as text."""
    return carried(trace.set_span_in_context(span, Context()))


def restored(traceparent: str, tracestate: str = "") -> Context:
    """The context that was written so; an empty one if it is none."""
    carrier = {TRACEPARENT: traceparent}
    if tracestate and len(tracestate) <= TRACESTATE_CHARACTERS_MAX:
        carrier[TRACESTATE] = tracestate
    return _PROPAGATOR.extract(carrier, Context())


def context_of(message: Any) -> Context:
    """The context in which a message was sent: the parent of what its consumer does.

    >>> with tracer.start_as_current_span("bill", context=context_of(message)):
    ...     bill(message.value)

    Takes anything with `headers`. Empty if the message has no context.
    """
    return restored(*_texts(message.headers))


def traceparent_in(headers: Mapping[str, bytes] | None) -> str:
    """The `traceparent` among the headers of a message; "" if there is none."""
    return _texts(headers)[0] if headers else ""


def _texts(headers: Mapping[str, bytes]) -> tuple[str, str]:
    # Headers are bytes of anybody's: what is not ASCII is no context.
    return (
        headers.get(TRACEPARENT, b"").decode("ascii", "replace"),
        headers.get(TRACESTATE, b"").decode("ascii", "replace"),
    )


def with_context(headers: Headers, context: dict[str, bytes]) -> Headers:
    """The headers of a message with a context in them, unless it has one of its own."""
    if not headers:
        return context or headers
    # What is no mapping is refused where headers are checked.
    if not isinstance(headers, Mapping) or TRACEPARENT in headers:
        return headers
    return {**headers, **context}


def span_context_of(context: Context) -> SpanContext:
    """The span that a context is in; an invalid one if it is in none."""
    return trace.get_current_span(context).get_span_context()


def distinct(traceparents: Iterable[str]) -> list[str]:
    """The first `LINKS_MAX` different contexts, in their order."""
    found: dict[str, None] = {}
    for traceparent in traceparents:
        if traceparent:
            found[traceparent] = None
            if len(found) >= LINKS_MAX:
                break
    return list(found)


def links_to(traceparents: Iterable[str]) -> list[Link]:
    """Links to these contexts, as far as they are any."""
    contexts = (span_context_of(restored(each)) for each in traceparents)
    return [Link(each) for each in contexts if each.is_valid]


def common_parent(traceparents: Sequence[str]) -> Context:
    """The one context that all have in common; empty if there is none."""
    return restored(traceparents[0]) if len(traceparents) == 1 else Context()
