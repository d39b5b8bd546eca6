"""A broker and clients that trace into memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from quivermq.node import Machine
from quivermq.tracing import BrokerTracer, broker_tracer
from quivermq.transports import Server
from tests.transports.stage import settings, until


class Spans:
    """A tracer provider, and all spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        # Nothing of the machine's environment may change what a test sees.
        self.provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("the test")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def all(self, name: str | None = None) -> list[ReadableSpan]:
        found = self._exporter.get_finished_spans()
        return [span for span in found if name is None or span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span

    async def wait(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """What a broker or a background task ends soon."""
        await until(lambda: len(self.all(name)) >= count)
        return self.all(name)

    def forget(self) -> None:
        self._exporter.clear()


class TracingMachine(Machine):
    """Lets a broker trace into memory."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def start_tracer(self, node: int) -> BrokerTracer:
        return broker_tracer(node, self._spans.provider)


@asynccontextmanager
async def tracing(folder: Path, **changes: Any) -> AsyncIterator[tuple[Server, Spans]]:
    """A broker that traces, with the topic `orders`; its clients trace to the same memory."""
    spans = Spans()
    server = Server(settings(folder, tracing=True, **changes), TracingMachine(spans))
    await server.start()
    try:
        await until(lambda: server.broker.is_ready)
        yield server, spans
    finally:
        await server.stop()


async def in_thread(call: Callable[[], Any]) -> Any:
    """Run a blocking client beside the broker."""
    return await asyncio.to_thread(call)


def context_of_span(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and (span.parent.trace_id, span.parent.span_id) == (
        context_of_span(parent).trace_id,
        context_of_span(parent).span_id,
    )


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it links to."""
    return [link.context.span_id for link in span.links]


def span_id(span: ReadableSpan) -> int:
    return context_of_span(span).span_id


def traceparent(span: ReadableSpan) -> str:
    """Its context, as W3C writes it."""
    found = context_of_span(span)
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)
