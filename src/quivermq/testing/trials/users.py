"""The users of a cluster, simulated or real: they record what the public client tells them.

In the simulation each runs on a machine of its own. What one does is drawn from its dice; when a
call began and ended is noted by a time that no clock of a simulated machine shows.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from crc32c import crc32c

import quivermq.aio
from quivermq.client import AsyncClient
from quivermq.errors import LeaseLost, OffsetOutOfRange, QuiverError
from quivermq.testing import Violation
from quivermq.testing.trials.consumer import ALL_HABITS, make_delivery
from quivermq.testing.trials.group_history import (
    Fate,
    GroupHistory,
    Original,
    SettleAction,
    SettleCall,
)
from quivermq.testing.trials.history import History, TopicPartition
from quivermq.testing.trials.log_history import LogHistory
from quivermq.testing.trials.priority_history import PriorityHistory
from quivermq.testing.trials.rate_history import RateHistory
from quivermq.testing.trials.sticky_history import StickyHistory

VISIBILITY_S: Final = 3.0
TIMEOUT_S: Final = 15.0
NACK_DELAY_S: Final = 0.05
_MS_S: Final = 0.001


class OnceHistory:
    """The messages that a group was given which are done with when they are given out."""

    def __init__(self) -> None:
        self._given: set[tuple[TopicPartition, int]] = set()

    def give(self, place: TopicPartition, offset: int) -> None:
        if (place, offset) in self._given:
            raise Violation(f"I4: {place}@{offset} was delivered twice, at most once")
        self._given.add((place, offset))


@dataclass
class Records:
    """The answers that users got."""

    messages: History = field(default_factory=History)
    log: LogHistory = field(default_factory=LogHistory)
    groups: dict[tuple[str, str], GroupHistory] = field(default_factory=dict)
    """By topic and group."""
    sticky: dict[str, StickyHistory] = field(default_factory=dict)
    """By topic: of the one sticky group that it has."""
    once: OnceHistory = field(default_factory=OnceHistory)
    rates: dict[str, RateHistory] = field(default_factory=dict)
    """Of topics with a rate limit."""
    priorities: dict[str, PriorityHistory] = field(default_factory=dict)
    """By topic: of the one consumer whose priorities are judged."""
    sent: "SentValues | None" = None
    """If priorities are judged."""

    def group(self, topic: str, group: str) -> GroupHistory:
        return self.groups.setdefault((topic, group), GroupHistory(group))

    def deliver(self, topic: str, began_us: int, ended_us: int, messages: int) -> None:
        """A poll brought messages, of whichever group."""
        if topic in self.rates:
            self.rates[topic].record_poll(began_us, ended_us, messages)


@dataclass
class SentValues:
    """Values that were sent in another way than most."""

    levels: dict[bytes, int] = field(default_factory=dict)
    """Those with a priority above 0."""
    delays: dict[bytes, float] = field(default_factory=dict)
    """Those that are delayed, and the time in ms before which no group may get them."""

    def levels_in(self, messages: Mapping[int, Original]) -> dict[int, int]:
        """The priority of each message, by its offset."""
        return {offset: self.levels.get(one.value, 0) for offset, one in messages.items()}

    def delayed_in(self, messages: Mapping[int, Original]) -> set[int]:
        """The offsets of those that are delayed."""
        return {offset for offset, one in messages.items() if one.value in self.delays}


class Time(Protocol):
    """By which users note when their calls began and ended."""

    @property
    def now_us(self) -> int: ...


class Notes(Protocol):
    """Of what happened."""

    @property
    def counts(self) -> Counter[str]: ...
    def trace(self, text: str, /) -> None: ...


class Surroundings(Protocol):
    """The simulated world, or the real one."""

    @property
    def time(self) -> Time: ...
    @property
    def story(self) -> Notes: ...


@dataclass
class Stage:
    """The cluster, the topics and the records with which users work."""

    world: Surroundings
    servers: Sequence[str]
    records: Records
    topics: dict[str, int]
    """Names, and how many partitions they have."""
    is_over: bool = False
    """Users finish what they have begun, and end."""
    pace_s: float = 0.1
    may_be_dropped: bool = False
    """Whether retention drops messages of these topics."""
    has_right_clocks: bool = True
    """Whether what is delayed can be judged by the time of the simulation."""
    busy_poll: bool = False
    """Whether clients look for answers before they sleep, which virtual time does not allow."""
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
        self.servers = stage.servers
        """The addresses that it knows."""
        self.token: str | None = None
        self.zone = ""

    async def run(self) -> None:
        while not self.is_done:
            try:
                client = await quivermq.aio.connect(
                    self.servers,
                    timeout=TIMEOUT_S,
                    token=self.token,
                    zone=self.zone,
                    busy_poll=self.stage.busy_poll,
                )
            except QuiverError as error:
                self.fail(error)
                continue
            async with client:
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

    def fail(self, error: QuiverError) -> None:
        self.stage.failures.append(error)
        self.stage.world.story.counts[f"error {type(error).__name__}"] += 1
        self.stage.world.story.trace(f"{self.name}: {error}")

    def place(self) -> TopicPartition:
        topic = self.dice.choice(list(self.stage.topics))
        return TopicPartition(topic, self.dice.randrange(self.stage.topics[topic]))


class ProducingUser(User):
    """Produces one by one, many at once, or through a producer."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self._count = 0
        self.acts: tuple[Callable[[AsyncClient], Awaitable[None]], ...]
        self.acts = (self._one, self._keyed, self._many, self._stream)

    @property
    def producer(self) -> str:
        """Whose messages are stored in the order in which they were sent."""
        return self.name

    async def step(self, client: AsyncClient) -> None:
        await self.dice.choice(self.acts)(client)

    def _values(self, place: TopicPartition, many: int) -> list[bytes]:
        values = [
            f"{self.name} {self._count + number} to {place} ".encode()
            + b"." * self.dice.randrange(self.dice.choice((10, 100, 2_000)))
            for number in range(many)
        ]
        self._count += many
        self.stage.records.messages.attempt(self.producer, place, values)
        return values

    def _acked(self, place: TopicPartition, first: int, values: list[bytes], began_us: int) -> None:
        self.stage.records.messages.ack(place, first, values)
        now_us = self.stage.world.time.now_us
        self.stage.records.log.append(place, began_us, now_us, first, len(values))
        self.stage.world.story.counts["messages acknowledged"] += len(values)

    def _priority(self, values: list[bytes]) -> int:
        """The priority that these are sent with."""
        level = self.dice.choice((0, self.dice.randrange(8)))
        if level and (sent := self.stage.records.sent) is not None:
            sent.levels.update(dict.fromkeys(values, level))
        return level

    async def _one(self, client: AsyncClient) -> None:
        await self._send(client, self.place(), self.dice.choice((None, b"a", b"b")))

    async def _keyed(self, client: AsyncClient) -> None:
        """One message to the partition of its key, which users know how to compute."""
        topic = self.dice.choice(list(self.stage.topics))
        key = self.dice.choice((b"a", b"b", b"customer 7"))
        place = TopicPartition(topic, crc32c(key) % self.stage.topics[topic])
        await self._send(client, place, key, is_named=False)

    async def _send(
        self,
        client: AsyncClient,
        place: TopicPartition,
        key: bytes | None,
        *,
        is_named: bool = True,
    ) -> None:
        (value,) = self._values(place, 1)
        began_us = self.stage.world.time.now_us
        delay = self.dice.choice((0.0, 0.0, 0.0, 0.5, 3.0))
        if delay:
            self._delayed(place, value, began_us / 1000 + delay * 1000)
        receipt = await client.produce(
            place.topic,
            value,
            partition=place.partition if is_named else None,
            key=key,
            priority=self._priority([value]),
            delay=delay,
        )
        if receipt.partition != place.partition:
            raise Violation(f"I3: key {key!r} of {place} went to partition {receipt.partition}")
        self._acked(place, receipt.offset, [value], began_us)
        if self.dice.random() < 0.2:
            await self._read_own(client, place, receipt.offset, value)

    def _delayed(self, place: TopicPartition, value: bytes, not_before_ms: float) -> None:
        records = self.stage.records
        if records.sent is not None:
            records.sent.delays[value] = not_before_ms
        if self.stage.has_right_clocks:
            for (topic, _), history in records.groups.items():
                if topic == place.topic:
                    history.record_delay([value], not_before_ms)

    async def _read_own(
        self, client: AsyncClient, place: TopicPartition, offset: int, value: bytes
    ) -> None:
        try:
            found = [
                message.value
                async for message in client.read(*place, start=offset, stop=offset + 1)
            ]
        except OffsetOutOfRange as error:
            if error.earliest > offset and self.stage.may_be_dropped:
                return
            raise Violation(f"I6: {place}@{offset} is acked, and not seen: {error}") from error
        if found != [value]:
            raise Violation(f"I6: offset {offset} of {place} is acked as {value!r}, read {found}")

    async def _many(self, client: AsyncClient) -> None:
        place = self.place()
        values = self._values(place, self.dice.randint(2, 30))
        began_us = self.stage.world.time.now_us
        receipts = await client.produce_many(
            place.topic, values, partition=place.partition, priority=self._priority(values)
        )
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
        self.habits = dict(ALL_HABITS)
        self.polled: tuple[int, ...] = (1, 5, 50)
        """The numbers of messages that it asks for."""
        self._history = stage.records.group(topic, group)

    async def step(self, client: AsyncClient) -> None:
        messages = await self.poll(client)
        if messages:
            await self.settle(client, messages)

    async def poll(self, client: AsyncClient) -> list[Any]:
        began_ns = self.stage.now_ns()
        found = await client.poll(
            self._topic,
            group=self._group,
            max_messages=self.dice.choice(self.polled),
            wait=0.5,
            visibility=VISIBILITY_S,
        )
        self._record_deliveries(found, began_ns)
        return found

    def _record_deliveries(self, found: Sequence[Any], began_ns: int) -> None:
        at_ns = self.stage.now_ns()
        self._history.record_deliveries(
            make_delivery(message, self.name, began_ns, at_ns, at_ns / 1e6) for message in found
        )
        self.stage.records.deliver(self._topic, began_ns // 1000, at_ns // 1000, len(found))
        self.stage.world.story.counts["messages delivered"] += len(found)

    async def settle(self, client: AsyncClient, messages: list[Any]) -> None:
        """Settle messages of one poll; a habit that is not listed here lets the lease expire."""
        (habit,) = self.dice.choices(list(self.habits), list(self.habits.values()))
        if self.dice.random() < 0.1:
            await asyncio.sleep(self.dice.uniform(0, 1.5 * VISIBILITY_S))
        acts = {
            "ack": self._ack,
            "ack_each": self._ack_each,
            "ack_some": self._ack_some,
            "nack": self._nack,
            "release": self._release,
            "extend": self._extend,
            "reject": self._reject,
        }
        if habit in acts:
            await acts[habit](client, messages)

    async def _ack(self, client: AsyncClient, messages: list[Any]) -> None:
        await self._say(SettleAction.ACK, messages, client.ack)

    async def _ack_each(self, client: AsyncClient, messages: list[Any]) -> None:
        self.dice.shuffle(messages)
        for message in messages:
            await self._ack(client, [message])

    async def _ack_some(self, client: AsyncClient, messages: list[Any]) -> None:
        some = self.dice.sample(messages, self.dice.randint(1, len(messages)))
        await self._ack(client, some)
        rest = [message for message in messages if message not in some]
        if rest:
            await self._release(client, rest)

    async def _nack(self, client: AsyncClient, messages: list[Any]) -> None:
        await self._say(
            SettleAction.NACK,
            messages,
            lambda found: client.nack(found, delay=NACK_DELAY_S),
            # Brokers count it in whole milliseconds.
            NACK_DELAY_S - _MS_S if self.stage.has_right_clocks else 0.0,
        )

    async def _release(self, client: AsyncClient, messages: list[Any]) -> None:
        await self._say(SettleAction.RELEASE, messages, client.release)

    async def _extend(self, client: AsyncClient, messages: list[Any]) -> None:
        await self._say(
            SettleAction.EXTEND, messages, lambda found: client.extend(found, VISIBILITY_S)
        )
        await self._ack(client, messages)

    async def _reject(self, client: AsyncClient, messages: list[Any]) -> None:
        head, *rest = messages
        await self._say(
            SettleAction.REJECT, [head], lambda found: client.reject(found, "by chance")
        )
        if rest:
            await self._ack(client, rest)

    async def _say(
        self,
        act: SettleAction,
        messages: Sequence[Any],
        call: Callable[[Sequence[Any]], Awaitable[None]],
        delay_s: float = 0.0,
    ) -> None:
        began_ns = self.stage.now_ns()
        said = [
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
                delay_s,
            )
            for message in messages
        ]
        self._history.begin_calls(self.name, said)
        fate, ended_ns = Fate.UNKNOWN, 0
        try:
            await call(messages)
            fate, ended_ns = Fate.DONE, self.stage.now_ns()
        except LeaseLost:
            # Of several messages, the error does not say which.
            fate = Fate.LOST if len(messages) == 1 else Fate.UNKNOWN
        except QuiverError as error:
            self.fail(error)
        self._history.end_calls(
            self.name, [one._replace(fate=fate, ended_ns=ended_ns) for one in said]
        )
        if fate is Fate.DONE:
            self.stage.world.story.counts[f"messages settled by {act}"] += len(messages)


