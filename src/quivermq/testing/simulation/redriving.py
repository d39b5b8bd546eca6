"""A user whose dead letters are put back, and the check that each comes back once.

A message is in one place: it waits in its topic, or it is a dead letter. So once it was
acknowledged, wherever it was by then, its value is never delivered again; and each that was stored
is acknowledged in the end. Where letters go back to the group that failed, another group, which has
acknowledged a message, never gets it again.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from quivermq.client import AsyncClient, AsyncLeasedMessage
from quivermq.errors import LeaseLost, QuiverError
from quivermq.testing import Violation
from quivermq.testing.trials.users import VISIBILITY_S, Stage, User

GROUP: Final = "menders"
ONLOOKERS: Final = "onlookers"
_ROUNDS_AFTER: Final = 5
"""After all is done it goes on for a while, and sees whether something comes twice."""


class RedriveHistory:
    """The values that were stored, delivered and acknowledged, by their names."""

    def __init__(self, to: str = "all") -> None:
        self.to = to
        """Where dead letters are put back to: "all" or "group"."""
        self.onlookers: RedriveHistory | None = RedriveHistory() if to == "group" else None
        """Of a group that no dead letter goes back to."""
        self.count = 0
        self._stored: set[bytes] = set()
        self._acked: set[bytes] = set()
        self._doubtful: set[bytes] = set()

    def store(self, value: bytes) -> None:
        self._stored.add(value)

    def deliver(self, value: bytes) -> None:
        """A poll brought it that began after all earlier calls had ended."""
        if value in self._acked:
            raise Violation(f"I5: {value!r} was acknowledged, and came again from dead letters")

    def ack(self, value: bytes, *, is_certain: bool) -> None:
        (self._acked if is_certain else self._doubtful).add(value)

    @property
    def missing(self) -> set[bytes]:
        """Values that wait, or are dead letters, or are lost."""
        return self._stored - self._acked - self._doubtful

    @property
    def judged(self) -> int:
        return len(self._stored)


class RedrivingUser(User):
    """Produces, rejects, acknowledges, and puts dead letters back; alone with its topic."""

    rejected_share = 0.4

    def __init__(
        self, stage: Stage, name: str, dice: Random, topic: str, history: RedriveHistory
    ) -> None:
        super().__init__(stage, name, dice)
        self._topic = topic
        self._history = history

    async def step(self, client: AsyncClient) -> None:
        acts = [self._produce, self._consume, self._redrive]
        if self._history.onlookers is not None:
            acts.append(self._look_on)
        await self.dice.choice(acts)(client)

    async def _produce(self, client: AsyncClient) -> None:
        self._history.count += 1
        value = f"{self.name} {self._history.count}".encode()
        await client.produce(self._topic, value)
        self._history.store(value)

    async def _redrive(self, client: AsyncClient) -> None:
        found = await client.redrive(self._topic, to=self._history.to)
        self.stage.world.story.counts["dead letters put back"] += found

    async def _consume(self, client: AsyncClient) -> None:
        found = await self._poll(client, GROUP, self._history)
        for message in found:
            if self.dice.random() < self.rejected_share:
                await message.reject("to be put back")
            elif self.dice.random() < self.rejected_share / 2:
                await message.nack(delay=0, reason=f"failed by {self.name}")
            else:
                await self._ack(message, self._history)

    async def _look_on(self, client: AsyncClient) -> None:
        """As a group that has done with its messages when it acknowledges them."""
        history = self._history.onlookers
        if history is not None:
            for message in await self._poll(client, ONLOOKERS, history):
                await self._ack(message, history)

    async def _poll(
        self, client: AsyncClient, group: str, history: RedriveHistory
    ) -> list[AsyncLeasedMessage]:
        found = await client.poll(
            self._topic, group=group, max_messages=10, wait=0.2, visibility=VISIBILITY_S
        )
        for message in found:
            history.deliver(message.value)
        return found

    async def _ack(self, message: AsyncLeasedMessage, history: RedriveHistory) -> None:
        # Until it is answered, and if this user is killed meanwhile, nothing is certain.
        history.ack(message.value, is_certain=False)
        with suppress(LeaseLost):
            await message.ack()
            history.ack(message.value, is_certain=True)


class RedrivingDrainingUser(RedrivingUser):
    """Puts back and acknowledges all that is left; does not end while something is missing."""

    rejected_share = 0.0

    async def work(self, client: AsyncClient) -> None:
        rounds = 0
        while rounds < _ROUNDS_AFTER:
            try:
                await self._redrive(client)
                await self._consume(client)
                rounds += not self._history.missing
            except QuiverError as error:
                self.fail(error)
            await asyncio.sleep(0.2)
