"""Producing: one message, or many at once."""

import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from secrets import randbelow
from typing import TYPE_CHECKING, Any, Final

from quivermq import batches
from quivermq.batches import Frame
from quivermq.client.checks import Delay, Payload, as_bytes, check_number, delay_seconds
from quivermq.client.cluster_map import Route
from quivermq.client.models import BatchReceipt, Receipt
from quivermq.client.producer.batch_pipeline import BatchPipeline, stored_of
from quivermq.client.producer.bulk import BulkColumns, Layout, bulk_frames
from quivermq.client.producer.lone_producer import LoneProducer, UnsettledBatch
from quivermq.client.producer.message_options import SECONDS_MAX
from quivermq.client.producer.partitioner import partition_of
from quivermq.client.producer.sequencer import InFlightBatch, ProducerIdentity, StoredAt
from quivermq.client.producer.session_pool import ProducerSession, SessionPool
from quivermq.client.retry import Attempts
from quivermq.client.router import Router
from quivermq.errors import InvalidRequest

if TYPE_CHECKING:
    from quivermq.tracing import ClientTracer


class DirectProducer:
    """The part of a client that produces without a `Producer`."""

    def __init__(self, router: Router) -> None:
        self.sessions = SessionPool(router)
        self._router = router
        self._turns: dict[str, int] = {}
        # One that traces has more to send along.
        self._lone = LoneProducer(router, self.sessions) if router.tracer is None else None

    async def produce(
        self,
        topic: str,
        value: Payload,
        *,
        key: Payload | None,
        headers: Mapping[str, bytes] | None,
        priority: int,
        delay: Delay,
        partition: int | None,
        timestamp: int | None = None,
    ) -> Receipt:
        """Store one message."""
        router = self._router
        if type(value) is not bytes:
            value = as_bytes("value", value)
        attempts = None
        route = router.fresh_route(topic, partition)
        if route is None:
            attempts = router.attempts(f"producing to {topic}")
            route = await router.route(topic, attempts, create=True, partition=partition)
        if key is not None and type(key) is not bytes:
            key = as_bytes("key", key)
        if partition is None:
            partition = (
                self.next_partition(route) if key is None else partition_of(key, len(route.leaders))
            )
        found: Receipt | UnsettledBatch | None = None
        if self._lone is not None and headers is None and timestamp is None and not delay:
            found = (
                self._lone.produce(route, partition, value, key, priority)
                if router.is_blocking
                else await self._lone.produce_on_loop(route, partition, value, key, priority)
            )
        if isinstance(found, Receipt):
            return found
        if found is None:
            attempts = attempts or router.attempts(f"producing to {topic}")
            columns = BulkColumns(
                [value],
                None if key is None else [key],
                None if headers is None else [headers],
                None if timestamp is None else [timestamp],
            )
            layout = Layout(priority, not_before_ms(delay) if delay else 0)
            found = await self._post(route, partition, columns, layout, attempts)
        return Receipt(topic, partition, (await self._settle(found)).first_offset)

    async def _post(
        self,
        route: Route,
        partition: int,
        columns: BulkColumns,
        layout: Layout,
        attempts: Attempts,
    ) -> UnsettledBatch:
        """Send one message, whatever it takes to be able to."""
        session = await self.sessions.take(attempts)
        try:
            stream = session.stream(route, partition)
            identity = stream.sequencer.identity or _NO_IDENTITY
            sequence = stream.sequencer.next_sequence
            frame = batches.encode_batch(
                columns.values,
                keys=columns.keys,
                headers=columns.headers,
                timestamps=columns.timestamps,
                origin=batches.Origin(*identity, sequence, layout.priority, layout.not_before_ms),
                limits=self._router.limits,
            )
            batch = InFlightBatch(frame, attempts.deadline)
            await stream.post(batch, attempts)
        except InvalidRequest:
            self.sessions.give_back(session)
            raise
        except BaseException:
            self.sessions.drop(session)
            raise
        return UnsettledBatch(session, stream, batch)

    async def _settle(self, unsettled: UnsettledBatch) -> StoredAt:
        """Wait for what becomes of a batch; it is sent again if need be."""
        session, stream, batch = unsettled
        try:
            while batch.outcome is None:
                await stream.settle_first()
        except BaseException:
            self.sessions.drop(session)
            raise
        self.sessions.give_back(session)
        return stored_of(batch)

    async def produce_many(
        self,
        topic: str,
        columns: BulkColumns,
        layout: Layout,
        partition: int | None,
        identity: ProducerIdentity | None,
        sequence: int,
    ) -> list[BatchReceipt]:
        """Store many messages, several batches under way at a time."""
        attempts = self._router.attempts(f"producing to {topic}")
        route = await self._router.route(topic, attempts, create=True, partition=partition)
        frames = bulk_frames(
            columns,
            layout,
            self._router.limits,
            partitions=len(route.leaders),
            partition=partition,
            next_partition=lambda: self.next_partition(route),
        )
        return await self._send_all(_one_by_one(frames), route, identity, sequence, attempts)

    async def copy(
        self,
        frames: AsyncGenerator[tuple[int, Frame]],
        topic: str,
        identity: ProducerIdentity | None,
        sequence: int,
    ) -> list[BatchReceipt]:
        """Store batches that were stored elsewhere, each in the partition it comes with."""
        attempts = self._router.attempts(f"producing to {topic}")
        route = await self._router.route(topic, attempts, create=True)
        return await self._send_all(frames, route, identity, sequence, attempts)

    async def produce_parts(
        self, topic: str, parts: Sequence[tuple[BulkColumns, Layout]], partition: int
    ) -> list[list[BatchReceipt]]:
        """Store several parts in one partition; batches of all of them are under way together."""
        sizes = [0] * len(parts)
        limits = self._router.limits

        async def frames() -> AsyncGenerator[tuple[int, Frame]]:
            for number, (columns, layout) in enumerate(parts):
                for _, frame in bulk_frames(
                    columns,
                    layout,
                    limits,
                    partitions=1,
                    partition=partition,
                    next_partition=lambda: partition,
                ):
                    sizes[number] += 1
                    yield partition, frame

        receipts = iter(await self.copy(frames(), topic, None, 0))
        return [list(islice(receipts, size)) for size in sizes]

    async def _send_all(
        self,
        frames: AsyncGenerator[tuple[int, Frame]],
        route: Route,
        identity: ProducerIdentity | None,
        sequence: int,
        attempts: Attempts,
    ) -> list[BatchReceipt]:
        """Send batches, each to its partition, until all are stored or one failed for good."""
        session = await self._open_session(identity, sequence, attempts)
        pipeline = BatchPipeline(self._router, session, route)
        try:
            # The generator may have a connection to give back, also if one failed for good.
            async with aclosing(frames):
                async for number, frame in frames:
                    route.check(number)
                    if not await pipeline.send(number, frame):
                        break
            await pipeline.finish()
        except BaseException:
            self._close_session(session, identity, is_sound=False)
            raise
        self._close_session(session, identity, is_sound=True)
        return pipeline.receipts()

    async def _open_session(
        self, identity: ProducerIdentity | None, sequence: int, attempts: Attempts
    ) -> ProducerSession:
        """One for this call; with an identity of the user's own, one for that."""
        if identity is None:
            return await self.sessions.take(attempts)
        return ProducerSession(
            self._router,
            identity,
            self.sessions.new_identity,
            sequence=sequence,
            is_replaceable=False,
            # Numbers that begin where the user said belong to what the user sends.
            is_pinned=True,
        )

    def next_partition(self, route: Route) -> int:
        """Where the next batch without a key goes: one partition after the other."""
        count = len(route.leaders)
        if count == 1:
            return 0
        turn = self._turns.get(route.topic)
        turn = randbelow(count) if turn is None else (turn + 1) % count
        self._turns[route.topic] = turn
        return turn

    def _close_session(
        self, session: ProducerSession, identity: ProducerIdentity | None, *, is_sound: bool
    ) -> None:
        if identity is not None:
            session.abandon()
        elif is_sound:
            self.sessions.give_back(session)
        else:
            self.sessions.drop(session)


