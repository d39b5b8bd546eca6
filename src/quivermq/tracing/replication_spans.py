"""Spans of replication: on each follower, from the arrival of a batch until it is on its disk.

The leader knows by the body of a batch which request it belongs to: stamping a batch, and passing
it through Raft, makes another frame of the same body. While the request is open, every message to a
follower that has the batch in it carries the context too. A follower that is far behind gets its
batches from the log, long after the request was answered: for those there are no spans.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from opentelemetry.trace import Span, SpanKind, Tracer

from quivermq.batches import Buffer, Frame
from quivermq.tracing.contexts import Carried, restored
from quivermq.tracing.conventions import (
    MESSAGE_COUNT,
    NODE,
    OFFSET,
    PARTITION,
    attributes_of,
    record_error,
)
from quivermq.wire import proto

MARKED_MAX: Final = 1_000
"""Batches of one message to a follower that are sent with their contexts."""

ARRIVED_MAX: Final = 1_000
"""Batches of a follower that have arrived and are not on its disk; the oldest gives way."""


class _Watched(NamedTuple):
    """A batch with a span. It keeps the body alive, so that no other has its id."""

    body: Buffer
    span: Span
    context: Carried


class ReplicationSpans:
    """Follows batches from the leader's request to the disks of all replicas."""

    def __init__(self, tracer: Tracer, node: int) -> None:
        self.name_of: Callable[[bytes], tuple[str, int] | None] = lambda _: None
        """Topic and number of a partition that is hosted here, by its id."""
        self._tracer = tracer
        self._node = node
        self._appending: dict[int, _Watched] = {}
        self._arrived: dict[int, _Watched] = {}

    # On the leader.

    def watch(self, frames: Iterable[Frame], span: Span, context: Carried) -> None:
        """These batches are stored by a request with this span."""
        if context.traceparent:
            for frame in frames:
                self._appending[id(frame.body)] = _Watched(frame.body, span, context)

    def unwatch(self, frames: Iterable[Frame]) -> None:
        """The request is answered."""
        for frame in frames:
            self._appending.pop(id(frame.body), None)

    def mark(self, peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> None:
        """Tell a follower the contexts of the batches that it is sent."""
        if not self._appending:
            return
        for number, frame in enumerate(frames[:MARKED_MAX]):
            found = self._appending.get(id(frame.body))
            if found is not None:
                peer_message.traces.add(
                    frame=number,
                    traceparent=found.context.traceparent,
                    tracestate=found.context.tracestate,
                )

    # On a follower.

    def arrive(self, peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> None:
        """Batches of a leader have come, some of them with a context."""
        name = self.name_of(peer_message.partition)
        for sent in peer_message.traces[:MARKED_MAX]:
            if name is not None and sent.frame < len(frames):
                self._arrive(*name, frames[sent.frame], sent)

    def _arrive(self, topic: str, partition: int, frame: Frame, sent: proto.TraceContext) -> None:
        attributes = attributes_of("replicate", "", topic)
        attributes[NODE], attributes[PARTITION] = self._node, str(partition)
        attributes[OFFSET] = int(frame.header.base_offset)
        attributes[MESSAGE_COUNT] = frame.header.count
        parent = restored(sent.traceparent, sent.tracestate)
        span = self._tracer.start_span(f"replicate {topic}", parent, SpanKind.SERVER, attributes)
        if len(self._arrived) >= ARRIVED_MAX:
            _end_unstored(self._arrived.pop(next(iter(self._arrived))))
        context = Carried(sent.traceparent, sent.tracestate)
        self._arrived[id(frame.body)] = _Watched(frame.body, span, context)

    # On both.

    def write(self, frames: Iterable[Frame]) -> None:
        """These batches are on this broker's disk."""
        if not (self._appending or self._arrived):
            return
        for frame in frames:
            found = self._arrived.pop(id(frame.body), None)
            if found is not None:
                found.span.end()
                continue
            found = self._appending.get(id(frame.body))
            if found is not None:
                found.span.add_event("written")

    def close(self) -> None:
        """The broker stops."""
        while self._arrived:
            _end_unstored(self._arrived.popitem()[1])


def _end_unstored(watched: _Watched) -> None:
    record_error(watched.span, "Unstored", "the batch was replaced, or the broker stopped first")
    watched.span.end()
