"""The blocking client: the same core as `quivermq.aio`, behind plain sockets."""

import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from quivermq.batches import Compression
from quivermq.client import fork_safety
from quivermq.client.asyncio_transport import AsyncioTransport
from quivermq.client.background_loop import BackgroundLoop
from quivermq.client.blocking_transport import BlockingTransport
from quivermq.client.cluster_calls import ClusterCalls
from quivermq.client.connect_options import ConnectOptions, chosen_identity
from quivermq.client.copy_calls import CopyCalls
from quivermq.client.core import Core
from quivermq.client.cursor import Place
from quivermq.client.exit_hooks import endings
from quivermq.client.group_calls import GroupCalls
from quivermq.client.group_care import GroupCare
from quivermq.client.models import (
    UNCHANGED,
    BatchReceipt,
    Idle,
    RateLimit,
    Receipt,
    Retention,
    Retry,
    TopicInfo,
    Unchanged,
)
from quivermq.client.offset_calls import OffsetCalls
from quivermq.client.payloads import Payload
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.produce import not_before_ms
from quivermq.client.producer.producer import BUFFER_BYTES, Producer, ProducerSettings
from quivermq.client.reader import Reader
from quivermq.client.shared.consumer import PollOutcome
from quivermq.client.shared.subscription import Subscription
from quivermq.client.sticky.consumer import Consumer, Listener, check_mode
from quivermq.client.sticky.member import ConsumerSettings
from quivermq.client.sticky.owned_partition import Start
from quivermq.client.transport import run


def connect(
    servers: str | Iterable[str] = "127.0.0.1:7600",
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = 10.0,
) -> "Client":
    """Connect to a cluster by any of its brokers.

    >>> client = quivermq.connect("127.0.0.1:7600,127.0.0.1:7601")
    >>> client.produce("orders", b"an order")
    Receipt(topic='orders', partition=0, offset=0)

    Every operation is tried again for up to `timeout` seconds if what went wrong may pass. `tls` is
    an `ssl.SSLContext`, for brokers that expect TLS. Raises `ConnectionFailed` if no server can be
    reached.
    """
    client = Client(ConnectOptions.of(servers, token=token, tls=tls, timeout=timeout))
    try:
        client.ping()
    except BaseException:
        client.close()
        raise
    return client


