# Generated from client.py by tests/client/derive_aio.py: change it there, and run `make aio`.
"""The asyncio client: every call of the blocking one, awaitable, with its documentation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quivermq.batches import Compression
from quivermq.client.aio_admin_client import AsyncAdminClient
from quivermq.client.checks import Delay, Payload
from quivermq.client.connect_options import chosen_identity
from quivermq.client.cursor import Place
from quivermq.client.deserialize import Deserializer, kind_with_data
from quivermq.client.models import (
    BatchReceipt,
    Message,
    Receipt,
)
from quivermq.client.offsets import TopicOffsets
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.copy import BatchCache, Copier, Range
from quivermq.client.producer.message_options import (
    ChosenSerializer,
    Serializer,
    Timestamp,
    Ttl,
    bulk_columns,
    timestamp_ms,
    with_properties,
)
from quivermq.client.producer.positions import count_stored, position_of
from quivermq.client.producer.produce import not_before_ms
from quivermq.client.producer.producer import BUFFER_BYTES, AsyncProducer, ProducerSettings
from quivermq.client.reader import AsyncReader
from quivermq.client.shared.aio_subscription import AsyncSubscription
from quivermq.client.shared.leased_message import AsyncLeasedMessage
from quivermq.client.shared.leased_table import AsyncLeasedTable
from quivermq.client.shared.leases import ACK, RELEASE, extend_terms, nack_terms, reject_terms
from quivermq.client.shared.prefetch import SubscribeOptions
from quivermq.client.sticky.consumer import AsyncConsumer, Listener, check_mode
from quivermq.client.sticky.member import ConsumerSettings
from quivermq.client.sticky.owned_partition import Start
from quivermq.client.topic_choice import Topics


class AsyncClient(AsyncAdminClient):
    """A connection to a cluster, on the event loop that it was made on.

    Any number of tasks may use it at the same time. Use it with `async with`, or `close()` it.
    """

    async def produce(
        self,
        topic: str,
        value: Payload | Any,
        *,
        key: Payload | None = None,
        headers: Mapping[str, bytes] | None = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
        content_type: str | None = None,
        timestamp: Timestamp | None = None,
        ttl: Ttl | None = None,
        serializer: Serializer | None = None,
    ) -> Receipt:
        """Store one message, and return its place. It is durable when this returns.

        >>> await client.produce("orders", b"an order", key=b"customer 7", headers={"trace": b"1"})

        Messages with the same key go to the same partition; `partition` names one; without either,
        partitions take turns. Groups get a higher `priority` (0 to 7) first; `delay` is in seconds,
        a `timedelta`, or the `datetime` of its end. The client tries again for up to `timeout`, and
        never stores a message twice; `Timeout` says that it cannot tell whether it is stored.

        `serializer="json"`, or a callable, makes bytes of the value. `timestamp` is the message's
        own time. What no consumer of a group took within its `ttl` is not delivered to it any more.
        """
        if serializer is not None:
            chosen = ChosenSerializer.of(serializer)
            value = chosen.serialize(value)
            headers = chosen.with_default(headers)
        if content_type is not None or ttl is not None:
            headers = with_properties(headers, content_type, ttl, delay)
        return await self._core.producing.produce(
            topic,
            value,
            key=key,
            headers=headers,
            priority=priority,
            delay=delay,
            partition=partition,
            timestamp=None if timestamp is None else timestamp_ms(timestamp),
        )

    async def produce_many(
        self,
        topic: str,
        values: Sequence[Payload] | Any,
        keys: Sequence[Payload | None] | Any = None,
        *,
        headers: Sequence[Mapping[str, bytes] | None] | Any = None,
        timestamps: Sequence[Timestamp | None] | Any = None,
        priority: int = 0,
        delay: Delay = 0.0,
        partition: int | None = None,
        content_type: str | None = None,
        ttl: Ttl | None = None,
        serializer: Serializer | None = None,
        compression: Compression = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
    ) -> list[BatchReceipt]:
        """Store many messages at once, by far the fastest way; all are durable when this returns.

        >>> await client.produce_many("orders", [b"one", b"two"])
        [BatchReceipt(partition=0, first_offset=0, count=2)]
        >>> await client.produce_many("orders", pyarrow.table({"value": values, "key": keys}))

        `values` is a sequence of bytes, or an Arrow array; or a RecordBatch or Table with a column
        `value` and optionally `key`, `headers` and `timestamp`: of pyarrow, or of any library with
        the Arrow PyCapsule interface (Polars, pandas, DuckDB). They travel in batches of about
        1 MB, several in flight at a time. Messages with a key go to its partition; batches without
        keys take turns. Nothing is sent if any message is invalid. If sending fails midway, the
        error's notes say how many messages were stored. `content_type`, `ttl` and `serializer` are
        as for `produce`, for all of them.

        With `producer_id`, `epoch` and `sequence` of your own, brokers recognise the same batches
        over several calls or processes, and do not store them again.
        """
        layout = Layout(priority, not_before_ms(delay), compression)
        columns = bulk_columns(
            values,
            keys,
            headers,
            timestamps,
            serializer=serializer,
            content_type=content_type,
            ttl=ttl,
            delay=delay,
        )
        return await self._core.producing.produce_many(
            topic,
            columns,
            layout,
            partition,
            chosen_identity(producer_id, epoch),
            sequence,
        )

    async def produce_parts(
        self, topic: str, parts: Sequence[tuple[Any, int]], *, partition: int
    ) -> list[list[BatchReceipt]]:
        """Store several parts in one partition, and return the places of each.

        >>> await client.produce_parts("orders", [(table, 0), (urgent, 7)], partition=2)
        [[BatchReceipt(partition=2, first_offset=0, count=9)], [BatchReceipt(...)]]

        A part is values as for `produce_many`, and its priority. Batches of all parts are in flight
        together: for many small parts this is far faster than one call for each.
        """
        wanted = [(BulkColumns.of(values), Layout(priority)) for values, priority in parts]
        return await self._core.producing.produce_parts(topic, wanted, partition)

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
        serializer: Serializer | None = None,
    ) -> AsyncProducer:
        """Open a producer, which gathers single messages and sends them in batches.

        >>> async with client.producer() as producer:
        ...     delivery = await producer.send("orders", b"an order")
        ...     (await delivery).offset

        A message waits up to `linger` seconds for others, unless `batch_bytes` are full before.
        When `buffer_bytes` wait to be sent, `send` waits, up to `timeout`. With a `producer_id` of
        your own, a producer with a higher `epoch` takes over: the older one gets `Fenced`. A
        `serializer` makes bytes of the values that are sent: "json", or a callable.
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
            serializer=serializer,
        )
        return self._open_producer(settings)

    async def poll(
        self,
        topic: Topics,
        group: str,
        max_messages: int | None = None,
        wait: float = 1.0,
        visibility: float = 30.0,
        ack: str = "manual",
        start: str = "earliest",
        *,
        pattern: bool = False,
        deserializer: Deserializer | None = None,
    ) -> list[AsyncLeasedMessage]:
        """Lease messages for a group: no other consumer of the group gets them meanwhile.

        >>> for message in await client.poll("orders", group="billing"):
        ...     bill(message.value)
        ...     await message.ack()
        >>> await client.poll(["orders", "returns"], group="billing")
        >>> await client.poll("orders-.*", group="billing", pattern=True)

        Returns as soon as there are messages, at most `max_messages`; an empty list if none came
        within `wait` seconds. Without a number it asks for 100 at first, and then for as many as
        the calling loop settled in a tenth of a second, up to 10,000. Messages that are not
        acknowledged within `visibility` seconds are delivered again. With `ack="auto"` they are
        acknowledged before they are delivered: at most once. The first poll creates the group,
        which begins at `start`: "earliest" or "latest". Of several topics, or of all that a
        regular expression matches as a whole, one that has messages answers; they take turns.
        `deserializer`, "json" or a function of the value, makes `message.data`.
        """
        request = self._core.consuming.poll_request(
            topic,
            group,
            max_messages,
            wait,
            visibility,
            ack,
            start,
            self._send_settlements,
            pattern=pattern,
        )
        kind = kind_with_data(AsyncLeasedMessage, deserializer)
        consuming = self._core.consuming
        if consuming.tracer is not None:
            return await consuming.poll_in_span(consuming.tracer, request, kind)
        # Made here: the end of a coroutine that made them would make an object behind them.
        return consuming.messages_of(request, await consuming.lease(request), kind)

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
        """Lease messages like `poll`, as one Arrow table: by far the fastest way.

        >>> batch = await client.poll_arrow("orders", group="billing")
        >>> batch.table["value"]
        >>> await batch.ack()
        """
        request = self._core.consuming.poll_request(
            topic, group, max_messages, wait, visibility, ack, start, self._send_settlements
        )
        return AsyncLeasedTable(
            *await self._core.consuming.poll_table(request), self._send_settlements
        )

    async def ack(self, messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage]) -> None:
        """Acknowledge messages, or one: their group never gets them again. Durable when this
        returns.

        >>> await client.ack(await client.poll("orders", group="billing"))

        Raises `LeaseLost` if some of them are no longer leased to this client, after all others
        are acknowledged.
        """
        await self._settle(messages, ACK)

    async def nack(
        self,
        messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage],
        delay: Delay | None = None,
        reason: str | None = None,
    ) -> None:
        """Report messages as failed: they are delivered again after `delay` seconds.

        With None, after the topic's backoff. The next delivery has the reason as `last_reason`,
        and a message that fails too often becomes a dead letter that tells it.
        """
        await self._settle(messages, nack_terms(delay, reason))

    async def reject(
        self, messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage], reason: str = ""
    ) -> None:
        """Put messages that can never succeed among the dead letters at once."""
        await self._settle(messages, reject_terms(reason))

    async def extend(
        self, messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage], seconds: float
    ) -> None:
        """Make the leases of these messages, each as a whole, end so many seconds from now."""
        await self._settle(messages, extend_terms(seconds))

    async def release(self, messages: AsyncLeasedMessage | Iterable[AsyncLeasedMessage]) -> None:
        """Give messages back unprocessed: others get them at once, and no failure is counted."""
        await self._settle(messages, RELEASE)

    def subscribe(
        self,
        topic: Topics,
        group: str,
        handler: Callable[[AsyncLeasedMessage], object] | None = None,
        prefetch: int = 64,
        visibility: float = 30.0,
        ack: str = "manual",
        concurrency: int = 1,
        start: str = "earliest",
        *,
        pattern: bool = False,
        ordered_by_key: bool = False,
        deserializer: Deserializer | None = None,
    ) -> AsyncSubscription:
        """Have messages of a topic pushed as they come: to an iterator, or to a handler.

        >>> async with client.subscribe("orders", group="billing") as subscription:
        ...     async for message in subscription:
        ...         bill(message.value)
        ...         await message.ack()
        >>> subscription = client.subscribe("orders", group="billing", handler=bill, concurrency=8)

        A message is acknowledged when the handler returns, and delivered again when it raises;
        `concurrency` handlers run at a time. The subscription holds up to `prefetch` messages, and
        extends their leases until a handler or the loop is done with them. It goes on when leaders
        change or brokers are lost. Use it as a context manager, or `close()` it.

        `topic` may be several, or with `pattern` a regular expression that matches them as a whole,
        also topics that are created later. With `ordered_by_key`, messages of one key are handled
        one after the other in this subscription; if one fails, the others wait for it. A message
        that `deserializer` cannot decode is rejected before it comes to a handler.
        """
        options = SubscribeOptions(
            topic,
            group,
            prefetch,
            visibility,
            ack,
            concurrency,
            start,
            pattern=pattern,
            ordered_by_key=ordered_by_key,
            deserializer=deserializer,
        )
        return self._open_subscription(options, handler)

    def consumer(
        self,
        topic: Topics,
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
        deserializer: Deserializer | None = None,
        pattern: bool = False,
    ) -> AsyncConsumer:
        """Join a sticky group: each partition belongs to one member, and is read in order.

        >>> async with client.consumer("orders", group="billing", mode="sticky") as consumer:
        ...     async for message in consumer:
        ...         print(consumer.assignment, message.value)

        A member without a heartbeat for `session` seconds loses its partitions to the others. A
        group that committed nothing begins at `start`. The first member chooses the `assignor` of
        its group: "sticky", "round-robin" or "range". `on_assigned` and `on_revoked` are called
        with lists of partitions; `name` is shown for this member where groups are described. Of
        several topics, or with `pattern` of all that a regular expression matches, it is a member
        in each; partitions are then `TopicPartition(topic, partition)`.
        """
        check_mode(mode)
        settings = ConsumerSettings(
            topic,
            group,
            assignor,
            session,
            start,
            auto_commit,
            prefetch_bytes,
            name,
            deserializer,
            pattern,
        )
        return self._open_consumer(settings, on_assigned, on_revoked)

    async def commit(self, topic: str, group: str, partition: int, offset: int) -> None:
        """Store the position of a group in a partition: the offset of its next message.

        >>> await client.commit("orders", group="billing", partition=0, offset=message.offset + 1)
        """
        await self._core.admin.commit(topic, group, partition, offset)

    async def committed(self, topic: str, group: str) -> dict[int, int]:
        """Return the offsets that a group committed, by partition, where it did."""
        return await self._core.admin.committed(topic, group)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start: Place = "earliest",
        stop: Place | None = None,
        *,
        follow: bool = False,
        follower_ok: bool = False,
        deserializer: Deserializer | None = None,
    ) -> AsyncReader:
        """Read one partition in order, or all, one partition after the other.

        >>> async for message in client.read("orders", partition=0, start="earliest"):
        ...     print(message.offset, message.value)
        >>> async for batch in client.read("orders").batches():  # pyarrow.RecordBatch
        ...     print(batch.num_rows)

        `start` and `stop` (which is not read itself) are an offset, "earliest", "latest", a
        datetime, its ISO 8601 text, or "@" and milliseconds since 1970. Without `stop`, reading
        ends where the partitions end when it begins; with `follow` it waits for more messages of
        any of the partitions, for ever. Offsets need a partition, unless the topic has only one.
        `follower_ok` lets any replica answer: it may lag behind, but shows only what is committed.
        Without it, leaders say what there is; a client with a `zone` reads that from replicas there
        if it can, unless it follows.
        `deserializer`, "json" or a function of the value, makes `message.data`.
        Raises `OffsetOutOfRange` for messages that retention has deleted.
        """
        cursor = self._core.cursor_of(
            topic, partition, start=start, stop=stop, follow=follow, follower_ok=follower_ok
        )
        return AsyncReader(self._core.router, topic, cursor, kind_with_data(Message, deserializer))

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        stop: int,
        *,
        topic_id: str = "",
        follower_ok: bool = False,
    ) -> AsyncReader:
        """Read messages that are known to exist, from `start` to before `stop`: all, or an error.

        A follower that does not have them yet is passed over. Raises `OffsetOutOfRange` if
        retention has deleted some, `TopicNotFound` if the topic with this id is gone.
        """
        cursor = self._core.range_cursor(
            topic, partition, start, stop, topic_id, follower_ok=follower_ok
        )
        return AsyncReader(self._core.router, topic, cursor)

    async def offsets(self, topic: str, partitions: Iterable[int] | None = None) -> TopicOffsets:
        """Return the first offset and the end of each partition, confirmed by a majority.

        >>> (await client.offsets("orders")).partitions[0].end

        To ask a partition wakes it up if it is idle: name those that you need. With none,
        `offsets("orders", [])` returns only the topic's id and the count of its partitions.
        """
        return await self._core.offsets.held(topic, partitions)

    async def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at or after a time.

        The time is in milliseconds since 1970. The end of the partition, if there is none.
        """
        return await self._core.offsets.at(topic, partition, timestamp_ms)

    async def await_offsets(
        self, positions: Mapping[str, Mapping[int, int]], wait: float = 1.0
    ) -> dict[str, TopicOffsets]:
        """Wait up to `wait` seconds until a partition holds more than its position.

        >>> await client.await_offsets({"orders": {0: 42, 1: 17}}, wait=5.0)

        Returns only partitions that do. Brokers do no work while this waits.
        """
        return await self._core.offsets.beyond(positions, wait)

    async def copy(
        self,
        topic: str,
        ranges: Iterable[tuple[int, int, int]],
        to: str,
        *,
        partition: int | None = None,
        priority: int | None = None,
        producer_id: int | None = None,
        epoch: int = 0,
        sequence: int = 0,
        held: BatchCache | None = None,
    ) -> list[BatchReceipt]:
        """Copy messages into another topic, as whole batches that are not decoded.

        >>> await client.copy("orders", [(0, 100, 200)], to="orders-again")

        A range is a partition, a start, and a stop that is not copied itself. Messages stay in
        their partition, or all go to `partition`. Keys, headers, delays and timestamps that their
        producer gave stay; messages without such a timestamp get the time of the copy. `priority`
        replaces theirs. With `producer_id`, `epoch` and `sequence` of your own, copying the same
        ranges again stores nothing twice. Batches in `held` are not read again.
        """
        wanted = Copier.of(
            topic,
            ranges,
            to,
            partition=partition,
            priority=priority,
            producer_id=producer_id,
            epoch=epoch,
            sequence=sequence,
            held=held,
        )
        return await wanted.copy(self._core)

    async def hold(
        self, topic: str, ranges: Iterable[tuple[int, int, int]], *, bytes_max: int = 32 << 20
    ) -> BatchCache:
        """Read batches to `copy` from: for many small ranges that lie close together."""
        held = BatchCache(topic)
        await held.read(self._core, [Range(*each) for each in ranges], bytes_max)
        return held

    async def position(
        self, topic: str, partition: int, *, producer_id: int, epoch: int = 0
    ) -> int:
        """Return the sequence number that a partition expects next from a producer's epoch.

        >>> await client.position("orders", 0, producer_id=77, epoch=3)
        1200

        The leader has accepted all numbers below it, but the last batch may not be stored yet: send
        that again to be sure. Raises `Fenced` if the producer has a higher epoch there, and
        `OutOfSequence` if the partition may have forgotten the producer: ask `stored` then.
        """
        return await position_of(self._core, topic, partition, producer_id, epoch)

    async def stored(
        self, topic: str, partition: int, *, producer_id: int, epoch: int, since_ms: int
    ) -> int:
        """Count the messages of a producer's epoch that a partition stored since a time.

        Reads everything since then: for producers whose `position` may be forgotten. Raises
        `InvalidRequest` if the partition has deleted messages of that time.
        """
        return await count_stored(self._core, topic, partition, producer_id, epoch, since_ms)

    async def ping(self) -> None:
        """Reach any broker; raises `ConnectionFailed` if none answers."""
        await self._core.greet()
