"""Users that work for one judge: they see to it that enough is known to judge by."""

import asyncio
from itertools import count
from random import Random
from typing import Final

from quivermq.client import AsyncClient
from quivermq.errors import QuiverError
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.priority_history import PriorityHistory
from quivermq.testing.trials.users import Stage, User


class WatchingUser(User):
    """Asks again and again for the terms of topics with a rate limit."""

    async def step(self, client: AsyncClient) -> None:
        for topic, history in self.stage.records.rates.items():
            term = (await client.topic(topic)).partitions[0].term
            if term is not None:
                history.record_term(self.stage.world.time.now_us, term)


class RankedUser(User):
    """Polls a topic as the only consumer of a group, so that it knows what waits."""

    polls: Final = {1: 40, 2: 10, 8: 10, 40: 10}
    """How often it asks for how many messages."""

    def __init__(self, stage: Stage, name: str, dice: Random, topic: str) -> None:
        super().__init__(stage, name, dice)
        self._topic = topic

    async def work(self, client: AsyncClient) -> None:
        for number in count(1):
            try:
                # Messages of an answer that was lost are gone, or come later than others.
                if await self._has_got_all(client, f"ranked{number}"):
                    return
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(0.2)

    async def _has_got_all(self, client: AsyncClient, group: str) -> bool:
        """Poll for a while; returns whether every message that the group gave out came here."""
        received = 0
        history = self.stage.records.priorities[self._topic] = PriorityHistory()
        sizes = list(self.polls)
        self.dice.shuffle(sizes)
        for size in sizes:
            for _ in range(self.polls[size]):
                found = await client.poll(
                    self._topic, group=group, max_messages=size, wait=0.0, ack="auto"
                )
                received += len(found)
                offsets: dict[int, list[int]] = {}
                for message in found:
                    offsets.setdefault(message.partition, []).append(message.offset)
                for partition, given in offsets.items():
                    history.record_poll(TopicPartition(self._topic, partition), given)
        found_group = await client.group(self._topic, group)
        return found_group.done == received and not found_group.in_flight


async def lift_limits(stage: Stage, client: AsyncClient) -> None:
    """Note the last terms of topics with a rate limit, and take the limit away."""
    for topic, history in stage.records.rates.items():
        term = None
        while term is None:
            await asyncio.sleep(0.1)
            term = (await client.topic(topic)).partitions[0].term
        history.record_term(stage.world.time.now_us, term)
        await client.alter_topic(topic, rate_limit=None)
