"""One caller's way to the broker's `Service`: its time, its room for answers, its partitions.

Every request of this transport passes `Call.ask`.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final
from urllib.parse import unquote

from quivermq.batches import Frame, Limits
from quivermq.errors import Forbidden, TopicNotFound
from quivermq.node import BROKER, Caller, Host
from quivermq.transports.backlog import Backlog
from quivermq.transports.signing_in import current_caller
from quivermq.wire import check_items, error_from_proto, proto

Answer = tuple[proto.Response, Sequence[Frame]]
Room = Callable[[int], Awaitable[None]]
"""Waits until the caller can take an answer of so many bytes."""

_AUTHORIZATION: Final = "authorization"
REQUEST_ID: Final = "x-request-id"
_LISTING_BYTES: Final = 1 << 20
"""The expected size of a list."""
_MARGIN_S: Final = 0.05
"""An answer leaves so long before the deadline of its call."""


def authorization_of(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    """The header with the token of a call, as it is; "" if there is none."""
    return _value_of(metadata, _AUTHORIZATION)


def request_id_of(metadata: Sequence[tuple[str, str | bytes]] | None) -> str:
    """The id that the client gave its call; "" if it gave none."""
    return _value_of(metadata, REQUEST_ID)


def _value_of(metadata: Sequence[tuple[str, str | bytes]] | None, name: str) -> str:
    found = next((value for key, value in metadata or () if key == name), "")
    return found if isinstance(found, str) else found.decode(errors="replace")


def host_of(peer: str) -> str:
    """The host in `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`; "" if it is another kind."""
    kind, _, place = peer.partition(":")
    return unquote(place).rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else ""


class Backlogs:
    """The answers on their way to each client: one that takes nothing holds up only itself."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._numbers = count(1)
        self._backlogs: dict[str, tuple[Backlog, set[int]]] = {}

    def __len__(self) -> int:
        return len(self._backlogs)

    def enter(self, peer: str) -> tuple[Room, Callable[[], None]]:
        """A call of a connection: it waits for room by the first, and says by the second that its
        answer was taken."""
        number = next(self._numbers)
        found = self._backlogs.get(peer)
        if found is None:
            found = self._backlogs[peer] = (Backlog(self._bytes_max, lambda: 0), set())
        backlog, calls = found
        calls.add(number)

        def leave() -> None:
            backlog.settle(number)
            calls.discard(number)
            if not calls:
                self._backlogs.pop(peer, None)

        return partial(backlog.room, number), leave


class Call:
    """Asks the service on behalf of one call, or of one request of a session."""

    def __init__(
        self,
        broker: Host,
        room: Room,
        time_left: Callable[[], float | None] = lambda: None,
        caller: Caller | None = None,
    ) -> None:
        """None: the caller that signed in."""
        self.broker = broker
        self._room = room
        self._time_left = time_left
        self._caller = caller

    @property
    def limits(self) -> Limits:
        return self.broker.limits

    def wait_s(self, wait_ms: int) -> float:
        """How long to wait for messages: not past the deadline."""
        left = self._time_left()
        wait_s = wait_ms / 1000
        return wait_s if left is None else max(0.0, min(wait_s, left - _MARGIN_S))

    def listing(self) -> "Call":
        """This call, if it asks many partitions: it waits for room once. Calls that have some and
        wait for more could wait for each other."""
        has_room = False

        async def room(_: int) -> None:
            nonlocal has_room
            if not has_room:
                has_room = True
                await self._room(_LISTING_BYTES)

        return Call(self.broker, room, self._time_left, self._caller)

    async def ask(
        self, request: proto.Request, frames: Sequence[Frame] = (), wait_s: float = 0.0
    ) -> Answer:
        """The answer of the service; raises refusals. `wait_s` is what the request itself waits."""
        check_items(request)
        timeout_s = self.broker.settings.request_timeout_ms / 1000 + wait_s
        left = self._time_left()
        if left is not None:
            timeout_s = min(timeout_s, max(left, 0.001))
        request.timeout_ms = max(1, int(timeout_s * 1000))
        self.broker.counters.requests += 1
        response, sent = await self.broker.service.call(
            request, frames, self._room, self._caller or current_caller()
        )
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)
        return response, sent

    async def partitions_of(self, topic: str, *, create: bool = False) -> int:
        """How many partitions a topic has; raises `TopicNotFound` if there is none."""
        partitions = self.broker.partitions
        try:
            return partitions.partition_count(topic)
        except TopicNotFound:
            query = proto.MapQuery(topics=[topic], auto_create=create)
        # This broker may be behind, or may be allowed to create it.
        answer, _ = await self.ask(proto.Request(map=query))
        for found in answer.map.topics:
            return len(found.partitions)
        return partitions.partition_count(topic)

    async def consumed_partitions_of(self, topic: str) -> int:
        """The same of a topic that is consumed: it is created where that is done and allowed."""
        try:
            return await self.partitions_of(topic)
        except TopicNotFound:
            with suppress(Forbidden):
                return await self.partitions_of(topic, create=True)
            raise

    def leader_of(self, topic: str, partition: int) -> int:
        """The node that leads a partition; 0 if that is not known."""
        return self.broker.partitions.leader_in(topic, partition)


def own_call(broker: Host) -> Call:
    """A call of the broker itself: it gives back what a client held, whose user may be gone."""
    return Call(broker, _any_room, caller=BROKER)


async def _any_room(_: int) -> None:
    """The answers of such calls are small."""
