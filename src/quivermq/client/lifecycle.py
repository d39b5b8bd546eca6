"""Opening and closing of the two clients: the part that is written once for each of them.

The calls of both are in `client`; those of the asyncio client are derived from there. This module
holds what cannot be derived: which transport a client uses, where its producers, consumers and
subscriptions run, and how all of it ends.
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self
from weakref import WeakSet

from quivermq.client import fork_safety
from quivermq.client.asyncio_transport import AsyncioTransport
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.blocking_transport import BlockingTransport
from quivermq.client.connect_options import ConnectOptions, TransportFactory
from quivermq.client.core import Core
from quivermq.client.events import EventOptions, read_events, read_events_async
from quivermq.client.exit_hooks import endings
from quivermq.client.producer.producer import AsyncProducer, Producer, ProducerSettings
from quivermq.client.producer.sender import await_finishing
from quivermq.client.shared.aio_subscription import AsyncSubscription
from quivermq.client.shared.consumer import ReleaseAtExit
from quivermq.client.shared.leased_message import AsyncLeasedMessage, LeasedMessage
from quivermq.client.shared.leases import (
    Settlement,
    SettlementTerms,
    by_settler,
    settlements_of,
)
from quivermq.client.shared.prefetch import SubscribeOptions
from quivermq.client.shared.shared_core import SharedCore
from quivermq.client.shared.subscription import Subscription
from quivermq.client.sticky.consumer import AsyncConsumer, Consumer, Listener
from quivermq.client.sticky.member import ConsumerSettings
from quivermq.client.transport import Transport, run
from quivermq.client.user_admin import AsyncUsers, Users
from quivermq.errors import LeaseLost
from quivermq.events import Event


def _core_of(options: ConnectOptions, make: TransportFactory[Transport]) -> Core:
    core = Core(options.transport(make), options.servers, options.timeout, options.tracer)
    core.router.zone = options.zone
    return core


class ClientLifecycle:
    """Over blocking sockets; producers, consumers and subscriptions share a thread."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._core = _core_of(options, BlockingTransport)
        self._background = BackgroundLoop()
        self._shared = SharedCore(self._background_core)
        self._producers: WeakSet[Producer | Consumer] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closing = threading.Lock()
        fork_safety.watch(self)
        self._release_at_exit = ReleaseAtExit(self._core.consuming)
        endings.hold(self._release_at_exit)

    @property
    def users(self) -> Users:
        """The users of the cluster: add and remove them, and change what they may do."""
        return Users(self._core.users)

    def events(
        self,
        *,
        kinds: str | Iterable[str] | None = None,
        since: float | None = None,
        follow: bool = False,
    ) -> Iterator[Event]:
        """Iterate over what happened in the cluster: leaders, brokers, damage, refusals.

        >>> for event in client.events(kinds="leader_changed", since=600):
        ...     print(event.time, event.broker, event.detail)

        `since` is in seconds, by default as far back as events are kept; with `follow` it waits
        for more. `quivermq.events.KINDS` are the kinds. Needs `consume` of the topic `_events`.
        """
        return read_events(self._core, EventOptions.of(kinds, since, follow=follow))

    def set_log_level(
        self, level: str | None = None, *, broker: int | None = None, logger: str = ""
    ) -> dict[int, dict[str, str]]:
        """Change what brokers log until they end, or only return it; of all of them by default.

        >>> client.set_log_level("debug", broker=2, logger="peers")

        `level` is debug, info, warning, error, or default: as the broker was started. Returns, by
        broker, the level of all its loggers (`quivermq`) and of those that have one of their own.
        """
        return run(self._core.admin.set_log_level(level, broker, logger))

    def close(self) -> None:
        """Close the client, with its subscriptions, consumers, producers and connections.

        Producers send what they hold first. Messages that were polled and are not settled go back
        to their groups.
        """
        if any(subscription.is_handling for subscription in list(self._subscriptions)):
            # A handler that waited for itself would wait for ever.
            threading.Thread(target=self.close, name="quivermq-close").start()
            return
        with self._closing:
            self._close()

    def _close(self) -> None:
        try:
            # Handlers may produce.
            for subscription in list(self._subscriptions):
                subscription.close()
            for producer in list(self._producers):
                producer.close()
        finally:
            for producer in list(self._producers):
                producer.abandon()
            run(self._core.consuming.release())
            run(self._core.transport.close())
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<quivermq.Client of {','.join(self._options.servers)}>"

    def __del__(self) -> None:
        at_exit = getattr(self, "_release_at_exit", None)
        if at_exit is not None and at_exit.is_any:
            endings.keep(at_exit)

    def after_fork(self) -> None:
        """A thread that was closing the client stayed with the parent, and so did its lock."""
        self._closing = threading.Lock()

    def _open_producer(self, settings: ProducerSettings) -> Producer:
        producer = Producer(self._background, self._background_core, settings)
        self._producers.add(producer)
        return producer

    def _open_consumer(
        self,
        settings: ConsumerSettings,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> Consumer:
        consumer = Consumer(
            self._background, self._background_core, settings, on_assigned, on_revoked
        )
        self._producers.add(consumer)
        return consumer

    def _open_subscription(
        self, options: SubscribeOptions, handler: Callable[[LeasedMessage], object] | None
    ) -> Subscription:
        return Subscription(
            self._background, self._shared.core_for, options, handler, self._subscriptions.add
        )

    def _background_core(self) -> Core:
        # A loop that looks would take turns at the interpreter with the program's own threads.
        return _core_of(replace(self._options, busy_poll=False), AsyncioTransport)

    def _settle(
        self, messages: LeasedMessage | Iterable[LeasedMessage], terms: SettlementTerms
    ) -> None:
        lost: LeaseLost | None = None
        for settlements in by_settler(settlements_of(messages, terms)):
            try:
                settlements[0].lease.settle(settlements)
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost

    def _send_settlements(self, settlements: Sequence[Settlement]) -> None:
        run(self._core.consuming.settling.settle(settlements))


class AsyncClientLifecycle:
    """On the event loop that the client is made on."""

    def __init__(
        self,
        options: ConnectOptions,
        make_transport: TransportFactory[Transport] = AsyncioTransport,
    ) -> None:
        self._options = options
        self._make_transport = make_transport
        self._core = self._make_core()
        self._shared = SharedCore(self._make_core)
        self._producers: WeakSet[AsyncProducer | AsyncConsumer] = WeakSet()
        self._subscriptions: WeakSet[AsyncSubscription] = WeakSet()

    @property
    def users(self) -> AsyncUsers:
        """The users of the cluster: add and remove them, and change what they may do."""
        return AsyncUsers(self._core.users)

    def events(
        self,
        *,
        kinds: str | Iterable[str] | None = None,
        since: float | None = None,
        follow: bool = False,
    ) -> AsyncIterator[Event]:
        """Iterate over what happened in the cluster; see `quivermq.Client.events`."""
        return read_events_async(self._core, EventOptions.of(kinds, since, follow=follow))

    async def set_log_level(
        self, level: str | None = None, *, broker: int | None = None, logger: str = ""
    ) -> dict[int, dict[str, str]]:
        """Change what brokers log until they end; see `quivermq.Client.set_log_level`."""
        return await self._core.admin.set_log_level(level, broker, logger)

    async def close(self) -> None:
        """Close the client, with its subscriptions, consumers, producers and connections.

        Producers send what they hold first. Messages that were polled and are not settled go back
        to their groups.
        """
        try:
            # Handlers may produce.
            for subscription in list(self._subscriptions):
                await subscription.close()
            for producer in list(self._producers):
                await producer.close()
            await await_finishing()
        finally:
            for producer in list(self._producers):
                await producer.abandon()
            await self._core.consuming.release()
            await self._core.transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<quivermq.aio.AsyncClient of {','.join(self._options.servers)}>"

    def _open_producer(self, settings: ProducerSettings) -> AsyncProducer:
        producer = AsyncProducer(self._make_core, settings)
        self._producers.add(producer)
        return producer

    def _open_consumer(
        self,
        settings: ConsumerSettings,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> AsyncConsumer:
        consumer = AsyncConsumer(self._make_core, settings, on_assigned, on_revoked)
        self._producers.add(consumer)
        return consumer

    def _open_subscription(
        self, options: SubscribeOptions, handler: Callable[[AsyncLeasedMessage], object] | None
    ) -> AsyncSubscription:
        subscription = AsyncSubscription(self._shared.core_for, options, handler)
        self._subscriptions.add(subscription)
        return subscription

    def _make_core(self) -> Core:
        return _core_of(self._options, self._make_transport)

    async def _settle(
        self, messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage], terms: SettlementTerms
    ) -> None:
        lost: LeaseLost | None = None
        for settlements in by_settler(settlements_of(messages, terms)):
            try:
                await settlements[0].lease.settle(settlements)
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost

    async def _send_settlements(self, settlements: Sequence[Settlement]) -> None:
        await self._core.consuming.settling.settle(settlements)
