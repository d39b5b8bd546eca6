"""Users with tokens and grants in a simulated cluster, whose grants change while faults strike.

In a seed with accounts all brokers and gateways check tokens and prove the secret of the cluster to
each other. Most programs work as `worker`, which may use the topics and nothing else, and are never
refused. Guests have accounts that a keeper makes and takes away: `access_history` judges what they
were allowed and refused.

Only what cannot be undone by a request that comes late is changed under faults: a grant that was
given before faults began is revoked; a token is replaced; a user is removed, and its name is never
used again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

import quivermq.aio
from quivermq.client import AsyncClient
from quivermq.cluster import CONSUME, PRODUCE, UserRecord, digest_of
from quivermq.errors import Forbidden, InvalidRequest, QuiverError, Unauthenticated
from quivermq.testing import Violation
from quivermq.testing.simulation.operating_user import OperatingUser, UpgradingUser
from quivermq.testing.simulation.redriving import RedrivingUser
from quivermq.testing.simulation.stages import MakeUser
from quivermq.testing.trials.access_history import SIGN_IN, AccessChange, Permit
from quivermq.testing.trials.history import TopicPartition
from quivermq.testing.trials.users import Records, Stage, User
from quivermq.testing.virtual import World

ACCOUNTED: Final = 4
"""Of so many seeds, one has users with tokens: the third. Those at an earlier feature level, which
has no users, are others."""
TOPIC: Final = "guarded"
SPREADING_MS_MAX: Final = 5_000
"""So long after a change of a user was answered, all servers know, if there is no fault."""
_SECRET: Final = "a secret of the simulated cluster"  # noqa: S105  (of no real one)
_LOOK_MS: Final = 20
_GUESTS: Final = (1, 2, 3)
_EXAMINED: Final = 3
"""Users who are granted something, and removed, while they work and there are no faults."""
_TRIED_S: Final = 5.0
_REFUSALS: Final = (Forbidden, Unauthenticated)

Known = Mapping[str, UserRecord]
"""The users by their names, as a server knows them."""
Knows = Callable[[Known], bool]
ServersKnow = Callable[[Knows], bool]


class Accounts:
    """All users of a seed and their tokens."""

    def __init__(self, world: World, seed: int) -> None:
        """The dice are of their own: a seed without users is the same run as if there were no
        such thing."""
        self.world = world
        self.dice = Random(f"accounts {seed}")
        self.stage = Stage(world, (), Records(), {TOPIC: self.dice.randint(1, 2)})
        self.are_on = seed % ACCOUNTED == ACCOUNTED - 2
        self.settings: dict[str, object] = (
            {"users": True, "cluster_secret": _SECRET} if self.are_on else {}
        )
        self.root: str | None = None
        """The token of the admin, which machines of the simulation itself use too."""
        self._worker: str | None = None
        self.permits: list[Permit] = []
        self.sent: dict[bytes, tuple[Permit, int]] = {}
        """Each value that a guest tried to store, by whose permit, and when that began."""
        self._made = 0
        self.firm: list[Permit] = []
        """Those that were granted something before faults began."""
        self._spreading: list[tuple[AccessChange, Knows, bool]] = []
        self._brokers: ServersKnow = lambda _: True
        self._gateways: ServersKnow = lambda _: True

    def join(self, servers: Sequence[str], brokers: ServersKnow, gateways: ServersKnow) -> Stage:
        """Take part in a cluster; returns the stage of the guests. The two say whether all servers
        of a kind know something."""
        self.stage.servers = servers
        self._brokers, self._gateways = brokers, gateways
        return self.stage

    # Making.

    async def make_root(self, client: AsyncClient) -> None:
        """By a client without a token, which seems to be on the machine of a broker."""
        self.root = await client.users.add("root")
        await client.users.grant("root", "admin")

    async def make_all(self, client: AsyncClient, topics: Iterable[str], replication: int) -> None:
        """The topic of guests, and everybody who is there before faults begin."""
        await client.create_topic(
            TOPIC, partitions=self.stage.topics[TOPIC], replication=replication
        )
        self._worker = await client.users.add("worker")
        for topic in topics:
            await client.users.grant("worker", PRODUCE, topic=topic)
            await client.users.grant("worker", CONSUME, topic=topic)
        for actions in ((PRODUCE, CONSUME), (PRODUCE, CONSUME), (PRODUCE,), (CONSUME,)):
            self.firm.append(await self.make_guest(client, actions))
        self.permits.append(Permit("a stranger", f"qv_{self.dice.randbytes(16).hex()}"))

    async def make_guest(self, client: AsyncClient, actions: Iterable[str]) -> Permit:
        """Add a user and grant it something; what fails is asked again."""
        self._made += 1
        name = f"guest{self._made}"
        permit = Permit(name, await client.users.add(name))
        permit.grant(SIGN_IN, self.world.time.now_us)
        self.permits.append(permit)
        await self._grant(client, permit, actions)
        return permit

    async def _grant(self, client: AsyncClient, permit: Permit, actions: Iterable[str]) -> None:
        for action in actions:
            permit.asked.add(action)
            await _insist(partial(client.users.grant, permit.user, action, topic=TOPIC))
            permit.grant(action, self.world.time.now_us)

    def equip(self, user: User) -> None:
        """Give a user the token that fits its work."""
        is_admin = isinstance(user, OperatingUser | UpgradingUser | RedrivingUser | KeepingUser)
        user.token = self.root if is_admin else self._worker

    def draw_users(self) -> list[tuple[MakeUser, float]]:
        """The users that seeds without accounts do not have."""
        if not self.are_on:
            return []
        makers = [self._keeper, *[self.guest] * self.dice.choice(_GUESTS)]
        return [(make, self.dice.random()) for make in makers]

    def _keeper(self, stage: Stage, name: str, dice: Random) -> User:  # noqa: ARG002
        return KeepingUser(self.stage, name, dice, self)

    def guest(self, stage: Stage, name: str, dice: Random) -> "GuestUser":  # noqa: ARG002
        return GuestUser(self.stage, name, dice, self)

    # Taking away.

    async def revoke(self, client: AsyncClient, permit: Permit, action: str) -> None:
        change = permit.begin_to_take((action,), self.world.time.now_us)
        await _insist(partial(client.users.revoke, permit.user, action, topic=TOPIC))
        self._spread(change, partial(_lacks_grant, permit.user, action))

    async def remove(self, client: AsyncClient, permit: Permit) -> None:
        change = permit.begin_to_take(permit.asked, self.world.time.now_us)
        await _insist(partial(client.users.remove, permit.user))
        self._spread(change, partial(_lacks_user, permit.user))

    async def replace_token(self, client: AsyncClient, permit: Permit) -> None:
        """The former token ends. The next one may be replaced by a request that comes late: what
        is refused to it is not judged."""
        earlier = permit.changes.copy()
        change = permit.begin_to_take(permit.asked, self.world.time.now_us)
        token = await client.users.add(permit.user, new_token=True)
        # A broker checks who is named by a gateway, not the token that the gateway saw.
        self._spread(change, partial(_has_other_token, permit), is_of_token=True)
        self.permits.append(permit.replaced(token, earlier))

    def _spread(self, change: AccessChange, knows: Knows, *, is_of_token: bool = False) -> None:
        self.world.story.counts["changes of users"] += 1
        self._spreading.append((change, knows, is_of_token))
        self.world.time.after_ms(0, self._look)

    def _look(self) -> None:
        """Note which changes are known everywhere."""
        now_us, left = self.world.time.now_us, []
        for change, knows, is_of_token in self._spreading:
            of_brokers, of_gateways = self._brokers(knows), self._gateways(knows)
            if of_brokers and (of_gateways or not is_of_token) and change.known_us is None:
                change.known_us = now_us
            if of_brokers and of_gateways:
                change.settled_us = now_us
            else:
                left.append((change, knows, is_of_token))
        self._spreading = left
        if left:
            self.world.time.after_ms(_LOOK_MS, self._look)

    @property
    def are_settled(self) -> bool:
        return not self._spreading

    # Judging.

    async def examine(self, client: AsyncClient, guests: "Sequence[GuestUser]") -> None:
        """Without faults: what is taken away is refused everywhere within a stated time, and what
        is granted is allowed everywhere at once."""
        for guest in guests:
            for _ in range(_EXAMINED):
                granted = await self.make_guest(client, ())
                both = partial(self._grant, client, granted, (PRODUCE, CONSUME))
                await guest.visit(granted, 1, both)
                removed = await self.make_guest(client, (PRODUCE, CONSUME))
                await guest.visit(removed, 2, partial(self._remove_known, client, removed))
        for permit in [permit for permit in self.permits if permit.left]:
            await self.remove(client, permit)
        answered_us = self.world.time.now_us
        while not self.are_settled:
            if self.world.time.now_us > answered_us + SPREADING_MS_MAX * 1000:
                raise Violation(f"access: {SPREADING_MS_MAX} ms on, not all servers know of it")
            await asyncio.sleep(0.05)
        for guest in guests:
            for permit in self.permits:
                await guest.visit(permit, 2)
            await guest.visit(await self.make_guest(client, (PRODUCE, CONSUME)), 4)

    async def _remove_known(self, client: AsyncClient, permit: Permit) -> None:
        """Until all brokers know: a gateway may not yet, and has connections of that user."""
        await self.remove(client, permit)
        while permit.changes[-1].known_us is None:  # noqa: ASYNC110  (no event of this loop)
            await asyncio.sleep(0.01)

    async def check_stored(self, client: AsyncClient) -> None:
        """Also what was stored without an answer was allowed when it was asked for."""
        for number in range(self.stage.topics[TOPIC]):
            async for message in client.read(TOPIC, number):
                permit, began_us = self.sent[message.value]
                permit.judge_effect(PRODUCE, began_us)

    def check_failures(self, stages: Iterable[Stage]) -> None:
        """No program but guests was ever refused for lack of a grant."""
        for stage in stages:
            for error in stage.failures:
                if isinstance(error, _REFUSALS):
                    raise Violation(f"access: a worker was refused: {error!r}")


class KeepingUser(User):
    """Makes accounts of guests, and takes away what they may do."""

    def __init__(self, stage: Stage, name: str, dice: Random, accounts: Accounts) -> None:
        super().__init__(stage, name, dice)
        self._accounts = accounts

    async def step(self, client: AsyncClient) -> None:
        await asyncio.sleep(self.dice.uniform(0.2, 3.0))
        await self.dice.choice((self._make, self._revoke, self._remove, self._replace))(client)

    async def _make(self, client: AsyncClient) -> None:
        actions = self.dice.choice(((PRODUCE, CONSUME), (PRODUCE,), (CONSUME,)))
        await self._accounts.make_guest(client, actions)

    async def _revoke(self, client: AsyncClient) -> None:
        permit = self._draw(self._accounts.firm)
        actions = sorted(permit.left - {SIGN_IN}) if permit is not None else ()
        if permit is not None and actions:
            await self._accounts.revoke(client, permit, self.dice.choice(actions))

    async def _remove(self, client: AsyncClient) -> None:
        permit = self._draw(self._accounts.permits)
        if permit is not None:
            await self._accounts.remove(client, permit)

    async def _replace(self, client: AsyncClient) -> None:
        permit = self._draw(self._accounts.permits)
        if permit is not None:
            await self._accounts.replace_token(client, permit)

    def _draw(self, permits: Sequence[Permit]) -> Permit | None:
        """One that something can be taken from."""
        found = [permit for permit in permits if permit.left]
        return self.dice.choice(found) if found else None


class GuestUser(User):
    """Uses any token, as long as it is let; keeps some connections for long."""

    def __init__(self, stage: Stage, name: str, dice: Random, accounts: Accounts) -> None:
        super().__init__(stage, name, dice)
        self._accounts = accounts
        self._count = 0

    async def run(self) -> None:
        while not self.stage.is_over:
            await self.visit(self.dice.choice(self._accounts.permits), self.dice.choice((1, 4, 20)))
            await asyncio.sleep(self.dice.uniform(0, 0.5))
        self.is_done = True

    async def visit(
        self, permit: Permit, steps: int, then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Connect with a token, and try what can be done with it; once more after something else
        has happened."""
        began_us = self.stage.world.time.now_us
        try:
            client = await quivermq.aio.connect(
                self.servers, timeout=_TRIED_S, token=permit.token, busy_poll=False
            )
        except QuiverError as error:
            self._judge(permit, SIGN_IN, began_us, error)
            return
        self._judge(permit, SIGN_IN, began_us)
        async with client:
            await self._try(client, permit, steps)
            if then is not None:
                await then()
                await self._try(client, permit, steps)

    async def _try(self, client: AsyncClient, permit: Permit, steps: int) -> None:
        for _ in range(steps):
            await self.dice.choice((self._produce, self._poll, self._read))(client, permit)
            await asyncio.sleep(self.dice.uniform(0, 0.3))

    async def _produce(self, client: AsyncClient, permit: Permit) -> None:
        self._count += 1
        place = self.place()
        value = f"{self.name} {self._count} as {permit.user} to {place}".encode()
        self.stage.records.messages.attempt(self.name, place, [value])
        began_us = self.stage.world.time.now_us
        self._accounts.sent[value] = permit, began_us
        try:
            receipt = await client.produce(place.topic, value, partition=place.partition)
        except QuiverError as error:
            self._judge(permit, PRODUCE, began_us, error)
        else:
            self._judge(permit, PRODUCE, began_us)
            self.stage.records.messages.ack(place, receipt.offset, [value])

    async def _poll(self, client: AsyncClient, permit: Permit) -> None:
        began_us = self.stage.world.time.now_us
        try:
            found = await client.poll(TOPIC, group="guests", max_messages=5, wait=0.2, ack="auto")
        except QuiverError as error:
            self._judge(permit, CONSUME, began_us, error)
            return
        self._judge(permit, CONSUME, began_us)
        for message in found:
            place = TopicPartition(message.topic, message.partition)
            self.stage.records.once.give(place, message.offset)

    async def _read(self, client: AsyncClient, permit: Permit) -> None:
        began_us = self.stage.world.time.now_us
        try:
            await anext(aiter(client.read(*self.place())), None)
        except QuiverError as error:
            self._judge(permit, CONSUME, began_us, error)
        else:
            self._judge(permit, CONSUME, began_us)

    def _judge(
        self, permit: Permit, action: str, began_us: int, error: QuiverError | None = None
    ) -> None:
        counts = self.stage.world.story.counts
        if error is None:
            permit.judge_effect(action, began_us)
            counts["calls of guests that were allowed"] += 1
        elif isinstance(error, _REFUSALS):
            permit.judge_refusal(action, began_us, self.stage.world.time.now_us)
            counts["calls of guests that were refused"] += 1
        else:
            counts["calls of guests that failed"] += 1


async def _insist(ask: Callable[[], Awaitable[None]]) -> None:
    """Ask until it is answered that it is so, or was so before."""
    while True:
        try:
            return await ask()
        except InvalidRequest:
            # An attempt before had its effect, and no answer.
            return None
        except QuiverError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.2)


def _lacks_user(name: str, users: Known) -> bool:
    return name not in users


def _lacks_grant(name: str, action: str, users: Known) -> bool:
    return name not in users or action not in {grant.action for grant in users[name].grants}


def _has_other_token(permit: Permit, users: Known) -> bool:
    return permit.user not in users or users[permit.user].digest != digest_of(permit.token)