class PushedUser(ConsumingUser):
    """A consumer of a shared group that is pushed messages."""

    async def work(self, client: AsyncClient) -> None:
        while not self.stage.is_over:
            try:
                await self._take_pushed(client)
            except QuiverError as error:
                self.fail(error)
                await asyncio.sleep(0.1)

    async def _take_pushed(self, client: AsyncClient) -> None:
        began_ns = self.stage.now_ns()
        async with client.subscribe(
            self._topic, group=self._group, prefetch=10, visibility=VISIBILITY_S
        ) as pushed:
            closer = asyncio.create_task(self._close_when_over(pushed))
            async for message in pushed:
                # The poll that brought it is hidden: it may be as old as the subscription.
                self._record_deliveries([message], began_ns)
                await self._say(SettleAction.ACK, [message], lambda found: found[0].ack())
                await asyncio.sleep(self.dice.uniform(0, self.stage.pace_s))
            await closer

    async def _close_when_over(self, pushed: Any) -> None:
        while not self.stage.is_over:  # noqa: ASYNC110  (it is no event of this loop)
            await asyncio.sleep(0.1)
        await pushed.close()


class AtMostOnceUser(User):
    """A consumer whose messages are done with when they are given out."""

    async def step(self, client: AsyncClient) -> None:
        topic = self.dice.choice(list(self.stage.topics))
        began_us = self.stage.world.time.now_us
        found = await client.poll(
            topic, group="once", max_messages=self.dice.choice((1, 20)), wait=0.3, ack="auto"
        )
        self.stage.records.deliver(topic, began_us, self.stage.world.time.now_us, len(found))
        for message in found:
            place = TopicPartition(message.topic, message.partition)
            self.stage.records.once.give(place, message.offset)
        self.stage.world.story.counts["messages delivered at most once"] += len(found)


