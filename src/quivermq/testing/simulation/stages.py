"""The topics of a seed, and the users who work with them.

Topics of one kind make a `Stage`: those whose messages are kept, those that drop messages after a
while, and those with a rate limit. Each has records of its own, judged by its own rules.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from quivermq.client import AsyncClient, RateLimit, Retention
from quivermq.testing.simulation.operating_user import OperatingUser, UpgradingUser
from quivermq.testing.simulation.redriving import (
    RedriveHistory,
    RedrivingDrainingUser,
    RedrivingUser,
)
from quivermq.testing.simulation.witnesses import WatchingUser
from quivermq.testing.trials.rate_history import RateHistory
from quivermq.testing.trials.users import (
    AtMostOnceUser,
    CommittingUser,
    ConsumingUser,
    ProducingUser,
    PushedUser,
    ReadingUser,
    Records,
    SentValues,
    Stage,
    StickyUser,
    User,
)
from quivermq.testing.virtual import World

GROUPS: Final = ("billing", "search")
_REDRIVEN: Final = "redriven"

MakeUser = Callable[[Stage, str, Random], User]


class Stages:
    """All stages of a seed."""

    def __init__(self, world: World, servers: Sequence[str], dice: Random) -> None:
        topics = {f"topic{n}": dice.randint(1, 3) for n in range(1, dice.randint(2, 3))}
        pace_s = dice.choice((0.05, 0.2, 0.5))
        self.main = Stage(world, servers, Records(sent=SentValues()), topics, pace_s=pace_s)
        fleeting = {"fleeting": dice.randint(1, 2)} if dice.random() < 0.4 else {}
        self.fleeting = Stage(world, servers, Records(), fleeting, may_be_dropped=True)
        """Of topics whose messages are dropped after a while."""
        limited = {"limited": dice.randint(1, 3)} if dice.random() < 0.5 else {}
        self.limited = Stage(world, servers, Records(sent=SentValues()), limited, pace_s=0.3)
        """Of topics with a rate limit."""
        for topic in limited:
            limit = RateHistory(dice.choice((4.0, 15.0, 50.0)), dice.choice((1, 4, 20)))
            self.limited.records.rates[topic] = limit
        share = dice.random()
        to = "group" if share < 0.2 else "all"
        self.redriven = RedriveHistory(to) if share < 0.4 else None
        """Of a topic whose dead letters are put back."""
        self.kept = [self.main, self.limited]
        """Those whose messages are all there in the end."""
        self.all = [self.main, self.fleeting, self.limited]

    def add(self, stage: Stage) -> None:
        """One more whose messages are kept."""
        self.kept.append(stage)
        self.all.append(stage)

    @property
    def topics(self) -> dict[str, int]:
        """All topics that are judged by their logs, and how many partitions they have."""
        return {
            topic: partitions for stage in self.all for topic, partitions in stage.topics.items()
        }

    async def create_topics(self, client: AsyncClient, replication: int) -> None:
        for topic, partitions in self.main.topics.items():
            await client.create_topic(
                topic, partitions=partitions, replication=replication, max_deliveries=8
            )
        for topic, partitions in self.fleeting.topics.items():
            await client.create_topic(
                topic,
                partitions=partitions,
                replication=replication,
                retention=Retention(max_messages=50),
            )
        if self.redriven is not None:
            await client.create_topic(_REDRIVEN, partitions=2, replication=replication)
        for topic, limit in self.limited.records.rates.items():
            await client.create_topic(
                topic,
                partitions=self.limited.topics[topic],
                replication=replication,
                max_deliveries=8,
                rate_limit=RateLimit(per_second=limit.per_second, burst=limit.burst),
            )

    # Users.

    def draw_users(self, dice: Random, *, is_upgraded: bool) -> list[tuple[MakeUser, float]]:
        """The users, and the seed of the dice of each."""
        chosen: list[MakeUser] = [ProducingUser] * dice.randint(1, 3)
        chosen += [
            make
            for make in (ReadingUser, CommittingUser, OperatingUser, AtMostOnceUser)
            if dice.random() < 0.5
        ]
        if self.fleeting.topics:
            chosen += [self._fleeting_producer, self._fleeting_producer, self._fleeting_reader]
        if self.limited.topics:
            chosen += [self._limited_producer, self._limited_once, self._limited_watcher]
            chosen += [self._limited_consumer] * dice.randint(1, 3)
        chosen += [self._redriving] * (self.redriven is not None)
        chosen += [self._consumer] * dice.randint(0, 3)
        chosen += [self._pushed] * (dice.random() < 0.3)
        chosen += [self._sticky] * dice.choice((0, 0, 1, 2, 3))
        chosen += [UpgradingUser] * is_upgraded
        return [(make, dice.random()) for make in chosen]

    def redriving_drainer(self) -> User:
        history = self.redriven or RedriveHistory()
        return RedrivingDrainingUser(self.main, "drain redriven", Random(1), _REDRIVEN, history)

    def make_user(self, make: MakeUser, number: int, dice: Random) -> User:
        return make(self.main, f"{make.__name__.strip('_')} {number}", dice)

    def _consumer(self, stage: Stage, name: str, dice: Random) -> User:
        topic = dice.choice(list(stage.topics))
        return ConsumingUser(stage, name, dice, topic, dice.choice(GROUPS))

    def _pushed(self, stage: Stage, name: str, dice: Random) -> User:
        topic = dice.choice(list(stage.topics))
        return PushedUser(stage, name, dice, topic, dice.choice(GROUPS))

    def _fleeting_producer(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return ProducingUser(self.fleeting, name, dice)

    def _fleeting_reader(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return ReadingUser(self.fleeting, name, dice)

    def _redriving(self, stage: Stage, name: str, dice: Random) -> User:
        return RedrivingUser(stage, name, dice, _REDRIVEN, self.redriven or RedriveHistory())

    def _limited_producer(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return ProducingUser(self.limited, name, dice)

    def _limited_consumer(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return self._consumer(self.limited, name, dice)

    def _limited_once(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return AtMostOnceUser(self.limited, name, dice)

    def _limited_watcher(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return WatchingUser(self.limited, name, dice)

    def _sticky(self, stage: Stage, name: str, dice: Random) -> User:
        return StickyUser(stage, name, dice, next(iter(stage.topics)))
