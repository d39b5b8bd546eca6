"""Sends a lone message over blocking sockets in the plain case, without coroutines.

A program that produces message by message waits for each, and its caches are cold when it goes on:
every step between the parts that may have to wait, retry or look something up costs several times
what it costs in a loop. In the plain case none of them has anything to do. The leader of the
partition is known, and a connection to it and a session are idle: one request and one answer are
all there is (decision 0061).

It decides nothing. What is not the plain case is left to the general way, `DirectProducer.produce`,
before anything is sent. A message whose first attempt fails here becomes a batch in flight whose
first attempt has failed, and the general way goes on with it: numbers, doubt, retries, deadlines
and errors are its business alone.
"""

from typing import NamedTuple

from quivermq import batches
from quivermq.batches import PRIORITY_MAX, Frame, Limits
from quivermq.client.blocking_transport import BlockingConnection
from quivermq.client.cluster_map import Route
from quivermq.client.models import Receipt
from quivermq.client.producer.partition_stream import PartitionStream, refusal_of
from quivermq.client.producer.sequencer import InFlightBatch
from quivermq.client.producer.session_pool import ProducerSession, SessionPool
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import Router, Target
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
        router, sessions, now = self._router, self._sessions, self._now()
        if router.limits is not self._limits:
            self._adopt_limits(router.limits)
        if (
            len(value) > self._value_bytes_max
            or (key is not None and len(value) + len(key) > self._keyed_bytes_max)
            or type(priority) is not int
            or not 0 <= priority <= PRIORITY_MAX
        ):
            return None
        address = router.map.leader_address(route, partition, now)
        connection = router.idle_connection(address)
        if connection is None:
            return None
        session = sessions.take_idle()
        if session is None:
            self._release(connection)
            return None
        try:
            stream = session.stream(route, partition)
            found = self._ask(stream, connection, value, key, priority, now)
        except BaseException:
            sessions.drop(session)
            raise
        finally:
            self._release(connection)
        if isinstance(found, InFlightBatch):
            return UnsettledBatch(session, stream, found)
        sessions.give_back(session)
        return None if found is None else Receipt(route.topic, partition, found)

    def _adopt_limits(self, limits: Limits) -> None:
        self._value_bytes_max = batches.lone_bytes_max(limits)
        self._keyed_bytes_max = self._value_bytes_max - batches.KEYED_BYTES
        self._limits = limits

    def _ask(
        self,
        stream: PartitionStream,
        connection: BlockingConnection,
        value: bytes,
        key: bytes | None,
        priority: int,
        now: float,
    ) -> int | InFlightBatch | None:
        """The offset; a batch whose attempt failed; or None, if the stream needs an identity."""
        sequencer = stream.sequencer
        identity, sequence = sequencer.identity, sequencer.next_sequence
        if identity is None:
            return None
        frame = batches.lone_frame(value, key, *identity, sequence, priority)
        fields = stream.lone_fields or self._lay_out_request(stream)
        try:
            found = connection.ask_plain(fields, frame, now + self._attempt_seconds, stored_offset)
        except (ConnectionFailed, Timeout) as error:
            self._router.map.avoid(connection.address, self._now())
            return self._fail(stream, connection.address, frame, error, now)
        if not isinstance(found, int):
            stored = found.response.produced.batches
            if len(stored) != 1:
                refusal = refusal_of(found.response, connection.address)
                return self._fail(stream, connection.address, frame, refusal, now)
            found = stored[0].first_offset
        sequencer.next_sequence = sequence + 1
        return found

    def _lay_out_request(self, stream: PartitionStream) -> bytes:
        request = proto.Request()
        request.CopyFrom(stream.request)
        request.ClearField("id")
        request.timeout_ms = max(1, int(self._attempt_seconds * 1000))
        request.direct = True
        stream.lone_fields = request.SerializeToString()
        return stream.lone_fields

    def _fail(
        self, stream: PartitionStream, address: str, frame: bytes, error: QuiverError, began: float
    ) -> InFlightBatch:
        """The batch in flight that the general way would have after this first attempt."""
        batch = InFlightBatch(Frame.parse(frame), began + self._router.timeout)
        stream.sequencer.launch(batch)
        stream.target = Target(address, True, stream.route.id)
        batch.fail(error, was_sent=True)
        return batch
