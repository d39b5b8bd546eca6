"""Names of spans and attributes, by OpenTelemetry's conventions for messaging.

A span is named `{operation} {topic}`. Attributes of our own are below `messaging.quivermq`.
"""

from typing import Final

from opentelemetry.trace import Span, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

import quivermq

SYSTEM: Final = "quivermq"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The conventions that the names here are of."""

OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
MESSAGE_COUNT: Final = "messaging.batch.message_count"
OFFSET: Final = "messaging.quivermq.message.offset"
NODE: Final = "messaging.quivermq.node"
"""The broker that made the span."""
DELIVERY_COUNT: Final = "messaging.quivermq.message.delivery_count"
ERROR_TYPE: Final = "error.type"

Attributes = dict[str, AttributeValue]


def attributes_of(operation: str, kind: str, topic: str) -> Attributes:
    """The attributes of every span; `kind` is "" for operations that the conventions lack."""
    found: Attributes = {
        "messaging.system": SYSTEM,
        OPERATION_NAME: operation,
        DESTINATION: topic,
    }
    if kind:
        found[OPERATION_TYPE] = kind
    return found


def record_error(span: Span, code: str, text: str = "") -> None:
    """The operation failed."""
    span.set_attribute(ERROR_TYPE, code)
    span.set_status(Status(StatusCode.ERROR, text or code))


def tracer_of(provider: TracerProvider) -> Tracer:
    """The tracer under whose name all spans of this package are reported."""
    return provider.get_tracer(SYSTEM, quivermq.__version__, schema_url=SCHEMA_URL)
