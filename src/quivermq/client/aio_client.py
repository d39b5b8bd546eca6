"""The asyncio client: the same names as the blocking one, awaitable."""

import ssl
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from quivermq.batches import Compression
from quivermq.client.aio_group_calls import AsyncGroupCalls
from quivermq.client.aio_group_care import AsyncGroupCare
from quivermq.client.aio_offset_calls import AsyncOffsetCalls
from quivermq.client.asyncio_transport import AsyncioTransport
from quivermq.client.connect_options import ConnectOptions, TransportFactory, chosen_identity
from quivermq.client.copy_calls import AsyncCopyCalls
from quivermq.client.core import Core
from quivermq.client.cursor import Place
from quivermq.client.models import (
    UNCHANGED,
    BatchReceipt,
    ClusterInfo,
    Idle,
    RateLimit,
    RebalanceInfo,
    Receipt,
    Retention,
    Retry,
    TopicInfo,
    Unchanged,
    UpgradeInfo,
)
from quivermq.client.payloads import Payload
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.produce import not_before_ms
from quivermq.client.producer.producer import BUFFER_BYTES, AsyncProducer, ProducerSettings
from quivermq.client.producer.sender import all_finished
from quivermq.client.reader import AsyncReader
from quivermq.client.shared.aio_subscription import AsyncSubscription
from quivermq.client.sticky.consumer import AsyncConsumer, Listener, check_mode
from quivermq.client.sticky.member import ConsumerSettings
from quivermq.client.sticky.owned_partition import Start
from quivermq.client.transport import Transport


def connect(
    servers: str | Iterable[str] = "127.0.0.1:7600",
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = 10.0,
) -> "Connecting":
    """Connect to a cluster by any of its brokers: await it, or enter it.

    >>> async with quivermq.aio.connect("127.0.0.1:7600") as client:
    ...     await client.produce("orders", b"an order")
    """
    return Connecting(ConnectOptions.of(servers, token=token, tls=tls, timeout=timeout))