class TracedProducer(DirectProducer):
    """The same for a client that traces: each call is a span, and its messages carry it."""

    def __init__(self, router: Router, tracer: "ClientTracer") -> None:
        super().__init__(router)
        self._tracer = tracer

    async def produce(
        self, topic: str, value: Payload, *, headers: Mapping[str, bytes] | None, **options: Any
    ) -> Receipt:
        """Store one message."""
        with self._tracer.send(topic) as sent:
            receipt = await super().produce(topic, value, headers=sent.headers(headers), **options)
            sent.stored_at(receipt.partition, receipt.offset)
            return receipt

    async def produce_many(
        self, topic: str, columns: BulkColumns, *options: Any
    ) -> list[BatchReceipt]:
        """Store many messages."""
        with self._tracer.send(topic, len(columns.values)) as sent:
            values, headers = sent.columns(columns.values, columns.headers)
            columns = columns._replace(values=values, headers=headers)
            return await super().produce_many(topic, columns, *options)


_NO_IDENTITY: Final = ProducerIdentity(0)


def not_before_ms(delay: Delay) -> int:
    """When the delay is over; 0: there is none."""
    seconds = delay_seconds(delay)
    check_number("delay", seconds, least=0)
    if seconds > SECONDS_MAX:
        raise InvalidRequest(f"delay must be at most {SECONDS_MAX:.0f} seconds: {delay!r}")
    return int((time.time() + seconds) * 1000) + 1 if seconds else 0


async def _one_by_one(
    frames: Iterator[tuple[int, Frame]],
) -> AsyncGenerator[tuple[int, Frame]]:
    for each in frames:
        yield each
