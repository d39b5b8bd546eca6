"""A broker for FastStream: handlers are consumers of shared groups.

    from faststream import FastStream
    from quivermq.integrations.faststream import QuiverBroker

    broker = QuiverBroker("127.0.0.1:7600")

    @broker.subscriber("orders", group="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

    app = FastStream(broker)

Knows the asyncio client, and FastStream's own interfaces for brokers, which change between minor
releases of FastStream: see the extra `faststream`.
"""

from typing import Annotated

try:
    from faststream import Context

    from quivermq.integrations.faststream.broker import QuiverBroker, QuiverRouter
    from quivermq.integrations.faststream.message import QuiverMessage as _Message
    from quivermq.integrations.faststream.publish_command import QuiverResponse
    from quivermq.integrations.faststream.testing import TestQuiverBroker
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in {"faststream", "fast_depends"}:
        raise
    raise ModuleNotFoundError(
        "FastStream is not installed: pip install 'quivermq[faststream]'", name=error.name
    ) from error

QuiverMessage = Annotated[_Message, Context("message")]
"""For a parameter of a handler that wants the whole message."""

__all__ = [
    "QuiverBroker",
    "QuiverMessage",
    "QuiverResponse",
    "QuiverRouter",
    "TestQuiverBroker",
]
