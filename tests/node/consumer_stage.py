"""A consumer that speaks the protocol itself, to brokers of the test's own process."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from quivermq.batches import Frame, Message, Origin, decode_messages, encode_batch
from quivermq.client.asyncio_transport import AsyncioConnection
from quivermq.cluster import node_of
from quivermq.errors import NotEnoughReplicas, QuiverError
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.testing.memory_transport import MemoryTransport
from quivermq.transports import Server
from quivermq.wire import error_from_proto, frames_of, proto
from tests.node.cluster_stage import Brokers
from tests.transports.stage import PATIENCE_S

TOPIC, GROUP = "orders", "workers"


class Delivery(NamedTuple):
    """A message, and the lease that it came with."""

    partition: int
    lease: int
    delivery: int
    message: Message

    @property
    def value(self) -> bytes:
        return self.message.value


class Consumer:
    """Requests to one broker, one after another; several consumers for several at once."""

    follows_leaders: ClassVar[bool] = False
    """Whether its requests are answered here in any case: what needs no task then has none."""

    def __init__(self, server: Server, number: int = 1, topic: str = TOPIC) -> None:
        self.server = server
        self.number = number
        self.topic = topic
        self._door = MemoryTransport([server])
        self.connection: AsyncioConnection | None = None
        self.throttled_ms = 0

    async def ask(self, *frames: Frame, **body: Any) -> proto.Response:
        """The answer; raises a refusal."""
        response, _ = await self._ask(proto.Request(**body), frames)
        return response

    async def _ask(
        self, request: proto.Request, frames: Sequence[Frame]
    ) -> tuple[proto.Response, list[Frame]]:
        request.direct = self.follows_leaders
        deadline = self._door.now() + PATIENCE_S
        self.connection = await self._door.connection(self.server.listen, deadline)
        number = await self.connection.post(request, frames, deadline)
        reply = await self.connection.take(number, deadline)
        if reply.response.WhichOneof("body") == "error":
            raise error_from_proto(reply.response.error)
        return reply.response, frames_of(reply.packet) if reply.packet.batches else []

    async def close(self) -> None:
        await self._door.close()

    async def make_topic(self, partitions: int = 1, **settings: Any) -> None:
        await self.ask(
            create_topic=proto.CreateTopic(
                name=self.topic, partitions=partitions, settings=proto.TopicSettings(**settings)
            )
        )

    async def store(
        self,
        *values: bytes,
        partition: int = 0,
        priority: int = 0,
        not_before_ms: int = 0,
        **columns: Any,
    ) -> int:
        """Store a batch; its first offset."""
        origin = Origin(priority=priority, not_before_ms=not_before_ms)
        produce = proto.Produce(topic=self.topic, partition=partition)
        frame = encode_batch(list(values), origin=origin, **columns)
        answer = await self._ask_leader(frame, produce=produce)
        return answer.produced.batches[0].first_offset

    async def _ask_leader(self, *frames: Frame, **body: Any) -> proto.Response:
        """The answer as soon as there is a leader: a busy machine may have to elect another."""
        deadline = self._door.now() + PATIENCE_S
        while True:
            try:
                return await self.ask(*frames, **body)
            except NotEnoughReplicas:
                if self._door.now() > deadline:
                    raise
                await asyncio.sleep(0.05)

    def poll_request(self, messages_max: int = 100, **changes: Any) -> proto.Poll:
        usual = {
            "topic": self.topic,
            "partitions": [0],
            "group": GROUP,
            "consumer": self.number,
            "consumer_name": f"consumer {self.number}",
            "messages_max": messages_max,
            "visibility_ms": 30_000,
        }
        return proto.Poll(**{**usual, **changes})  # type: ignore[arg-type]

    async def poll(self, messages_max: int = 100, **changes: Any) -> list[Delivery]:
        request = proto.Request(poll=self.poll_request(messages_max, **changes))
        request.timeout_ms = request.poll.wait_ms + 5_000
        response, frames = await self._ask(request, [])
        self.throttled_ms = response.polled.throttled_ms
        return deliveries(response.polled, frames)

    async def settle(self, outcome: int, got: Iterable[Delivery], **changes: Any) -> list[Delivery]:
        """Returns what was lost."""
        settled = list(got)
        settlements = [settlement(outcome, one, **changes) for one in settled]
        body = proto.Settle(
            topic=self.topic,
            group=changes.pop("group", GROUP),
            settlements=settlements,
            consumer=self.number,
        )
        answer = await self.ask(settle=body)
        return [settled[lost.settlement] for lost in answer.settled.lost]

    async def ack(self, got: Iterable[Delivery], **changes: Any) -> list[Delivery]:
        return await self.settle(proto.ACK, got, **changes)

    async def nack(self, got: Iterable[Delivery], **changes: Any) -> list[Delivery]:
        return await self.settle(proto.NACK, got, **changes)

    async def reject(self, got: Iterable[Delivery], reason: str) -> list[Delivery]:
        return await self.settle(proto.REJECT, got, reason=reason)

    async def describe(self, group: str = GROUP, partition: int = 0) -> proto.GroupDescription:
        body = proto.DescribeGroups(topic=self.topic, partitions=[partition], group=group)
        (found,) = (await self.ask(describe_groups=body)).groups_described.groups
        return found

    async def until(self, condition: Callable[[proto.GroupDescription], bool]) -> None:
        """Wait until the group's figures are so."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(await self.describe()):  # noqa: ASYNC110  (there is no event)
                await asyncio.sleep(0.01)

    async def fetch(self, topic: str, partition: int = 0) -> list[Message]:
        """All messages of a partition, as a reader sees them."""
        body = proto.Fetch(topic=topic, partition=partition, bytes_max=32 << 20)
        _, frames = await self._ask(proto.Request(fetch=body), [])
        return [message for frame in frames for message in decode_messages(frame)]


