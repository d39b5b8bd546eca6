"""The asyncio client's methods for groups: see `quivermq.aio.AsyncClient`, which has them all."""

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

from quivermq.client.core import Core
from quivermq.client.shared.aio_subscription import AsyncSubscription
from quivermq.client.shared.leased_message import AsyncLeasedMessage
from quivermq.client.shared.leased_table import AsyncLeasedTable
from quivermq.client.shared.leases import (
    ACK,
    RELEASE,
    Settlement,
    SettlementTerms,
    by_settler,
    extend_terms,
    nack_terms,
    reject_terms,
    settlements_of,
)
from quivermq.client.shared.poll_result import messages_of_runs, table_of_runs
from quivermq.client.shared.prefetch import SubscribeOptions
from quivermq.errors import LeaseLost


class AsyncGroupCalls:
    """Polling and settling."""

    _core: Core
    _subscriptions: WeakSet[AsyncSubscription]
    _made_core: Callable[[], Core]

    async def poll(
        self,
        topic: str,
        group: str,
        max_messages: int = 100,
        wait: float = 1.0,
        visibility: float = 30.0,
        ack: str = "manual",
        start: str = "earliest",
    ) -> list[AsyncLeasedMessage]:
        """Take messages for a group; while they are leased, no other consumer of it gets them."""
        leased_runs = await self._core.consuming.poll(
            topic, group, max_messages, wait, visibility, ack, start, self._carry_out
        )
        return messages_of_runs(leased_runs, AsyncLeasedMessage, self._core.router.limits)

    async def poll_arrow(
        self,
        topic: str,
        group: str,
        max_messages: int = 10_000,
        wait: float = 1.0,
        visibility: float = 30.0,
        ack: str = "manual",
        start: str = "earliest",
    ) -> AsyncLeasedTable:
        """The same as `poll`, as one Arrow table, by far the fastest way."""
        leased_runs = await self._core.consuming.poll(
            topic, group, max_messages, wait, visibility, ack, start, self._carry_out
        )
        return AsyncLeasedTable(
            *table_of_runs(leased_runs, self._core.router.limits), self._carry_out
        )

    async def ack(self, messages: Iterable[AsyncLeasedMessage]) -> None:
        """These are done: their group never gets them again. Durable when this returns."""
        await self._settle(messages, ACK)

    async def nack(
        self, messages: Iterable[AsyncLeasedMessage], delay: float | None = None
    ) -> None:
        """These failed: deliver them again after `delay` seconds; None: the topic's backoff."""
        await self._settle(messages, nack_terms(delay))

    async def reject(self, messages: Iterable[AsyncLeasedMessage], reason: str = "") -> None:
        """These will never succeed: put them among the dead letters at once."""
        await self._settle(messages, reject_terms(reason))

    async def extend(self, messages: Iterable[AsyncLeasedMessage], seconds: float) -> None:
        """These take longer: their leases, each as a whole, last for so long from here."""
        await self._settle(messages, extend_terms(seconds))

    async def release(self, messages: Iterable[AsyncLeasedMessage]) -> None:
        """These were not worked on: let others have them at once, not counted as a failure."""
        await self._settle(messages, RELEASE)

    def subscribe(
        self,
        topic: str,
        group: str,
        handler: Callable[[AsyncLeasedMessage], object] | None = None,
        prefetch: int = 64,
        visibility: float = 30.0,
        ack: str = "manual",
        concurrency: int = 1,
        start: str = "earliest",
    ) -> AsyncSubscription:
        """Messages of a topic for a group, pushed: to `async for`, or to a handler."""
        options = SubscribeOptions(topic, group, prefetch, visibility, ack, concurrency, start)
        subscription = AsyncSubscription(self._made_core, options, handler)
        self._subscriptions.add(subscription)
        return subscription

    async def _settle(self, messages: Iterable[AsyncLeasedMessage], terms: SettlementTerms) -> None:
        lost: LeaseLost | None = None
        for settlements in by_settler(settlements_of(messages, terms)):
            try:
                await settlements[0].lease.settle(settlements)
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def _carry_out(self, settlements: Sequence[Settlement]) -> None:
        await self._core.consuming.settling.settle(settlements)