class StickyUser(User):
    """A member of a sticky group: handles its partitions in order."""

    def __init__(self, stage: Stage, name: str, dice: Random, topic: str) -> None:
        super().__init__(stage, name, dice)
        self.topic = topic
        self.history = stage.records.sticky.setdefault(topic, StickyHistory())
        self._held: set[int] = set()

    async def work(self, client: AsyncClient) -> None:
        while not self.stage.is_over:
            try:
                await self._hold(client)
            except QuiverError as error:
                self.fail(error)
                await asyncio.sleep(0.1)

    async def _hold(self, client: AsyncClient) -> None:
        async with client.consumer(
            self.topic,
            group="sticky",
            session=4.0,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
        ) as consumer:
            # Leaves now and then, so that partitions move.
            for _ in range(self.dice.choice((10, 100, 1_000))):
                if self.is_finished():
                    return
                for message in await consumer.poll(self.dice.choice((1, 20)), wait=0.3):
                    self._given(message.partition, message.offset)
                await asyncio.sleep(self.dice.uniform(0, self.stage.pace_s))

    def is_finished(self) -> bool:
        return self.stage.is_over

    def _assigned(self, partitions: list[int]) -> None:
        now_us = self.stage.world.time.now_us
        for number in partitions:
            self._held.add(number)
            self.history.assign(self.name, TopicPartition(self.topic, number), now_us)

    def _revoked(self, partitions: list[int]) -> None:
        self._held.difference_update(partitions)

    def _given(self, partition: int, offset: int) -> None:
        if partition not in self._held:
            raise Violation(
                f"I7: {self.name} was given offset {offset} of {self.topic}/{partition}, which "
                "was not assigned to it"
            )
        place = TopicPartition(self.topic, partition)
        self.history.give(self.name, place, self.stage.world.time.now_us, offset)
        self.stage.world.story.counts["messages given in order"] += 1