def deliveries(polled: proto.Polled, frames: Sequence[Frame]) -> list[Delivery]:
    """What a poll gave; checks that the batches hold what is leased, and in order."""
    found = []
    rest = iter(frames)
    for leased in polled.leased:
        messages = {
            message.offset: message
            for frame in islice(rest, leased.frames)
            for message in decode_messages(frame)
        }
        starts = [piece.start for piece in leased.pieces]
        assert starts == sorted(starts)
        for piece in leased.pieces:
            for offset in range(piece.start, piece.start + piece.count):
                found.append(  # noqa: PERF401  (three loops in one would hide them)
                    Delivery(leased.partition, leased.lease, piece.delivery, messages[offset])
                )
    assert next(rest, None) is None
    return found


def settlement(outcome: int, one: Delivery, **changes: Any) -> proto.Settlement:
    offset = one.message.offset
    changes.pop("group", None)
    return proto.Settlement(
        partition=one.partition,
        lease=one.lease,
        outcome=outcome,  # type: ignore[arg-type]
        intervals=[] if outcome == proto.EXTEND else [proto.Interval(start=offset, end=offset + 1)],
        **changes,
    )


def values(got: Iterable[Delivery]) -> list[bytes]:
    return [one.value for one in got]


async def refusal(asking: Any) -> str:
    """The code of the error that something ends in; "" if in none."""
    try:
        await asking
    except QuiverError as error:
        return error.code
    return ""


def led(brokers: Brokers) -> dict[int, int]:
    """Who leads which partition."""
    found = {}
    for node, server in brokers.running.items():
        for dispatcher in server.broker.consumers.dispatchers:
            if dispatcher.hosted.name.topic == "orders":
                found[dispatcher.hosted.name.partition] = node
    return found


async def move_leader(brokers: Brokers, to: int, partition: int = 0) -> None:
    """Have a broker lead a partition."""
    async with asyncio.timeout(PATIENCE_S):
        while (old := led(brokers).get(partition)) != to:
            dispatcher = dispatcher_of(brokers, old, partition) if old else None
            if dispatcher is not None:
                voters = dispatcher.hosted.replica.configuration.voters
                (member,) = [member for member in voters if node_of(member) == to]
                # One that is not quite up to date declines; it may be asked again.
                dispatcher.hosted.transfer_leader(member)
            await asyncio.sleep(0.05)


def dispatcher_of(brokers: Brokers, node: int, partition: int = 0) -> DeliveryDispatcher:
    return brokers.running[node].broker.consumers.dispatchers.leading("orders", b"", partition)
