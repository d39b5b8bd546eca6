"""Trace a message from the checkout that sends it to the handler that bills it."""

import threading

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from quivermq import LeasedMessage
from quivermq.testing import Cluster


def main() -> None:
    # A program of yours has a provider that exports; its spans would be in Jaeger, say.
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("shop")

    with Cluster(nodes=1) as cluster, cluster.connect(tracing=provider) as client:
        client.create_topic("orders")
        billed = threading.Event()

        def bill(message: LeasedMessage) -> None:
            with tracer.start_as_current_span("charge the card"):
                print("billing", message.value)
            billed.set()

        with tracer.start_as_current_span("checkout"):
            client.produce("orders", b"an order")
        with client.subscribe("orders", group="billing", handler=bill):
            billed.wait()

    spans = memory.get_finished_spans()
    print_below(None, spans, 0)


def print_below(parent: int | None, spans: tuple[ReadableSpan, ...], depth: int) -> None:
    """The spans below one, each with those below it."""
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        if (span.parent.span_id if span.parent else None) == parent:
            print("  " * depth + span.name)
            print_below(span.context.span_id, spans, depth + 1)


if __name__ == "__main__":
    main()
