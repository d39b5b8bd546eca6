"""The users of a simulated cluster: they use the public client, and record what it tells them.

Each runs on a machine of its own. What one does is drawn from its dice; when a call began and ended
is noted by the time of the simulation, which no clock of a machine shows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import quivermq.aio
from quivermq.client import AsyncClient
from quivermq.errors import LeaseLost, OffsetOutOfRange, QuiverError
from quivermq.testing import Violation
from quivermq.testing.trials.group_history import (
    Delivered,
    Fate,
    GroupHistory,
    SettleAction,
    SettleCall,
)
from quivermq.testing.trials.history import History, TopicPartition
from quivermq.testing.virtual import World
from quivermq.testing.whole.log_history import LogHistory

VISIBILITY_S: Final = 3.0
TIMEOUT_S: Final = 15.0
_HABITS: Final = {
    "ack": 60,
    "ack_each": 12,
    "ack_some": 8,
    "nack": 8,
    "release": 4,
    "extend": 4,
    "forget": 2,
    "reject": 2,
}


@dataclass
class Records:
    """What all users were told."""

    messages: History = field(default_factory=History)
    log: LogHistory = field(default_factory=LogHistory)
    groups: dict[tuple[str, str], GroupHistory] = field(default_factory=dict)
    """By topic and group."""

    def group(self, topic: str, group: str) -> GroupHistory:
        return self.groups.setdefault((topic, group), GroupHistory(group))


@dataclass
class Stage:
    """What a user works with."""

    world: World
    servers: Sequence[str]
    records: Records
    topics: dict[str, int]
    """Names, and how many partitions they have."""
    is_over: bool = False
    """Users finish what they have begun, and end."""
    pace_s: float = 0.1
    failures: list[QuiverError] = field(default_factory=list)
    """Errors that users got after all retries of their clients."""

    def now_ns(self) -> int:
        return self.world.time.now_us * 1000


class User:
    """A program that uses the client until it is told to end."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        self.stage = stage
        self.name = name
        self.dice = dice
        self.is_done = False

    async def run(self) -> None:
        async with quivermq.aio.connect(self.stage.servers, timeout=TIMEOUT_S) as client:
            await self.work(client)
        self.is_done = True

    async def work(self, client: AsyncClient) -> None:
        """Work in steps."""
        while not self.stage.is_over:
            try:
                await self.step(client)
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(self.dice.uniform(0, 2) * self.stage.pace_s)

    async def step(self, client: AsyncClient) -> None:
        raise NotImplementedError

    def killed(self) -> None:
        """What it had begun may have had its effect, or not."""

    def fail(self, error: QuiverError) -> None:
        self.stage.failures.append(error)
        self.stage.world.story.counts[f"error {type(error).__name__}"] += 1

    def place(self) -> TopicPartition:
        topic = self.dice.choice(list(self.stage.topics))
        return TopicPartition(topic, self.dice.randrange(self.stage.topics[topic]))


class ProducingUser(User):
    """Produces one by one, many at once, or through a producer."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self._count = 0
        self._act = dice.choice((self._one, self._many, self._stream))

    async def step(self, client: AsyncClient) -> None:
        await self._act(client)

    def _values(self, place: TopicPartition, many: int) -> list[bytes]:
        values = [
            f"{self.name} {self._count + number} to {place} ".encode()
            + b"." * self.dice.randrange(self.dice.choice((10, 100, 2_000)))
            for number in range(many)
        ]
        self._count += many
        self.stage.records.messages.attempt(self.name, place, values)
        return values

    def _acked(
        self, place: TopicPartition, first: int, values: list[bytes], began_us: int
    ) -> None:
        self.stage.records.messages.ack(place, first, values)
        now_us = self.stage.world.time.now_us
        self.stage.records.log.append(place, began_us, now_us, first, len(values))
        self.stage.world.story.counts["messages acknowledged"] += len(values)

    async def _one(self, client: AsyncClient) -> None:
        place = self.place()
        (value,) = self._values(place, 1)
        began_us = self.stage.world.time.now_us
        receipt = await client.produce(place.topic, value, partition=place.partition)
        self._acked(place, receipt.offset, [value], began_us)
        if self.dice.random() < 0.2:
            await self._read_own(client, place, receipt.offset, value)

    async def _read_own(
        self, client: AsyncClient, place: TopicPartition, offset: int, value: bytes
    ) -> None:
        try:
            found = [
                message.value
                async for message in client.read(*place, start=offset, stop=offset + 1)
            ]
        except OffsetOutOfRange as error:
            raise Violation(f"I6: offset {offset} of {place} is acked, not seen: {error}") from error
        if found != [value]:
            raise Violation(f"I6: offset {offset} of {place} is acked as {value!r}, read {found}")

    async def _many(self, client: AsyncClient) -> None:
        place = self.place()
        values = self._values(place, self.dice.randint(2, 30))
        began_us = self.stage.world.time.now_us
        receipts = await client.produce_many(place.topic, values, partition=place.partition)
        for receipt in receipts:
            head, values = values[: receipt.count], values[receipt.count :]
            self._acked(place, receipt.first_offset, head, began_us)

    async def _stream(self, client: AsyncClient) -> None:
        async with client.producer(linger=0.01, timeout=TIMEOUT_S) as producer:
            for _ in range(self.dice.randint(1, 5)):
                place = self.place()
                values = self._values(place, self.dice.randint(1, 20))
                began_us = self.stage.world.time.now_us
                sent = [
                    await producer.send(place.topic, value, partition=place.partition)
                    for value in values
                ]
                for delivery, value in zip(sent, values, strict=True):
                    try:
                        receipt = await delivery
                    except QuiverError as error:
                        self.fail(error)
                    else:
                        self._acked(place, receipt.offset, [value], began_us)


class ReadingUser(User):
    """Reads partitions from their beginning, from leaders or any replica."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self._positions: dict[TopicPartition, int] = {}
        self._follower_ok = dice.random() < 0.5

    async def step(self, client: AsyncClient) -> None:
        place = self.place()
        offset = self._positions.get(place, 0)
        began_us = self.stage.world.time.now_us
        try:
            async for message in client.read(*place, start=offset, follower_ok=self._follower_ok):
                if message.offset != offset:
                    raise Violation(f"I6: {place} goes on at {message.offset}, not at {offset}")
                self.stage.records.messages.see(place, offset, [message.value])
                self.stage.world.story.counts["messages read"] += 1
                offset += 1
            if not self._follower_ok:
                now_us = self.stage.world.time.now_us
                self.stage.records.log.read_end(place, began_us, now_us, offset)
        except OffsetOutOfRange as error:
            offset = max(offset, error.earliest)
        self._positions[place] = offset


