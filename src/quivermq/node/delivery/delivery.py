"""Puts together all that serves consumers: dispatchers, rate limits, dead letters, handlers."""

from contextlib import suppress
from typing import Final

from quivermq.batches import Frame
from quivermq.errors import NotLeader, Overloaded
from quivermq.log import STORED_LIMITS
from quivermq.node.counters import Counters
from quivermq.node.delivery.dead_letter_mover import BrokerCall, DeadLetterMovers
from quivermq.node.delivery.frame_cache import FrameCache
from quivermq.node.delivery.rate_limit_client import RateLimitClient
from quivermq.node.delivery.registry import DispatcherRegistry
from quivermq.node.handlers.dead_letters import DeadLetterHandlers
from quivermq.node.handlers.fetch import FetchHandler
from quivermq.node.handlers.groups import GroupHandlers
from quivermq.node.handlers.open_poll import PollAnswers
from quivermq.node.handlers.poll import PollHandler
from quivermq.node.handlers.settle import SettleHandler
from quivermq.node.handlers.straight_poll import StraightPolls
from quivermq.node.hosted_replica import HostedReplica
from quivermq.node.partition_lookup import PartitionLookup
from quivermq.node.service import Bulky, Handler, Straight
from quivermq.replica import Produced

_CACHE_BYTES: Final = 32 << 20


class Delivery:
    """The dispatchers of what is led here, and the requests that they answer."""

    def __init__(
        self,
        partitions: PartitionLookup,
        fetching: FetchHandler,
        counters: Counters,
        call: BrokerCall,
    ) -> None:
        self.cache = FrameCache(_CACHE_BYTES)
        self.dead_letters = DeadLetterMovers(partitions, fetching, counters, STORED_LIMITS, call)
        self.dispatchers = DispatcherRegistry(partitions, self.dead_letters.move)
        self.limits = RateLimitClient(partitions, self.dispatchers, call)
        answers = PollAnswers(counters)
        self._polls = PollHandler(
            self.dispatchers, self.limits, self.cache, fetching.readers, answers
        )
        self._straight_polls = StraightPolls(self.dispatchers, self.cache, answers, self._polls)
        self._settles = SettleHandler(self.dispatchers, counters)
        self._groups = GroupHandlers(partitions, self.dispatchers, fetching, counters)
        self._letters = DeadLetterHandlers(
            partitions, self.dispatchers, fetching, self.dead_letters
        )

    def handlers(self) -> dict[str, Handler]:
        return {
            **self._polls.handlers(),
            **self._settles.handlers(),
            **self.limits.handlers(),
            **self._groups.handlers(),
            **self._letters.handlers(),
        }

    def bulky(self) -> dict[str, Bulky]:
        return {**self._polls.bulky(), **self._groups.bulky(), **self._letters.bulky()}

    def straight(self) -> dict[str, Straight]:
        return {**self._settles.straight(), **self._straight_polls.straight()}

    def leadership_changed(self, hosted: HostedReplica) -> None:
        """This broker began to lead a partition, or ceased to."""
        self.dispatchers.leadership_changed(hosted)
        if not hosted.was_serving:
            self.cache.drop(hosted.id)

    def cache_stored(self, hosted: HostedReplica, frame: Frame, place: Produced) -> None:
        """Cache a stored batch if polls wait: they are woken next, and find it in memory."""
        dispatcher = self.dispatchers.of(hosted)
        if dispatcher is not None and len(dispatcher.waiting):
            header = frame.header._replace(
                base_offset=place.base_offset, timestamp_ms=place.timestamp_ms
            )
            self.cache.add(hosted.id, Frame(header, frame.body))

    def mark_used(self, hosted: HostedReplica, name: str) -> None:
        """An offset was committed for a group: it is in use."""
        dispatcher = self.dispatchers.of(hosted)
        if dispatcher is not None:
            dispatcher.use(name)

    def trim(self, hosted: HostedReplica) -> None:
        """Let groups skip what retention has dropped."""
        dispatcher = self.dispatchers.of(hosted)
        if dispatcher is not None:
            with suppress(NotLeader, Overloaded):
                dispatcher.trim()

    async def close(self) -> None:
        await self.dead_letters.close()
        await self.limits.close()
        self.dispatchers.close()
        self._straight_polls.close()
