"""A poll while it is answered: what it asks for, what is leased to it, and its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from quivermq.batches import Frame
from quivermq.errors import InvalidRequest
from quivermq.node.counters import Counters
from quivermq.node.delivery.dispatcher import DeliveryDispatcher
from quivermq.node.delivery.lease_reader import PendingLease
from quivermq.node.delivery.registry import check_group
from quivermq.node.service import Answer, Room
from quivermq.queue import FailureReason, LeaseRequest, Piece, messages_in
from quivermq.wire import proto

_VISIBILITY_MS: Final = 30_000
WAIT_MS_MAX: Final = 60_000
_BYTES_DEFAULT: Final = 4 << 20
_BYTES_MAX: Final = 32 << 20
_MESSAGES_MAX: Final = 100_000
_PARTITIONS_MAX: Final = 10_000
_REASON_BYTES_MAX: Final = 1 << 20
_ENVELOPE_BYTES: Final = 4_096


def bytes_wanted(body: proto.Poll) -> int:
    """How much a poll may answer with; one message may be larger."""
    return min(body.bytes_max or _BYTES_DEFAULT, _BYTES_MAX)


def check_poll(body: proto.Poll) -> None:
    """Raise `InvalidRequest` unless it can be answered."""
    check_names(body.group, body.partitions)
    if not 1 <= body.messages_max <= _MESSAGES_MAX:
        raise InvalidRequest(f"a poll takes 1 to {_MESSAGES_MAX} messages, not {body.messages_max}")


def check_names(group: str, partitions: Sequence[int]) -> None:
    """Raise `InvalidRequest` unless a group may ask for these."""
    check_group(group)
    if not partitions:
        raise InvalidRequest("name at least one partition")
    if len(partitions) > _PARTITIONS_MAX:
        raise InvalidRequest(f"name at most {_PARTITIONS_MAX} partitions, not {len(partitions)}")


@dataclass(eq=False, slots=True)
class OpenPoll:
    """One poll, as long as it lasts."""

    body: proto.Poll
    room: Room
    deadline_s: float
    throttled_s: float = 0.0
    is_in_vain: bool = False
    """Something was ready, and then it was not."""
    has_expired: bool = False
    """Something was ready, and had expired."""
    elsewhere: list[int] = field(default_factory=list)
    """Partitions that are not led here."""
    messages: int = 0
    """How many are leased."""
    reason_bytes: int = 0
    """Of the reasons that the answer tells."""
    pending: list[PendingLease] = field(default_factory=list)

    @property
    def bytes_max(self) -> int:
        return bytes_wanted(self.body)

    def shorten(self, now_s: float) -> None:
        """Let what is left of its time be the time that it asks for: it begins again."""
        self.body.wait_ms = round(max(self.deadline_s - now_s, 0.0) * 1000)

    def wanted(self, dispatcher: DeliveryDispatcher) -> int:
        """How many messages to lease from a partition."""
        left = self.body.messages_max - self.messages
        fitting = int(self.bytes_max / dispatcher.message_bytes)
        return max(1, min(left, fitting))

    def expected_bytes(self, dispatcher: DeliveryDispatcher) -> int:
        """The size that an answer is thought to have."""
        expected = int(self.body.messages_max * dispatcher.message_bytes) + _ENVELOPE_BYTES
        return min(self.bytes_max, expected)

    def lease(self, dispatcher: DeliveryDispatcher, wanted: int, tokens: int = 0) -> int:
        """Lease messages if there are any, and return how many; `tokens` were taken of the rate
        limit for them."""
        body = self.body
        # Also with auto-ack: what is not sent after all goes back. It has to last
        # until the answer is made, and the consumer has no use for it.
        visibility_ms = (not body.auto_ack and body.visibility_ms) or _VISIBILITY_MS
        ask = LeaseRequest(body.group, body.consumer, wanted, visibility_ms, auto_ack=False)
        leased, revived = dispatcher.lease(ask)
        if leased is None:
            return 0
        given = messages_in(leased.pieces)
        self.messages += given
        pending = PendingLease(dispatcher, leased, min(tokens, given))
        if revived is not None:
            pending.lasting = [
                part for piece in leased.pieces for part in revived.within(piece.start, piece.end)
            ]
        self.pending.append(pending)
        return given


class PollAnswers:
    """Makes the answers to polls, and counts what they deliver."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def answer(self, poll: OpenPoll) -> Answer:
        response = proto.Response()
        response.polled.elsewhere.extend(poll.elsewhere)
        frames: list[Frame] = []
        for pending in poll.pending:
            name = pending.dispatcher.hosted.name
            pieces = pending.pieces
            response.polled.leased.add(
                partition=name.partition,
                lease=0 if poll.body.auto_ack else pending.leased.lease,
                pieces=[
                    proto.Piece(start=start, count=end - start, delivery=failures + 1)
                    for start, end, _, failures in pieces
                ],
                frames=len(pending.sent.frames),
                reasons=_packed_reasons(pending.leased.reasons, poll),
            )
            frames += pending.sent.frames
            self._count(poll.body, pending, pieces)
        return response, frames

    def _count(self, body: proto.Poll, pending: PendingLease, pieces: list[Piece]) -> None:
        name = pending.dispatcher.hosted.name
        traffic = self._counters.traffic[name.topic, name.partition]
        traffic.messages_out += sum(piece.end - piece.start for piece in pieces)
        traffic.bytes_out += sum(map(len, pending.sent.frames))
        again = sum(piece.end - piece.start for piece in pieces if piece.failures)
        shares = self._counters.shares[name.topic, name.partition, body.group]
        shares.redelivered += again
        if body.auto_ack:
            shares.acked += sum(piece.end - piece.start for piece in pieces)

    def nothing(self, poll: OpenPoll) -> Answer:
        throttled_ms = max(0, round(poll.throttled_s * 1000))
        if throttled_ms:
            self._counters.throttled[poll.body.topic] += 1
        polled = proto.Polled(throttled_ms=throttled_ms, elsewhere=poll.elsewhere)
        return proto.Response(polled=polled), ()


def _packed_reasons(reasons: Sequence[FailureReason], poll: OpenPoll) -> list[proto.FailureReason]:
    """Why messages failed before, as far as an answer has room for it."""
    found: list[proto.FailureReason] = []
    for start, end, reason in reasons:
        one = proto.FailureReason(start=start, count=end - start, reason=reason)
        poll.reason_bytes += one.ByteSize()
        if poll.reason_bytes > _REASON_BYTES_MAX:
            break
        found.append(one)
    return found
