"""The first and end offsets of partitions, and waiting for more messages."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from random import SystemRandom
from typing import Final, NamedTuple

from quivermq.client.ask_leaders import ask_leaders
from quivermq.client.producer.partition_stream import LeaderConnections
from quivermq.client.router import LeaderPartitions, Router
from quivermq.client.transport import Connection
from quivermq.errors import ConnectionFailed, QuiverError, Timeout, TopicNotFound
from quivermq.wire import error_from_proto, proto

# A broker that waits for messages answers when its time is over; the answer takes a moment too.
_ANSWER_SECONDS: Final = 2.0
# Brokers that all have more answer almost together: the slower ones must not always lose.
_GRACE_SECONDS: Final = 0.02
# After a broker's failure: a moment until all are asked again.
_AGAIN_SECONDS: Final = 0.05
# To one broker at a time, if it does not say how many it takes.
_REQUESTS_MAX: Final = 100

Positions = Mapping[str, Mapping[int, int]]
"""Offsets by topic and partition."""


class Held(NamedTuple):
    """The messages that a partition holds: from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The offsets of a topic's partitions, from their leaders, confirmed by a majority."""

    topic: str
    id: str
    """Another one after the topic was deleted and created again."""
    partitions: dict[int, Held] = field(default_factory=dict)
    """Those that were asked for."""
    count: int = field(default=0, kw_only=True)
    """How many there are; 0: that was not asked."""


class Asked(NamedTuple):
    """A request that waits at a broker."""

    topic: str
    led: LeaderPartitions
    connection: Connection
    request_id: int


class _Waiting(LeaderConnections):
    """Connections on which requests wait."""

    __slots__ = ("asked",)

    def __init__(self, router: Router) -> None:
        super().__init__(router)
        self.asked: Counter[str] = Counter()
        """Requests by address."""