class StickyDrainingUser(StickyUser):
    """Takes all that is left for the sticky group of a topic."""

    async def work(self, client: AsyncClient) -> None:
        self._is_drained = False
        watcher = asyncio.create_task(self._watch(client))
        while not self._is_drained:
            try:
                await self._hold(client)
            except QuiverError as error:
                self.fail(error)
                await asyncio.sleep(0.1)
        await watcher

    async def _watch(self, client: AsyncClient) -> None:
        while not self._is_drained:
            try:
                found = await client.offsets(self.topic)
                committed = await client.committed(self.topic, "sticky")
                self._is_drained = all(
                    committed.get(number, 0) >= held.end
                    for number, held in found.partitions.items()
                )
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(0.3)

    def is_finished(self) -> bool:
        return self._is_drained


class CommittingUser(User):
    """Commits offsets of a group of its own, and sees that they are what it committed."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self._group = name.replace(" ", "-")
        self._told: dict[TopicPartition, tuple[int, int]] = {}
        """The least and the greatest offset that may be committed."""

    async def step(self, client: AsyncClient) -> None:
        place = self.place()
        low, high = self._told.get(place, (0, 0))
        if self.dice.random() < 0.5:
            held = (await client.offsets(place.topic)).partitions[place.partition]
            offset = min(held.end, high + self.dice.randrange(20))
            self._told[place] = low, max(high, offset)
            if offset >= low:
                await client.commit(place.topic, self._group, place.partition, offset)
                self._told[place] = offset, max(high, offset)
        else:
            found = (await client.committed(place.topic, self._group)).get(place.partition, 0)
            if not low <= found <= high:
                raise Violation(
                    f"I6: {self.name} committed {low} to {high} of {place}, and reads {found}"
                )
            self.stage.world.story.counts["committed offsets read"] += 1


class DrainingUser(ConsumingUser):
    """Acknowledges everything that is left of a group."""

    async def work(self, client: AsyncClient) -> None:
        self.habits, self.polled = {"ack": 1}, (1_000,)
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
