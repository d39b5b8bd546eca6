"""Tracing with OpenTelemetry: spans of clients and brokers, and the trace context of messages.

`client_tracer` and `broker_tracer` decide whether there is any tracing. Only they, and what they
return, load OpenTelemetry: where tracing is off, this room imports nothing of it.
"""

from typing import TYPE_CHECKING, Any

from quivermq.tracing.switch import TRACING_VARIABLE, Tracing, broker_tracer, client_tracer

if TYPE_CHECKING:
    from quivermq.tracing.broker_spans import BrokerTracer
    from quivermq.tracing.client_spans import ClientTracer
    from quivermq.tracing.contexts import context_of
    from quivermq.tracing.replication_spans import ReplicationSpans

__all__ = [
    "TRACING_VARIABLE",
    "BrokerTracer",
    "ClientTracer",
    "ReplicationSpans",
    "Tracing",
    "broker_tracer",
    "client_tracer",
    "context_of",
]

_PLACES = {
    "BrokerTracer": "broker_spans",
    "ClientTracer": "client_spans",
    "ReplicationSpans": "replication_spans",
    "context_of": "contexts",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = __import__(f"{__name__}.{_PLACES[name]}", fromlist=[name])
    return getattr(module, name)