class Offsets:
    """Asks the leaders for offsets."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def names(self) -> list[str]:
        """The names of all topics."""
        request = proto.Request()
        request.map.SetInParent()
        answer = await self._router.ask_any(request, self._router.attempts("asking for topics"))
        return sorted(topic.name for topic in answer.map.topics)

    async def held(self, topic: str, partitions: Iterable[int] | None = None) -> TopicOffsets:
        """The offsets of these partitions, or of all, also of those added a moment ago."""
        attempts = self._router.attempts(f"asking what {topic!r} holds")
        wanted = None if partitions is None else sorted(set(partitions))
        while True:
            route = await self._router.refresh(topic, attempts)
            topic_id = route.id
            try:
                answers = await ask_leaders(
                    self._router, topic, wanted, lambda led: _request(topic, led), attempts,
                    topic_id,
                )  # fmt: skip
            except TopicNotFound as error:
                # It may have been created again since; then that one is asked.
                if (await self._router.refresh(topic, attempts)).id == topic_id:
                    raise
                attempts.record_failure("the cluster", error)
                await attempts.pause()
                continue
            found = TopicOffsets(topic, topic_id.hex())
            for _, reply in answers:
                _add(found, reply.response.offsets_listed)
            return replace(
                found,
                partitions=dict(sorted(found.partitions.items())),
                count=len(route.leaders),
            )

    async def at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """The first message that was stored at or after a time; the end if there is none."""
        request = proto.Request()
        find = request.find_offset
        find.topic, find.partition, find.timestamp_ms = topic, partition, timestamp_ms
        attempts = self._router.attempts(f"asking for a time in {topic}/{partition}")
        reply = await self._router.ask_leader(topic, partition, request, attempts)
        return reply.response.offset_found.offset

    async def beyond(self, positions: Positions, wait: float) -> dict[str, TopicOffsets]:
        """Wait until there is more than these positions, at most so long; what holds more.

        As soon as one broker answers, the others have a moment to do so.
        """
        now = self._router.transport.now
        until = now() + wait
        while True:
            ids: dict[str, str] = {}
            found, troubled = await self._ask_waiting(positions, max(0.001, until - now()), ids)
            for topic in sorted(troubled):
                # A broker no longer leads, or cannot be reached: `held` finds out who does.
                self._router.map.doubt(topic)
                held = await self.held(topic)
                is_same = held.id == ids.get(topic, held.id)
                found[topic] = _more(held, positions[topic]) if is_same else held
            more = {topic: held for topic, held in found.items() if held.partitions}
            if more or not troubled or now() >= until:
                return more
            await self._router.transport.sleep(min(_AGAIN_SECONDS, max(0.0, until - now())))

    async def _ask_waiting(
        self, positions: Positions, wait: float, ids: dict[str, str]
    ) -> tuple[dict[str, TopicOffsets], set[str]]:
        """The answers of brokers within this time, and the topics for which one failed; `ids` are
        filled in."""
        connections = _Waiting(self._router)
        attempts = self._router.attempts("waiting for messages")
        deadline = self._router.transport.now() + wait + _ANSWER_SECONDS
        asked: list[Asked] = []
        found: dict[str, TopicOffsets] = {}
        troubled: set[str] = set()
        try:
            # In any order: if there are more than a broker hears at a time, each has its turn.
            for topic in SystemRandom().sample(list(positions), len(positions)):
                partitions = positions[topic]
                for led in await self._router.by_leader(topic, attempts, sorted(partitions)):
                    ids[topic] = led.target.topic_id.hex()
                    request = _request(topic, led, partitions, wait)
                    try:
                        await self._post(connections, asked, topic, led, request, deadline)
                    except QuiverError:
                        troubled.add(topic)
            if not troubled:
                await self._await_answers(asked, deadline)
            for each in asked:
                try:
                    await self._take(each, found, deadline)
                except QuiverError:
                    troubled.add(each.topic)
        finally:
            for each in asked:
                # What was not taken, because this was cancelled or a topic is gone.
                each.connection.cancel(each.request_id)
            connections.release()
        return found, troubled

    async def _post(
        self,
        connections: _Waiting,
        asked: list[Asked],
        topic: str,
        led: LeaderPartitions,
        request: proto.Request,
        deadline: float,
    ) -> None:
        """Ask, unless the broker has as many questions as it should have."""
        router, address = self._router, led.target.address
        try:
            connection = await connections.get(address, deadline)
            # Past this a broker refuses; others may need the connection too.
            most = connection.welcome.requests_max // 2 or _REQUESTS_MAX
            if connections.asked[address] >= most:
                return
            request.timeout_ms = max(1, int((deadline - router.transport.now()) * 1000))
            number = await connection.post(request, (), deadline)
        except (ConnectionFailed, Timeout):
            router.map.avoid(address, router.transport.now())
            raise
        connections.asked[address] += 1
        asked.append(Asked(topic, led, connection, number))

    async def _await_answers(self, asked: list[Asked], deadline: float) -> None:
        transport = self._router.transport
        left = [(each.connection, each.request_id) for each in asked]
        until = deadline
        while left and transport.now() < until:
            await transport.first_answered(left, until)
            left = [each for each in left if not each[0].is_answered(each[1])]
            until = min(until, transport.now() + _GRACE_SECONDS)

    async def _take(self, asked: Asked, found: dict[str, TopicOffsets], deadline: float) -> None:
        """Add what a broker answered; who has not answered by the deadline is in trouble."""
        router, address = self._router, asked.led.target.address
        if not asked.connection.is_answered(asked.request_id):
            asked.connection.cancel(asked.request_id)
            if router.transport.now() < deadline:
                return
            router.map.avoid(address, router.transport.now())
            raise Timeout(f"{address} did not answer in time")
        try:
            reply = await asked.connection.take(asked.request_id, deadline)
        except ConnectionFailed:
            router.map.avoid(address, router.transport.now())
            raise
        if reply.response.WhichOneof("body") == "error":
            raise error_from_proto(reply.response.error)
        topic_id = asked.led.target.topic_id.hex()
        held = found.setdefault(asked.topic, TopicOffsets(asked.topic, topic_id))
        if held.id != topic_id:
            raise TopicNotFound(f"topic {asked.topic!r} was deleted and created again")
        _add(held, reply.response.offsets_listed)


def _request(
    topic: str,
    led: LeaderPartitions,
    positions: Mapping[int, int] | None = None,
    wait: float = 0.0,
) -> proto.Request:
    request = proto.Request(direct=led.target.direct)
    listed = request.list_offsets
    listed.topic, listed.topic_id = topic, led.target.topic_id
    listed.wait_ms = ceil(wait * 1000)
    for partition in led.partitions:
        listed.positions.add(partition=partition, offset=(positions or {}).get(partition, 0))
    return request


def _more(held: TopicOffsets, positions: Mapping[int, int]) -> TopicOffsets:
    """Of the partitions that have a position, those that hold more."""
    partitions = {
        number: place
        for number, place in held.partitions.items()
        if place.end > positions.get(number, place.end)
    }
    return replace(held, partitions=partitions)


def _add(found: TopicOffsets, listed: proto.OffsetsListed) -> None:
    for held in listed.partitions:
        found.partitions[held.partition] = Held(held.start, held.end)
