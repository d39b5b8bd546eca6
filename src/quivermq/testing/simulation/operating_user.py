"""Users of a simulated cluster who do what operators do."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random

from quivermq.client import AsyncClient
from quivermq.cluster import CLUSTER_KEY, FEATURE_LEVEL_MAX, BrokerRecord, Edit, Level
from quivermq.errors import QuiverError
from quivermq.node import controller
from quivermq.testing.trials.users import Stage, User


class OperatingUser(User):
    """Does what operators do, at any moment."""

    def __init__(self, stage: Stage, name: str, dice: Random) -> None:
        super().__init__(stage, name, dice)
        self._made: list[str] = []
        self._count = 0

    async def step(self, client: AsyncClient) -> None:
        await asyncio.sleep(self.dice.uniform(0.2, 2.0))
        acts = (
            self._transfer, self._transfer, self._rebalance, self._alter, self._make, self._use,
            self._delete, self._seek, self._look,
        )  # fmt: skip
        act = self.dice.choice(acts)
        await act(client)
        self.stage.world.story.counts[f"operator: {act.__name__.strip('_')}"] += 1

    async def _transfer(self, client: AsyncClient) -> None:
        place = self.place()
        found = await client.topic(place.topic)
        replicas = found.partitions[place.partition].replicas
        await client.transfer(*place, to=self.dice.choice(list(replicas)))

    async def _rebalance(self, client: AsyncClient) -> None:
        await client.rebalance(leaders_only=self.dice.random() < 0.5)

    async def _alter(self, client: AsyncClient) -> None:
        topic = self.dice.choice(list(self.stage.topics))
        await client.alter_topic(topic, max_deliveries=self.dice.choice((6, 8, 10)))

    async def _make(self, client: AsyncClient) -> None:
        self._count += 1
        topic = f"made{self._count}"
        self._made.append(topic)
        await client.create_topic(topic, partitions=self.dice.randint(1, 4))

    async def _use(self, client: AsyncClient) -> None:
        if self._made:
            topic = self.dice.choice(self._made)
            await client.produce(topic, b"anything")
            await client.poll(topic, group="any", wait=0.0)

    async def _delete(self, client: AsyncClient) -> None:
        if self._made:
            await client.delete_topic(self._made.pop())

    async def _seek(self, client: AsyncClient) -> None:
        topic = self.dice.choice(list(self.stage.topics))
        await client.poll(topic, group="sought", max_messages=5, wait=0.0, visibility=1.0)
        await client.seek(topic, "sought", to=self.dice.choice(("earliest", "latest")))

    async def _look(self, client: AsyncClient) -> None:
        await client.cluster()
        await client.topics()
        topic = self.dice.choice(list(self.stage.topics))
        await client.groups(topic)
        await client.dead_letters(topic)
        await client.delayed(topic)


class UpgradingUser(User):
    """Raises the feature level of a cluster that was founded at an earlier one, at some moment."""

    async def step(self, client: AsyncClient) -> None:
        await asyncio.sleep(self.dice.uniform(1.0, 8.0))
        found = await client.upgrade_cluster()
        self.stage.world.story.counts[f"operator: raised to level {found.level}"] += 1


async def raise_level(client: AsyncClient) -> None:
    """Ask until the cluster has the highest level."""
    while True:
        try:
            if (await client.upgrade_cluster()).level == FEATURE_LEVEL_MAX:
                return
        except QuiverError:
            await asyncio.sleep(0.5)


@contextmanager
def founded_at(level: Level) -> Iterator[None]:
    """Clusters that are founded meanwhile have this feature level, as if by an earlier release."""
    found_cluster = controller.found_cluster  # type: ignore[attr-defined]

    def found(cluster_id: str, created_ms: int, brokers: Iterable[BrokerRecord]) -> Edit:
        edit = found_cluster(cluster_id, created_ms, brokers)
        record = {**edit.put[CLUSTER_KEY], "level": int(level), "release": level.release}
        return Edit({**edit.put, CLUSTER_KEY: record})

    controller.found_cluster = found  # type: ignore[attr-defined]
    try:
        yield
    finally:
        controller.found_cluster = found_cluster  # type: ignore[attr-defined]
