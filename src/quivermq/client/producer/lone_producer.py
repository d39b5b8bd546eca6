"""Sends a lone message in the plain case: over blocking sockets, without coroutines.

A program that produces message by message waits for each, and its caches are cold when it goes on:
every step between the parts that may have to wait, retry or look something up costs several times
what it costs in a loop. In the plain case none of them has anything to do. The leader of the
partition is known, and a connection to it and a session are idle: one request and one answer are
all there is (decision 0061).

On an event loop there is one coroutine, and one future for the answer.

It decides nothing. What is not the plain case is left to the general way, `DirectProducer.produce`,
before anything is sent. A message whose first attempt fails here becomes a batch in flight whose
first attempt has failed, and the general way goes on with it: numbers, doubt, retries, deadlines
and errors are its business alone.
"""

from typing import NamedTuple

from quivermq import batches
from quivermq.batches import PRIORITY_MAX, Frame, Limits
from quivermq.client.asyncio_transport import AsyncioConnection
from quivermq.client.cluster_map import Route
from quivermq.client.models import Receipt
from quivermq.client.producer.partition_stream import PartitionStream, refusal_of
from quivermq.client.producer.sequencer import InFlightBatch
from quivermq.client.producer.session_pool import ProducerSession, SessionPool
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import Router, Target
from quivermq.client.transport import Reply
from quivermq.errors import ConnectionFailed, QuiverError, Timeout
from quivermq.wire import proto, stored_offset


class UnsettledBatch(NamedTuple):
    """A batch in flight, its stream, and the session that both belong to."""

    session: ProducerSession
    stream: PartitionStream
    batch: InFlightBatch


class LoneProducer:
    """The straight way of lone messages to their leaders. Any thread may use it."""

    def __init__(self, router: Router, sessions: SessionPool) -> None:
        self._router = router
        self._sessions = sessions
        self._now = router.transport.now
        self._release = router.transport.release
        self._attempt_seconds = attempt_seconds(router.timeout)
        self._limits: Limits | None = None
        self._value_bytes_max = 0
        self._keyed_bytes_max = 0
        """Within these limits: of a value, and of a value and its key."""

    def produce(
        self, route: Route, partition: int, value: bytes, key: bytes | None, priority: int
    ) -> Receipt | UnsettledBatch | None:
        """Store a message of no more than a value and a key. A batch that is not settled is sent
        again by the general way; None: this is not the plain case, and nothing was sent."""
        address = self._address(route, partition, value, key, priority)
        connection = self._router.idle_connection(address) if address else None
        if connection is None:
            return None
        session = self._sessions.take_idle()
        if session is None:
            self._release(connection)
            return None
        try:
            stream = session.stream(route, partition)
            lone = self._lone_batch(stream, address, value, key, priority)
            found: int | InFlightBatch | None = None
            if lone is not None:
                try:
                    answer = connection.ask_plain(
                        lone.fields, lone.frame, lone.deadline, stored_offset
                    )
                except (ConnectionFailed, Timeout) as error:
                    found = self._lose(stream, lone, error)
                else:
                    found = self._outcome(stream, lone, answer)
        except BaseException:
            self._sessions.drop(session)
            raise
        finally:
            self._release(connection)
        return self._end(session, stream, found)

    async def produce_on_loop(
        self, route: Route, partition: int, value: bytes, key: bytes | None, priority: int
    ) -> Receipt | UnsettledBatch | None:
        """The same on an event loop."""
        address = self._address(route, partition, value, key, priority)
        connection = self._router.ready_connection(address) if address else None
        if not isinstance(connection, AsyncioConnection) or not connection.takes_more:
            return None
        session = self._sessions.take_idle()
        if session is None:
            return None
        try:
            stream = session.stream(route, partition)
            lone = self._lone_batch(stream, address, value, key, priority)
            found: int | InFlightBatch | None = None
            if lone is not None:
                try:
                    answer = await connection.ask_plain(
                        lone.fields, lone.frame, lone.deadline, stored_offset
                    )
                except (ConnectionFailed, Timeout) as error:
                    found = self._lose(stream, lone, error)
                else:
                    found = self._outcome(stream, lone, answer)
        except BaseException:
            self._sessions.drop(session)
            raise
        return self._end(session, stream, found)

    def _end(
        self, session: ProducerSession, stream: PartitionStream, found: int | InFlightBatch | None
    ) -> Receipt | UnsettledBatch | None:
        if isinstance(found, InFlightBatch):
            return UnsettledBatch(session, stream, found)
        self._sessions.give_back(session)
        return None if found is None else Receipt(stream.route.topic, stream.partition, found)

    def _address(
        self, route: Route, partition: int, value: bytes, key: bytes | None, priority: int
    ) -> str:
        """Where to send it, if that is known and it is plain; else ""."""
        router = self._router
        if router.limits is not self._limits:
            self._adopt_limits(router.limits)
        if (
            len(value) > self._value_bytes_max
            or (key is not None and len(value) + len(key) > self._keyed_bytes_max)
            or type(priority) is not int
            or not 0 <= priority <= PRIORITY_MAX
        ):
            return ""
        return router.map.leader_address(route, partition, self._now())

    def _adopt_limits(self, limits: Limits) -> None:
        self._value_bytes_max = batches.lone_bytes_max(limits)
        self._keyed_bytes_max = self._value_bytes_max - batches.KEYED_BYTES
        self._limits = limits

    def _lone_batch(
        self, stream: PartitionStream, address: str, value: bytes, key: bytes | None, priority: int
    ) -> "_LoneBatch | None":
        """The request to send; None if the stream needs an identity."""
        sequencer = stream.sequencer
        identity, sequence = sequencer.identity, sequencer.next_sequence
        if identity is None:
            return None
        frame = batches.lone_frame(value, key, *identity, sequence, priority)
        fields = stream.lone_fields or self._lay_out_request(stream)
        began = self._now()
        return _LoneBatch(address, fields, frame, sequence, began, began + self._attempt_seconds)

    def _outcome(
        self, stream: PartitionStream, lone: "_LoneBatch", answer: int | Reply
    ) -> int | InFlightBatch:
        """The offset; or a batch whose attempt was refused."""
        if not isinstance(answer, int):
            stored = answer.response.produced.batches
            if len(stored) != 1:
                return self._fail(stream, lone, refusal_of(answer.response, lone.address))
            answer = stored[0].first_offset
        stream.sequencer.next_sequence = lone.sequence + 1
        return answer

    def _lose(
        self, stream: PartitionStream, lone: "_LoneBatch", error: QuiverError
    ) -> InFlightBatch:
        self._router.map.avoid(lone.address, self._now())
        return self._fail(stream, lone, error)

    def _lay_out_request(self, stream: PartitionStream) -> bytes:
        request = proto.Request()
        request.CopyFrom(stream.request)
        request.ClearField("id")
        request.timeout_ms = max(1, int(self._attempt_seconds * 1000))
        request.direct = True
        stream.lone_fields = request.SerializeToString()
        return stream.lone_fields

    def _fail(
        self, stream: PartitionStream, lone: "_LoneBatch", error: QuiverError
    ) -> InFlightBatch:
        """The batch in flight that the general way would have after this first attempt."""
        batch = InFlightBatch(Frame.parse(lone.frame), lone.began + self._router.timeout)
        stream.sequencer.launch(batch)
        stream.target = Target(lone.address, True, stream.route.id)
        batch.fail(error, was_sent=True)
        return batch


class _LoneBatch(NamedTuple):
    """One message as it is sent."""

    address: str
    fields: bytes
    frame: bytes
    sequence: int
    began: float
    deadline: float
