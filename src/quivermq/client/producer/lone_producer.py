"""Sends a lone message over blocking sockets in the plain case, without coroutines.

A program that produces message by message waits for each, and most of its own time went into the
steps between the parts that may have to wait, retry or look something up. In the plain case none of
them has anything to do: the leader of the partition is known, and a connection to it and a session
are idle. Then one request and one answer are all there is (decision 0061).

It decides nothing. What is not the plain case is left to the general way, `DirectProducer.produce`,
before anything is sent. A message whose first attempt fails here becomes a batch in flight whose
first attempt has failed, and the general way goes on with it: numbers, doubt, retries, deadlines
and errors are its business alone.
"""

from collections.abc import Mapping
from typing import NamedTuple

from quivermq import batches
from quivermq.batches import HEADER_BYTES, PRIORITY_MAX, Frame, Limits
from quivermq.client.blocking_transport import BlockingConnection
from quivermq.client.checks import Payload
from quivermq.client.cluster_map import Route
from quivermq.client.models import Receipt
from quivermq.client.producer.partition_stream import PartitionStream, refusal_of
from quivermq.client.producer.sequencer import InFlightBatch, ProducerIdentity
from quivermq.client.producer.session_pool import ProducerSession, SessionPool
from quivermq.client.retry import attempt_seconds
from quivermq.client.router import Router, Target
from quivermq.errors import ConnectionFailed, InvalidRequest, QuiverError, Timeout


class LoneMessage(NamedTuple):
    """A message that is a batch by itself."""

    value: bytes
    key: Payload | None
    headers: Mapping[str, bytes] | None
    timestamp: int | None
    priority: int
    not_before_ms: int

    def encode(self, identity: ProducerIdentity, sequence: int, limits: Limits) -> Frame:
        """Its batch; raises `InvalidRequest` if it can be none."""
        value, key, headers, timestamp, priority, not_before_ms = self
        return batches.encode_batch(
            [value],
            keys=None if key is None else [key],
            headers=None if headers is None else [headers],
            timestamps=None if timestamp is None else [timestamp],
            origin=batches.Origin(*identity, sequence, priority, not_before_ms),
            limits=limits,
        )

    def pack(self, identity: ProducerIdentity, sequence: int, limits: Limits) -> bytes | None:
        """The bytes of the same batch, if they can be had without Arrow."""
        value, key, headers, timestamp, priority, not_before_ms = self
        if (
            not (key is headers is timestamp is None)
            or not_before_ms
            or type(priority) is not int
            or not 0 <= priority <= PRIORITY_MAX
            or len(value) > batches.LONE_BYTES_MAX
        ):
            return None
        packed = batches.lone_frame(value, *identity, sequence, priority)
        body_bytes = len(packed) - HEADER_BYTES
        is_small = body_bytes <= limits.message_bytes_max and body_bytes <= limits.batch_bytes_max
        return packed if is_small else None


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
        self._attempt_seconds = attempt_seconds(router.timeout)
        self._timeout_ms = max(1, int(self._attempt_seconds * 1000))

    def produce(
        self, route: Route, partition: int, message: LoneMessage
    ) -> Receipt | UnsettledBatch | None:
        """Store a message. A batch that is not settled is sent again by the general way; None:
        this is not the plain case, and nothing was sent."""
        router, sessions = self._router, self._sessions
        target = router.known_target(route, partition)
        connection = None if target is None else router.idle_connection(target.address)
        if target is None or connection is None:
            return None
        session = sessions.take_idle()
        if session is None:
            router.transport.release(connection)
            return None
        try:
            stream = session.stream(route, partition)
            found = self._ask(stream, target, connection, message)
        except InvalidRequest:
            sessions.give_back(session)
            raise
        except BaseException:
            sessions.drop(session)
            raise
        finally:
            router.transport.release(connection)
        if isinstance(found, InFlightBatch):
            return UnsettledBatch(session, stream, found)
        sessions.give_back(session)
        return None if found is None else Receipt(route.topic, partition, found)

    def _ask(
        self,
        stream: PartitionStream,
        target: Target,
        connection: BlockingConnection,
        message: LoneMessage,
    ) -> int | InFlightBatch | None:
        """The offset; a batch whose attempt failed; or None, if the stream needs an identity."""
        router, sequencer, began = self._router, stream.sequencer, self._now()
        identity, sequence, limits = sequencer.identity, sequencer.next_sequence, router.limits
        if identity is None:
            return None
        sent = message.pack(identity, sequence, limits) or (
            message.encode(identity, sequence, limits),
        )
        request, deadline = stream.request, began + self._attempt_seconds
        request.timeout_ms, request.direct = self._timeout_ms, True
        failure: QuiverError
        try:
            response = connection.ask(request, sent, deadline).response
            stored = response.produced.batches
            if len(stored) == 1:
                sequencer.next_sequence = sequence + 1
                return stored[0].first_offset
            failure = refusal_of(response, target)
        except (ConnectionFailed, Timeout) as error:
            router.map.avoid(target.address, self._now())
            failure = error
        frame = Frame.parse(sent) if isinstance(sent, bytes) else sent[0]
        batch = InFlightBatch(frame, began + router.timeout)
        sequencer.launch(batch)
        stream.target = target
        batch.fail(failure, was_sent=True)
        return batch