class Client(ClusterCalls, GroupCalls, GroupCare, CopyCalls, OffsetCalls):
    """A connection to a cluster. Any number of threads may use one at the same time.

    A forked child may go on using it: it makes connections of its own. Its producers stay with the
    parent, and say so. Use it as a context manager, or `close()` it.
    """

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
        self._core = Core(options.transport(BlockingTransport), options.servers, options.timeout)
        self._background = BackgroundLoop()
        self._producers: WeakSet[Producer | Consumer] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._closing = threading.Lock()
        fork_safety.watch(self)
        self._polled = PollOutcome(self._core.consuming)
        endings.hold(self._polled)

    def ping(self) -> None:
        """Reach a broker."""
        run(self._core.greet())

    # ---- topics

    def create_topic(
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
        """Create a topic, and wait until it can be used.

        >>> client.create_topic("orders", partitions=4, retention=quivermq.Retention(max_age=86400))

        Doing it again changes nothing; with other settings it raises `TopicExists`. Without
        `partitions` and `replication` it has as many as the brokers' settings say.
        """
        return run(
            self._core.admin.create_topic(
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
        )

    def alter_topic(
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
        """Change a topic: what is not given stays as it is. Partitions can only be added.

        >>> client.alter_topic("orders", partitions=8)

        More partitions send keys to other partitions than before.
        """
        return run(
            self._core.admin.alter_topic(
                name,
                partitions,
                retention,
                rate_limit,
                max_deliveries,
                dead_letter,
                retry,
                group_idle_retention,
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and everything in it, for good."""
        run(self._core.admin.delete_topic(name))

    def topics(self) -> list[TopicInfo]:
        """All topics, by name."""
        return run(self._core.admin.describe([]))

    def topic(self, name: str) -> TopicInfo:
        """One topic; raises `TopicNotFound`.

        >>> client.topic("orders").partitions[0].end_offset
        """
        return run(self._core.admin.describe([name]))[0]

    # ---- producing

    def produce(
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
        """Store one message, and return where. It is durable when this returns.

        >>> client.produce("orders", b"an order", key=b"customer 7", headers={"trace": b"1"})

        Messages with the same key go to the same partition; `partition` names one outright; else
        partitions take turns. A higher `priority` (0 to 7) is delivered to groups first; `delay` is
        in seconds. It is tried again for up to `timeout`, and never stored twice. If even then
        nobody knows whether it was stored, `Timeout` is raised.
        """
        return run(
            self._core.producing.produce(
                topic,
                value,
                key=key,
                headers=headers,
                priority=priority,
                delay=delay,
                partition=partition,
            )
        )

    def produce_many(
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
        """Store many messages at once, by far the fastest way; all are durable when this returns.

        >>> client.produce_many("orders", [b"one", b"two"])
        [BatchReceipt(partition=0, first_offset=0, count=2)]
        >>> client.produce_many("orders", pyarrow.table({"value": values, "key": keys}))

        `values` is a sequence of bytes, or a pyarrow Array; or a RecordBatch or Table with a column
        `value` and optionally `key`, `headers` and `timestamp`. They travel in batches of about
        1 MB, several under way at a time. Messages with a key go to its partition; those without
        are spread, batch by batch. Nothing is sent if any message is invalid. If sending fails
        midway, the error's notes say how many were stored.

        To have repeats recognised over several calls or processes, give `producer_id`, `epoch` and
        `sequence` of your own: a repeat of the same batches is not stored again.
        """
        layout = Layout(priority, not_before_ms(delay), compression)
        return run(
            self._core.producing.produce_many(
                topic,
                BulkColumns(values, keys, headers, timestamps),
                layout,
                partition,
                chosen_identity(producer_id, epoch),
                sequence,
            )
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
    ) -> Producer:
        """A producer that gathers single messages and sends them together in the background.

        >>> with client.producer() as producer:
        ...     delivery = producer.send("orders", b"an order")
        ...     delivery.result().offset

        A message waits up to `linger` seconds for others, unless `batch_bytes` are full before.
        `buffer_bytes` may wait to be sent; then `send` waits, up to `timeout`. With a `producer_id`
        of your own, a producer with a higher `epoch` takes over: the older one gets `Fenced`.
        """
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
        producer = Producer(self._background, self._background_core, settings)
        self._producers.add(producer)
        return producer

    # ---- reading

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: Place = "earliest",
        stop: Place | None = None,
        *,
        follow: bool = False,
        follower_ok: bool = False,
    ) -> Reader:
        """Messages of one partition, in order; or of all, one partition after the other.

        >>> for message in client.read("orders", partition=0, start="earliest"):
        ...     print(message.offset, message.value)
        >>> for batch in client.read("orders").batches():  # pyarrow.RecordBatch
        ...     print(batch.num_rows)

        `start` and `stop` (which is not read itself) are an offset, "earliest", "latest", a
        datetime, its ISO 8601 text, or "@" and milliseconds since 1970. Without `stop` it ends
        where the partitions end when reading begins; with `follow` it waits for more, for ever, in
        whichever partition it comes. Offsets need a partition, unless the topic has only one.
        `follower_ok` lets any replica answer: it may lag behind, but shows only what is committed.
        Raises `OffsetOutOfRange` for what is not kept any more.
        """
        cursor = self._core.reading(
            topic, partition, start=start, stop=stop, follow=follow, follower_ok=follower_ok
        )
        return Reader(self._core.router, topic, cursor)

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
    ) -> Consumer:
        """Join a sticky group: each partition belongs to one member, and is read in order.

        >>> with client.consumer("orders", group="billing", mode="sticky") as consumer:
        ...     for message in consumer:
        ...         print(consumer.assignment, message.value)

        A member that is silent for `session` seconds loses its partitions to the others. A group
        that committed nothing begins at `start`. The `assignor` ("sticky", "round-robin" or
        "range") of a group's first member holds. `on_assigned` and `on_revoked` are called with
        lists of partitions; `name` is what people see of this member.
        """
        check_mode(mode)
        settings = ConsumerSettings(
            topic, group, assignor, session, start, auto_commit, prefetch_bytes, name
        )
        consumer = Consumer(
            self._background, self._background_core, settings, on_assigned, on_revoked
        )
        self._producers.add(consumer)
        return consumer

    def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Remember where a group is: the offset of the next message that it wants.

        >>> client.commit("orders", group="billing", partition=0, offset=message.offset + 1)
        """
        run(self._core.admin.commit(topic, group, partition, offset))

    def committed(self, topic: str, group: str) -> dict[int, int]:
        """The offsets that a group committed, by partition; without those where it did not."""
        return run(self._core.admin.committed(topic, group))

    # ---- its end

    def close(self) -> None:
        """Close subscriptions, consumers and producers, which delivers what they hold; give back
        what was polled and is not settled; then close every connection."""
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
        polled = getattr(self, "_polled", None)
        if polled is not None and polled.is_any:
            endings.keep(polled)

    def after_fork(self) -> None:
        """Whoever was closing it stayed with the parent."""
        self._closing = threading.Lock()

    def _background_core(self) -> Core:
        options = self._options
        return Core(options.transport(AsyncioTransport), options.servers, options.timeout)
