"""Decides whether a client or a broker traces, and makes its tracer.

    connect(tracing=...)    None: what QUIVER_TRACING says; True: with the tracer provider of the
                            program; a tracer provider: with that one; False: off
    quiver serve --tracing  a provider of the broker's own, which exports by OTLP

OpenTelemetry is imported here and nowhere above, and only if tracing is on.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from quivermq.errors import InvalidRequest

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from quivermq.tracing.broker_spans import BrokerTracer
    from quivermq.tracing.client_spans import ClientTracer

TRACING_VARIABLE: Final = "QUIVER_TRACING"
"""Of the environment: turns tracing on for clients that are not told, and for brokers."""

Tracing: TypeAlias = "bool | TracerProvider | None"

_ON: Final = frozenset({"1", "true", "yes", "on"})
_MISSING: Final = "tracing needs OpenTelemetry: pip install 'quivermq[otel]'"


def client_tracer(tracing: Tracing) -> "ClientTracer | None":
    """The tracer of a client; None: it does not trace."""
    if tracing is None:
        tracing = os.environ.get(TRACING_VARIABLE, "").strip().lower() in _ON
    if tracing is False:
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415  (only if it is wanted)

        from quivermq.tracing.client_spans import ClientTracer  # noqa: PLC0415
    except ImportError as error:
        raise InvalidRequest(_MISSING) from error
    provider = trace.get_tracer_provider() if tracing is True else tracing
    if not hasattr(provider, "get_tracer"):
        raise InvalidRequest(f"tracing is True, False or a tracer provider, not {tracing!r}")
    return ClientTracer(provider)


def broker_tracer(node: int, provider: "TracerProvider | None" = None) -> "BrokerTracer":
    """The tracer of a broker; without a provider, with one that exports by OTLP."""
    try:
        from quivermq.tracing.broker_spans import BrokerTracer  # noqa: PLC0415

        if provider is not None:
            return BrokerTracer(provider, node)
        from quivermq.tracing.exporting import end_provider, make_provider  # noqa: PLC0415
    except ImportError as error:
        raise InvalidRequest(_MISSING) from error
    own = make_provider(node)
    return BrokerTracer(own, node, partial(end_provider, own))
