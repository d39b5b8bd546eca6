"""Wires the parts of a client together, over one transport: shared by both clients."""

from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING

from quivermq.client.admin import Admin
from quivermq.client.cursor import Cursor, Place
from quivermq.client.dead_letter_admin import DeadLetterAdmin
from quivermq.client.group_admin import GroupAdmin
from quivermq.client.offsets import Offsets
from quivermq.client.producer.produce import DirectProducer, TracedProducer
from quivermq.client.router import Router
from quivermq.client.shared.consumer import SharedConsumer
from quivermq.client.topic_cursor import TopicCursor
from quivermq.client.transport import Transport
from quivermq.client.user_admin import UserAdmin
from quivermq.errors import InvalidRequest
from quivermq.wire import proto

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer


class Core:
    """Everything a client does, as coroutines over a transport."""

    def __init__(
        self,
        transport: Transport,
        servers: list[str],
        timeout: float,
        tracer: "ClientTracer | None" = None,
    ) -> None:
        self.transport = transport
        self._on_close: Callable[[], Awaitable[None]] = transport.close
        self.router = Router(transport, servers, timeout, tracer)
        self.admin = Admin(self.router)
        self.producing = (
            DirectProducer(self.router) if tracer is None else TracedProducer(self.router, tracer)
        )
        self.consuming = SharedConsumer(self.router)
        self.groups = GroupAdmin(self.router)
        self.offsets = Offsets(self.router)
        self.users = UserAdmin(self.router)
        self.dead_letters = DeadLetterAdmin(self.router, self.admin)

    async def close(self) -> None:
        """Close the connections."""
        await self._on_close()

    def share(self, on_close: Callable[[], Awaitable[None]]) -> "Core":
        """A core with a consumer of its own over the same connections; `on_close` closes these, if
        it is time to."""
        shared = copy(self)
        shared.consuming = SharedConsumer(self.router)
        shared._on_close = on_close  # noqa: SLF001  (it is one of us)
        return shared

    async def greet(self) -> None:
        """Reach one broker: better now than at the first message."""
        request = proto.Request()
        request.ping.SetInParent()
        await self.router.ask_any(request, self.router.attempts("connecting"))

    def cursor(
        self,
        topic: str,
        partition: int,
        *,
        start: Place,
        stop: Place | None,
        follow: bool,
        follower_ok: bool,
        topic_id: bytes = b"",
        is_known: bool = False,
    ) -> Cursor:
        """A place to read from."""
        if type(partition) is not int or partition < 0:
            raise InvalidRequest(f"partition must be a whole number from 0 up: {partition!r}")
        return Cursor(
            self.router,
            topic,
            partition,
            start=start,
            stop=stop,
            follow=follow,
            follower_ok=follower_ok,
            topic_id=topic_id,
            is_known=is_known,
        )

    def range_cursor(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        topic_id: str,
        *,
        follower_ok: bool,
    ) -> Cursor:
        """A place to read from, of messages that are known to exist."""
        return self.cursor(
            topic,
            partition,
            start=start,
            stop=stop,
            follow=False,
            follower_ok=follower_ok,
            topic_id=bytes.fromhex(topic_id),
            is_known=True,
        )

    def cursor_of(
        self,
        topic: str,
        partition: int | None,
        *,
        start: Place,
        stop: Place | None,
        follow: bool,
        follower_ok: bool,
    ) -> Cursor | TopicCursor:
        """A place to read from, in one partition or in all."""
        if partition is not None:
            return self.cursor(
                topic, partition, start=start, stop=stop, follow=follow, follower_ok=follower_ok
            )
        return TopicCursor(
            self.router,
            self.offsets,
            topic,
            start=start,
            stop=stop,
            follow=follow,
            follower_ok=follower_ok,
        )
