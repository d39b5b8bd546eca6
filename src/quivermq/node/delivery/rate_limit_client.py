"""Takes tokens before messages of topics with a rate limit are delivered.

The broker that leads a topic's partition 0 keeps its limit. Leaders of other partitions ask it for
as many tokens as they are about to deliver messages, and give back what they did not need.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from quivermq.errors import InvalidRequest, QuiverError
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.rate_limiter import RateLimiter
from quivermq.node.delivery.registry import DispatcherRegistry
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Answer, Handler
from quivermq.node.tasks import end_tasks
from quivermq.queue import TopicSettings
from quivermq.wire import error_from_proto, proto

logger = logging.getLogger("quivermq.rate")

Call = Callable[[proto.Request], Awaitable[Answer]]

_WAIT_S_MAX: Final = 5.0
"""After so long a request asks again: the limit, or its leader, may have changed."""
_AGAIN_S_MAX: Final = 3_600.0
"""The longest pause that is told: a slower limit may be changed before."""
_GRACE_MS: Final = 2_000
_PAUSE_S: Final = 0.1
"""Before a limiter that cannot be reached is asked again."""
_GIVE_BACK_S: Final = 0.02
"""Unused tokens are gathered for so long, unless tokens are taken anyway."""
_WANTED_MAX: Final = 1_000_000


class Taken(NamedTuple):
    """Tokens that were granted."""

    tokens: int
    again_s: float = 0.0
    """With none: when there may be some."""


class RateLimitClient:
    """Keeps the limits of topics whose partition 0 is led here, and asks for the others."""

    def __init__(
        self, partitions: PartitionLookup, dispatchers: DispatcherRegistry, call: Call
    ) -> None:
        self._partitions = partitions
        self._dispatchers = dispatchers
        self._call = call
        self._unused: dict[str, int] = {}
        self._tasks: dict[asyncio.Task[Taken], None] = {}

    def _settings(self, topic: str) -> TopicSettings | None:
        found = self._partitions.view.topics.get(topic)
        return found.topic_settings if found is not None else None

    def has_limit(self, topic: str) -> bool:
        found = self._partitions.view.topics.get(topic)
        # The record as it is: every poll asks.
        return found is not None and found.settings.get("rate_per_second", 0) > 0

    async def take(self, topic: str, topic_id: bytes, wanted: int, wait_s: float) -> Taken:
        """Up to `wanted` tokens, waiting for the first; none if there are none in time."""
        asking = asyncio.create_task(self._take(topic, topic_id, wanted, wait_s))
        self._tasks[asking] = None
        asking.add_done_callback(self._tasks.pop)
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # Tokens on their way to a poll that ended must not be lost for the others.
            asking.add_done_callback(lambda task: self._came_late(topic, task))
            raise

    def _came_late(self, topic: str, task: asyncio.Task[Taken]) -> None:
        if not task.cancelled() and task.exception() is None:
            self.give_back(topic, task.result().tokens)

    async def _take(self, topic: str, topic_id: bytes, wanted: int, wait_s: float) -> Taken:
        wait_ms = round(min(wait_s, _WAIT_S_MAX) * 1000)
        body = proto.TakeTokens(
            topic=topic,
            topic_id=topic_id,
            wanted=wanted,
            wait_ms=wait_ms,
            unused=self._unused.pop(topic, 0),
        )
        try:
            return await self._ask(body)
        except QuiverError as error:
            logger.debug("the rate limit of %s cannot be asked for: %s", topic, error)
            await asyncio.sleep(min(_PAUSE_S, wait_s))
            return Taken(0, _PAUSE_S)

    async def _ask(self, body: proto.TakeTokens) -> Taken:
        request = proto.Request(take_tokens=body, timeout_ms=body.wait_ms + _GRACE_MS)
        response, _ = await self._call(request)
        if response.WhichOneof("body") == "error":
            raise error_from_proto(response.error)
        return Taken(response.tokens_taken.taken, response.tokens_taken.again_ms / 1000)

    def give_back(self, topic: str, unused: int) -> None:
        """Tokens with which nothing was delivered."""
        if not unused:
            return
        if topic not in self._unused:
            asyncio.get_running_loop().call_later(_GIVE_BACK_S, self._return_unused, topic)
        self._unused[topic] = self._unused.get(topic, 0) + unused

    def _return_unused(self, topic: str) -> None:
        if not self.has_limit(topic):
            self._unused.pop(topic, None)
        elif topic in self._unused:
            returning = asyncio.create_task(self._take(topic, b"", 0, 0.0))
            self._tasks[returning] = None
            returning.add_done_callback(self._tasks.pop)

    # Where the limit is kept.

    def handlers(self) -> dict[str, Handler]:
        return {"take_tokens": self.take_tokens}

    async def take_tokens(self, request: proto.Request) -> proto.Response:
        """Grant tokens, if partition 0 is led here."""
        body = request.take_tokens
        if body.wanted > _WANTED_MAX or body.unused > _WANTED_MAX:
            raise InvalidRequest(f"ask for at most {_WANTED_MAX} tokens, not {body.wanted}")
        dispatcher = self._dispatchers.leading(body.topic, body.topic_id, 0)
        await dispatcher.confirm()
        limiter = self._limiter_of(dispatcher, body.topic)
        taken = proto.TokensTaken()
        if limiter is None:
            taken.taken = body.wanted
            return proto.Response(tokens_taken=taken)
        limiter.give_back(body.unused)
        if body.wanted:
            taken.taken = await limiter.take(body.wanted, body.wait_ms / 1000)
            # It may have been paused, and replaced, while this request waited.
            await dispatcher.confirm()
            if not taken.taken:
                again_s = min(limiter.again_s(body.wanted), _AGAIN_S_MAX)
                taken.again_ms = max(1, round(again_s * 1000))
        return proto.Response(tokens_taken=taken)

    def _limiter_of(self, dispatcher: DeliveryDispatcher, topic: str) -> RateLimiter | None:
        """The limiter of a topic, or None if it has no limit. It ends with the leadership."""
        settings = self._settings(topic)
        if settings is None or not settings.rate_per_second:
            return None
        limit = settings.rate_per_second, settings.rate_burst
        if dispatcher.limiter is None:
            dispatcher.limiter = RateLimiter(*limit)
        return dispatcher.limiter

    async def close(self) -> None:
        await end_tasks(*self._tasks)
