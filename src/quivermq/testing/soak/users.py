"""The users of a soak, and how they are run: as tasks of one process, with a journal."""

import asyncio
import time
from collections import Counter
from random import Random
from typing import Any, Final, NamedTuple, cast

from quivermq.client import AsyncClient
from quivermq.testing.trials.group_history import GroupHistory
from quivermq.testing.trials.history import History, TopicPartition
from quivermq.testing.trials.journal import Journal, JournaledCalls
from quivermq.testing.trials.log_history import LogHistory
from quivermq.testing.trials.sticky_history import StickyHistory
from quivermq.testing.trials.users import (
    AtMostOnceUser,
    CommittingUser,
    ConsumingUser,
    OnceHistory,
    ProducingUser,
    PushedUser,
    ReadingUser,
    Records,
    Stage,
    StickyUser,
    User,
)

GROUPS: Final = ("billing", "search")
"""Shared groups: one of consumers on asyncio, one of blocking ones."""


class RealTime:
    """The steady clock, which all processes of a machine share."""

    @property
    def now_us(self) -> int:
        return time.monotonic_ns() // 1000


class ErrorNotes:
    """Counts, and errors that go into the journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.counts: Counter[str] = Counter()

    def trace(self, text: str) -> None:
        self._journal.write("errors", "append", text)


class RealWorld(NamedTuple):
    """The surroundings of users who are not simulated."""

    time: RealTime
    story: ErrorNotes


def journaled_stage(
    journal: Journal,
    servers: str,
    topic: str,
    partitions: int,
    pace_s: float,
    *,
    has_right_clocks: bool,
) -> Stage:
    """A stage whose records are a journal."""

    def calls(recorder: str) -> Any:
        return JournaledCalls(journal, recorder)

    records = Records(
        messages=cast("History", calls("messages")),
        log=cast("LogHistory", calls("log")),
        groups={(topic, group): cast("GroupHistory", calls(group)) for group in GROUPS},
        sticky={topic: cast("StickyHistory", calls("sticky"))},
        once=cast("OnceHistory", calls("once")),
    )
    world = RealWorld(RealTime(), ErrorNotes(journal))
    return Stage(
        world,
        servers.split(","),
        records,
        {topic: partitions},
        pace_s=pace_s,
        has_right_clocks=has_right_clocks,
        busy_poll=True,
    )


class ProbingUser(ProducingUser):
    """Produces to one partition all the time, so that a time in which it does not serve is seen."""

    def __init__(self, stage: Stage, name: str, dice: Random, place: TopicPartition) -> None:
        super().__init__(stage, name, dice)
        self._place = place
        self.answered_us: list[int] = []
        """When its produces were acknowledged."""

    async def step(self, client: AsyncClient) -> None:
        await self._one(client)

    def place(self) -> TopicPartition:
        return self._place

    def _acked(self, place: TopicPartition, first: int, values: list[bytes], began_us: int) -> None:
        super()._acked(place, first, values, began_us)
        self.answered_us.append(self.stage.world.time.now_us)


def make_user(kind: str, stage: Stage, name: str, dice: Random) -> User:
    """A user of a kind that can be named."""
    (topic,) = stage.topics
    simple = {"produce": ProducingUser, "read": ReadingUser, "commit": CommittingUser,
              "once": AtMostOnceUser}  # fmt: skip
    if kind in simple:
        return simple[kind](stage, name, dice)
    if kind == "sticky":
        return StickyUser(stage, name, dice, topic)
    consuming = {"consume": ConsumingUser, "push": PushedUser}
    return consuming[kind](stage, name, dice, topic, GROUPS[0])


async def run_users(users: list[User]) -> None:
    """Run them until all have ended; the first violation ends all."""
    async with asyncio.TaskGroup() as tasks:
        for user in users:
            tasks.create_task(user.run(), name=user.name)
