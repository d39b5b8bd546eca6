"""Requests of consumers of shared groups: polls, settlements, tokens."""

from quivermq.node.delivery.rate_limit_client import RateLimitClient
from quivermq.node.handlers.poll import PollHandler, bytes_wanted
from quivermq.node.handlers.settle import SettleHandler
from quivermq.node.service import Answer, Bulky, Handler, Room
from quivermq.wire import proto


class ConsumerRequests:
    """Hands each request to the part that answers it."""

    def __init__(
        self, consuming: PollHandler, settling: SettleHandler, limits: RateLimitClient
    ) -> None:
        self._consuming = consuming
        self._settling = settling
        self._limits = limits

    def handlers(self) -> dict[str, Handler]:
        return {
            "await_ready": self.await_ready,
            "settle": self.settle,
            "release_consumer": self.release_consumer,
            "take_tokens": self._limits.take_tokens,
        }

    def bulky(self) -> dict[str, Bulky]:
        return {"poll": Bulky(self.poll, lambda request: bytes_wanted(request.poll))}

    async def poll(self, request: proto.Request, room: Room) -> Answer:
        return await self._consuming.poll(request.poll, room)

    async def await_ready(self, request: proto.Request) -> proto.Response:
        return await self._consuming.await_ready(request.await_ready)

    async def settle(self, request: proto.Request) -> proto.Response:
        return await self._settling.settle(request.settle)

    async def release_consumer(self, request: proto.Request) -> proto.Response:
        return await self._settling.release_consumer(request.release_consumer)
