"""Everything of a broker that serves consumers, put together."""

from contextlib import suppress
from typing import Final

from quivermq.batches import Frame
from quivermq.errors import NotLeader, Overloaded
from quivermq.log.settings import STORED_LIMITS
from quivermq.node.clerks import Clerks
from quivermq.node.consumer_requests import ConsumerRequests
from quivermq.node.consuming import Consuming
from quivermq.node.dead_letters import Call, DeadLetters
from quivermq.node.fetching import Fetching
from quivermq.node.figures import Figures
from quivermq.node.frame_cache import FrameCache
from quivermq.node.group import Group
from quivermq.node.group_requests import GroupRequests
from quivermq.node.partitions import Partitions
from quivermq.node.rate_limits import RateLimits
from quivermq.node.service import Answer, Bulky, Handler
from quivermq.node.settling import Settling
from quivermq.replica import Produced
from quivermq.wire import proto

_CACHE_BYTES: Final = 32 << 20


class Consumers:
    """The clerks of what is led here, and the requests that they answer."""

    def __init__(
        self, partitions: Partitions, fetching: Fetching, figures: Figures, call: Call
    ) -> None:
        async def ask(request: proto.Request) -> Answer:
            frames: list[Frame] = []
            return await call(request, frames)

        self.cache = FrameCache(_CACHE_BYTES)
        self.dead_letters = DeadLetters(partitions, fetching, figures, STORED_LIMITS, call)
        self.clerks = Clerks(partitions, self.dead_letters.carry)
        self.limits = RateLimits(partitions, self.clerks, ask)
        consuming = Consuming(self.clerks, self.limits, self.cache, fetching.readers, figures)
        settling = Settling(self.clerks, figures)
        self._requests = ConsumerRequests(consuming, settling, self.limits)
        self._groups = GroupRequests(partitions, self.clerks, fetching, figures)

    def handlers(self) -> dict[str, Handler]:
        return {**self._requests.handlers(), **self._groups.handlers()}

    def bulky(self) -> dict[str, Bulky]:
        return {**self._requests.bulky(), **self._groups.bulky()}

    def office_changed(self, group: Group) -> None:
        """This broker began to lead a partition, or ceased to."""
        self.clerks.office_changed(group)
        if not group.was_serving:
            self.cache.drop(group.id)

    def stored(self, group: Group, frame: Frame, place: Produced) -> None:
        """A batch was stored. Those who wait for it are woken next, and find it in memory."""
        clerk = self.clerks.of(group)
        if clerk is not None and len(clerk.waiting):
            header = frame.header._replace(
                base_offset=place.base_offset, timestamp_ms=place.timestamp_ms
            )
            self.cache.add(group.id, Frame(header, frame.body))

    def used(self, group: Group, name: str) -> None:
        """Somebody committed an offset for a group of consumers."""
        clerk = self.clerks.of(group)
        if clerk is not None:
            clerk.use(name)

    def dropped(self, group: Group) -> None:
        """Retention may have taken what groups have not done."""
        clerk = self.clerks.of(group)
        if clerk is not None:
            with suppress(NotLeader, Overloaded):
                clerk.trim()

    async def close(self) -> None:
        await self.dead_letters.close()
        await self.limits.close()
        self.clerks.close()