class ConsumingUser(User):
    """A consumer of a shared group, which settles messages in every way there is."""

    def __init__(self, stage: Stage, name: str, dice: Random, topic: str, group: str) -> None:
        super().__init__(stage, name, dice)
        self._topic = topic
        self._group = group
        self.habits = dict(_HABITS)
        self._history = stage.records.group(topic, group)
        self._under_way: list[SettleCall] = []

    async def step(self, client: AsyncClient) -> None:
        messages = await self.poll(client)
        if messages:
            await self.settle(client, messages)

    async def poll(self, client: AsyncClient) -> list[Any]:
        began_ns = self.stage.now_ns()
        found = await client.poll(
            self._topic,
            group=self._group,
            max_messages=self.dice.choice((1, 5, 50)),
            wait=0.5,
            visibility=VISIBILITY_S,
        )
        at_ns = self.stage.now_ns()
        self._history.record_deliveries(
            Delivered(
                TopicPartition(message.topic, message.partition),
                message.offset,
                message.value,
                message.lease.token,
                message.delivery_count,
                self.name,
                began_ns,
                at_ns,
                at_ns / 1e6,
            )
            for message in found
        )
        self.stage.world.story.counts["messages delivered"] += len(found)
        return found

    async def settle(self, client: AsyncClient, messages: list[Any]) -> None:
        (habit,) = self.dice.choices(list(self.habits), list(self.habits.values()))
        if self.dice.random() < 0.1:
            await asyncio.sleep(self.dice.uniform(0, 1.5 * VISIBILITY_S))
        if habit == "ack":
            await self._say(SettleAction.ACK, messages, client.ack)
        elif habit == "ack_each":
            self.dice.shuffle(messages)
            for message in messages:
                await self._say(SettleAction.ACK, [message], client.ack)
        elif habit == "ack_some":
            some = self.dice.sample(messages, self.dice.randint(1, len(messages)))
            await self._say(SettleAction.ACK, some, client.ack)
            rest = [message for message in messages if message not in some]
            if rest:
                await self._say(SettleAction.RELEASE, rest, client.release)
        elif habit == "nack":
            await self._say(SettleAction.NACK, messages, lambda m: client.nack(m, delay=0.05))
        elif habit == "release":
            await self._say(SettleAction.RELEASE, messages, client.release)
        elif habit == "extend":
            await self._say(
                SettleAction.EXTEND, messages, lambda m: client.extend(m, VISIBILITY_S)
            )
            await self._say(SettleAction.ACK, messages, client.ack)
        elif habit == "reject":
            head, *rest = messages
            await self._say(SettleAction.REJECT, [head], lambda m: client.reject(m, "by chance"))
            if rest:
                await self._say(SettleAction.ACK, rest, client.ack)

    async def _say(
        self,
        act: SettleAction,
        messages: Sequence[Any],
        call: Callable[[Sequence[Any]], Awaitable[None]],
    ) -> None:
        began_ns = self.stage.now_ns()
        self._under_way = [
            SettleCall(
                act,
                TopicPartition(message.topic, message.partition),
                message.offset,
                message.lease.token,
                self.name,
                began_ns,
                began_ns / 1e6,
                0,
                Fate.UNKNOWN,
            )
            for message in messages
        ]
        fate, ended_ns = Fate.UNKNOWN, 0
        try:
            await call(messages)
            fate, ended_ns = Fate.DONE, self.stage.now_ns()
        except LeaseLost:
            # Of several messages, the error does not say which.
            fate = Fate.LOST if len(messages) == 1 else Fate.UNKNOWN
        except QuiverError as error:
            self.fail(error)
        said, self._under_way = self._under_way, []
        self._history.record_calls(one._replace(fate=fate, ended_ns=ended_ns) for one in said)
        if fate is Fate.DONE:
            self.stage.world.story.counts[f"messages settled by {act}"] += len(messages)

    def killed(self) -> None:
        self._history.record_calls(self._under_way)


class DrainingUser(ConsumingUser):
    """Acknowledges everything that is left of a group."""

    async def work(self, client: AsyncClient) -> None:
        self.habits = {"ack": 1}
        while True:
            try:
                messages = await self.poll(client)
                if messages:
                    await self.settle(client, messages)
                    continue
                found = await client.group(self._topic, self._group)
                if all(p.lag + p.in_flight + p.delayed == 0 for p in found.partitions):
                    return
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(0.2)