class Connecting:
    """A client that is about to connect."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._client: AsyncClient | None = None

    def __await__(self) -> Generator[Any, None, "AsyncClient"]:
        return self._connected().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return await self._connected()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> "AsyncClient":
        client = AsyncClient(self._options)
        try:
            await client.ping()
        except BaseException:
            await client.close()
            raise
        self._client = client
        return client


class AsyncClient(AsyncGroupCalls, AsyncGroupCare, AsyncCopyCalls, AsyncOffsetCalls):
    """A connection to a cluster, on the event loop that it was made on.

    Every method does what the one of the same name does in `quivermq.Client`.
    """

    def __init__(
        self,
        options: ConnectOptions,
        make_transport: TransportFactory[Transport] = AsyncioTransport,
    ) -> None:
        self._options = options
        self._make_transport = make_transport
        self._core = self._made_core()
        self._producers: WeakSet[AsyncProducer | AsyncConsumer] = WeakSet()
        self._subscriptions: WeakSet[AsyncSubscription] = WeakSet()

    async def ping(self) -> None:
        """Reach a broker."""
        await self._core.greet()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication: int | None = None,
        retention: Retention | None = None,
        rate_limit: RateLimit | None = None,
        max_deliveries: int = 5,
        dead_letter: str | None = None,
        retry: Retry | None = None,
        group_idle_retention: Idle = UNCHANGED,
    ) -> TopicInfo:
        """Create a topic, and wait until it can be used."""
        return await self._core.admin.create_topic(
            name,
            partitions,
            replication,
            retention=retention,
            rate_limit=rate_limit,
            max_deliveries=max_deliveries,
            dead_letter=dead_letter,
            retry=retry,
            group_idle_retention=group_idle_retention,
        )

    async def alter_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        retention: Retention | Unchanged | None = UNCHANGED,
        rate_limit: RateLimit | Unchanged | None = UNCHANGED,
        max_deliveries: int | Unchanged = UNCHANGED,
        dead_letter: str | Unchanged | None = UNCHANGED,
        retry: Retry | Unchanged | None = UNCHANGED,
        group_idle_retention: Idle = UNCHANGED,
    ) -> TopicInfo:
        """Change a topic: what is not given stays as it is."""
        return await self._core.admin.alter_topic(
            name,
            partitions,
            retention,
            rate_limit,
            max_deliveries,
            dead_letter,
            retry,
            group_idle_retention,
        )

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it, for good."""
        await self._core.admin.delete_topic(name)

    async def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return await self._core.admin.describe([])

    async def topic(self, name: str) -> TopicInfo:
        """One topic; raises `TopicNotFound`."""
        return (await self._core.admin.describe([name]))[0]

    async def produce(
        self,
        topic: str,
        value: Payload,
        *,
        key: Payload | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: float = 0.0,
        partition: int | None = None,
    ) -> Receipt:
        """Store one message, and return where."""
        return await self._core.producing.produce(
            topic,
            value,
            key=key,
            headers=headers,
            priority=priority,
            delay=delay,
            partition=partition,
        )

    async def produce_many(
        self,
        topic: str,
        values: Sequence[bytes] | Any,
        keys: Sequence[bytes | None] | Any = None,
        *,
        headers: Sequence[Mapping[str, bytes] | None] | Any = None,
        timestamps: Sequence[int | None] | Any = None,
        priority: int = 0,
        delay: float = 0.0,
        partition: int | None = None,
        compression: Compression = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
    ) -> list[BatchReceipt]:
        """Store many messages at once."""
        return await self._core.producing.produce_many(
            topic,
            BulkColumns(values, keys, headers, timestamps),
            Layout(priority, not_before_ms(delay), compression),
            partition,
            chosen_identity(producer_id, epoch),
            sequence,
        )

    def producer(
        self,
        *,
        linger: float = 0.005,
        batch_bytes: int = 1_000_000,
        compression: Compression = None,
        buffer_bytes: int = BUFFER_BYTES,
        timeout: float | None = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
    ) -> AsyncProducer:
        """A producer that gathers single messages and sends them together: use `async with`."""
        settings = ProducerSettings(
            linger=linger,
            batch_bytes=batch_bytes,
            compression=compression,
            buffer_bytes=buffer_bytes,
            timeout=self._options.timeout if timeout is None else timeout,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
        )
        producer = AsyncProducer(self._made_core, settings)
        self._producers.add(producer)
        return producer

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: Place = "earliest",
        stop: Place | None = None,
        *,
        follow: bool = False,
        follower_ok: bool = False,
    ) -> AsyncReader:
        """Messages of one partition, in order, or of all: use `async for`."""
        cursor = self._core.reading(
            topic, partition, start=start, stop=stop, follow=follow, follower_ok=follower_ok
        )
        return AsyncReader(self._core.router, topic, cursor)

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        mode: str = "sticky",
        assignor: str = "sticky",
        session: float = 10.0,
        start: Start = "earliest",
        auto_commit: bool = True,
        prefetch_bytes: int = 8 << 20,
        name: str = "",
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
    ) -> AsyncConsumer:
        """Join a sticky group when it is entered: use `async with`."""
        check_mode(mode)
        settings = ConsumerSettings(
            topic, group, assignor, session, start, auto_commit, prefetch_bytes, name
        )
        consumer = AsyncConsumer(self._made_core, settings, on_assigned, on_revoked)
        self._producers.add(consumer)
        return consumer

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Remember where a group is: the offset of the next message that it wants."""
        await self._core.admin.commit(topic, group, partition, offset)

    async def committed(self, topic: str, group: str) -> dict[int, int]:
        """The offsets that a group committed, by partition."""
        return await self._core.admin.committed(topic, group)

    async def cluster(self) -> ClusterInfo:
        """The brokers, who is alive, and who leads."""
        return await self._core.admin.cluster()

    async def stats(self, server: str | None = None) -> dict[str, float]:
        """Figures by name, of the broker at `server`; by default of any."""
        return await self._core.admin.stats(server)

    async def bootstrap(self, addresses: Sequence[str]) -> ClusterInfo:
        """Make one cluster of brokers that hold nothing yet."""
        return await self._core.admin.bootstrap(addresses)

    async def add_broker(self, address: str) -> ClusterInfo:
        """Let a broker that holds nothing yet join this cluster."""
        return await self._core.admin.add_broker(address)

    async def remove_broker(self, node: int, *, force: bool = False) -> None:
        """Let a broker leave: its partitions move to the others first."""
        await self._core.admin.remove_broker(node, force=force)

    async def replace_broker(self, node: int) -> None:
        """A broker lost its data: let the empty directory it came back with take its place."""
        await self._core.admin.replace_broker(node)

    async def upgrade_cluster(self, to: int | None = None, *, dry_run: bool = False) -> UpgradeInfo:
        """Raise the feature level, by default to the highest that brokers know. No way back."""
        return await self._core.admin.upgrade_cluster(to, dry_run=dry_run)

    async def rebalance(self, *, leaders_only: bool = False) -> RebalanceInfo:
        """Begin to spread partitions and leaders evenly."""
        return await self._core.admin.rebalance(leaders_only=leaders_only, status_only=False)

    async def rebalance_status(self) -> RebalanceInfo:
        """How far a rebalance is."""
        return await self._core.admin.rebalance(leaders_only=False, status_only=True)

    async def transfer(self, topic: str | None, partition: int = 0, *, to: int) -> None:
        """Let the replica on node `to` lead a partition; with topic None, the metadata group."""
        await self._core.admin.transfer(topic, partition, to)

    async def close(self) -> None:
        """Close subscriptions, consumers and producers, which delivers what they hold; give back
        what was polled and is not settled; then close every connection."""
        try:
            # Handlers may produce.
            for subscription in list(self._subscriptions):
                await subscription.close()
            for producer in list(self._producers):
                await producer.close()
            await all_finished()
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

    def _made_core(self) -> Core:
        options = self._options
        return Core(options.transport(self._make_transport), options.servers, options.timeout)
