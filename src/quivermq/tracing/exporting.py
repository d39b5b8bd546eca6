"""The tracer provider of a broker: exports spans by OTLP, from a thread of its own.

Everything about it is set by OpenTelemetry's variables: `OTEL_EXPORTER_OTLP_ENDPOINT` and others of
the exporter, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME`, `OTEL_BSP_MAX_QUEUE_SIZE`. Spans wait in a
bounded queue; what does not fit is dropped, and a collector that is down costs the broker nothing
but a line in its log now and then.
"""

import asyncio
import logging
import threading
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import quivermq

logger = logging.getLogger("quivermq.tracing")

FLUSH_S: Final = 2.0
"""How long the end of a broker waits for its last spans to be exported."""


def make_provider(node: int) -> TracerProvider:
    """A provider for the spans of one broker."""
    resource = Resource.create(
        {
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over these.
            "service.instance.id": str(node),
            "service.version": quivermq.__version__,
        }
    )
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "quivermq"}))
    # No handler at exit: the broker ends it, and waits no longer than it wants to.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


async def end_provider(provider: TracerProvider) -> None:
    """Export what is left, for a moment; a collector that does not answer is not waited for."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def end() -> None:
        try:
            provider.shutdown()
        except Exception:
            logger.exception("the last spans were not exported")
        finally:
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:
                logger.debug("the broker has ended before its last spans were exported")

    # A daemon, and not of a pool that the program would join at its end.
    threading.Thread(target=end, name="quiver-spans", daemon=True).start()
    try:
        async with asyncio.timeout(FLUSH_S):
            await ended.wait()
    except TimeoutError:
        logger.warning("the last spans were not exported within %.0f s", FLUSH_S)
