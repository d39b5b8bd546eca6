"""Leases of messages, and settlements that end or extend them. No I/O.

Messages that one poll brought from one partition share a lease. What a user decides about any
number of messages is gathered into one settlement for each lease.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, cast

from quivermq.client.checks import Delay, check_number, delay_seconds
from quivermq.errors import BrokenInvariant, InvalidRequest, LeaseLost
from quivermq.intervals import Interval, intervals_of
from quivermq.wire import proto

MILLISECONDS_MAX: Final = (1 << 32) - 1
REASON_BYTES_MAX: Final = 1024
_RAISED_CHARACTERS_MAX: Final = 200
"""Of the text of an exception; all of it is in the consumer's log."""

# Once here, so that no other module has to know how protobuf spells its enums.
_ACK = proto.Outcome.Value("ACK")
_NACK = proto.Outcome.Value("NACK")
_REJECT = proto.Outcome.Value("REJECT")
_RELEASE = proto.Outcome.Value("RELEASE")
_EXTEND = proto.Outcome.Value("EXTEND")

_LEASE_OF: Final = attrgetter("lease")
_OFFSET_OF: Final = attrgetter("offset")


class Lease:
    """The messages that one poll brought from one partition, for a while one consumer's own."""

    __slots__ = ("group", "partition", "reasons", "settle", "token", "topic", "topic_id", "trace")

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        group: str,
        partition: int,
        token: int,
        settle: "Callable[[Sequence[Settlement]], Any]",
        trace: str = "",
        reasons: Sequence[tuple[int, int, str]] = (),
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.group = group
        self.partition = partition
        self.token = token
        """0: the messages were acknowledged before they were delivered."""
        self.settle = settle
        """Carries settlements out: blocking or awaitable, as the client is."""
        self.trace = trace
        """The trace context of the delivery; "": it is not traced."""
        self.reasons = reasons
        """Why messages failed before: from, to, and what their consumer said; by offset."""

    def __repr__(self) -> str:
        return f"<Lease {self.token} of {self.topic}/{self.partition} to group {self.group!r}>"


class SettlementTerms(NamedTuple):
    """The outcome of messages: acknowledged, failed, rejected, released, or extended."""

    outcome: int
    delay_ms: int | None = None
    reason: str = ""
    visibility_ms: int = 0

    @property
    def ends_lease(self) -> bool:
        """The consumer no longer holds the messages."""
        return self.outcome != _EXTEND

    @property
    def is_failure(self) -> bool:
        """The messages are to come again, as failed."""
        return self.outcome == _NACK

    def fill(self, settlement: proto.Settlement) -> None:
        """Write the terms into a request."""
        settlement.outcome = self.outcome  # type: ignore[assignment]  # an enum is an int
        if self.delay_ms is not None:
            settlement.delay_ms = self.delay_ms
        settlement.reason = self.reason
        settlement.visibility_ms = self.visibility_ms


ACK: Final = SettlementTerms(_ACK)
RELEASE: Final = SettlementTerms(_RELEASE)


def nack_terms(delay: Delay | None, reason: str | None = None) -> SettlementTerms:
    """It failed: back after the delay; None: after the topic's backoff."""
    said = "" if reason is None else _checked_reason(reason)
    if delay is None:
        return SettlementTerms(_NACK, reason=said)
    delay_ms = milliseconds("delay", delay_seconds(delay), least=0)
    return SettlementTerms(_NACK, delay_ms=delay_ms, reason=said)


def failed_terms(error: BaseException) -> SettlementTerms:
    """A handler raised: the type of the exception and the first line of its text are the reason."""
    line = ""
    # Text of users: it may not even be there.
    with suppress(Exception):
        line = str(error).strip()[:_RAISED_CHARACTERS_MAX].partition("\n")[0].rstrip()
    reason = f"{type(error).__name__}: {line}" if line else type(error).__name__
    return nack_terms(None, reason[:_RAISED_CHARACTERS_MAX])


def reject_terms(reason: str) -> SettlementTerms:
    """To the dead letters."""
    return SettlementTerms(_REJECT, reason=_checked_reason(reason))


def _checked_reason(reason: str) -> str:
    if not isinstance(reason, str):
        raise InvalidRequest(f"a reason is text, not {type(reason).__name__}")
    if len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise InvalidRequest(f"a reason takes at most {REASON_BYTES_MAX:,} bytes: {reason[:40]!r}…")
    # Text that cannot travel, as of file names that are not UTF-8, is no reason to fail.
    return reason.encode(errors="replace").decode()


def extend_terms(seconds: float) -> SettlementTerms:
    """Still worked on."""
    return SettlementTerms(_EXTEND, visibility_ms=milliseconds("seconds", seconds, least=0.001))


class Settlement(NamedTuple):
    """The outcome of some messages of a lease; without intervals, of all that is left."""

    lease: Lease
    terms: SettlementTerms
    intervals: list[Interval]

    @property
    def message_count(self) -> int:
        """How many messages; 0 without intervals."""
        return sum(end - start for start, end in self.intervals)


class IsLeased(Protocol):
    """A message that was polled."""

    @property
    def offset(self) -> int: ...
    @property
    def lease(self) -> Lease: ...


def settlements_of(
    messages: IsLeased | Iterable[IsLeased], terms: SettlementTerms
) -> list[Settlement]:
    """Settlements with the same terms for one message, or for all of these: one for each lease."""
    lone = messages[0] if isinstance(messages, list) and len(messages) == 1 else messages
    # A message is a tuple, and so an iterable itself.
    if hasattr(lone, "lease"):
        return _settlements_of_one(cast("IsLeased", lone), terms)
    offsets: dict[Lease, list[int]] = {}
    try:
        for lease, several in groupby(cast("Iterable[IsLeased]", messages), _LEASE_OF):
            offsets.setdefault(lease, []).extend(map(_OFFSET_OF, several))
    except (AttributeError, TypeError) as error:
        raise InvalidRequest(f"these are not messages that were polled: {error}") from error
    return [
        Settlement(lease, terms, intervals_of(found) if terms.ends_lease else [])
        for lease, found in offsets.items()
        if is_open_to(lease, terms)
    ]


def _settlements_of_one(message: IsLeased, terms: SettlementTerms) -> list[Settlement]:
    lease, offset = message.lease, message.offset
    if not is_open_to(lease, terms):
        return []
    return [Settlement(lease, terms, [(offset, offset + 1)] if terms.ends_lease else [])]


def add_settlements(settle: proto.Settle, settlements: Sequence[Settlement]) -> None:
    """Write settlements into a request."""
    for lease, terms, intervals in settlements:
        settlement = settle.settlements.add(partition=lease.partition, lease=lease.token)
        terms.fill(settlement)
        for start, end in intervals:
            settlement.intervals.add(start=start, end=end)


def late_settlements(sent: Sequence[Settlement], settled: proto.Settled) -> list[Settlement]:
    """Those of a request that came too late, as its answer says."""
    late = []
    for each in settled.lost:
        if each.settlement >= len(sent):
            raise BrokenInvariant(f"settlement {each.settlement} of {len(sent)} was lost")
        intervals = [(interval.start, interval.end) for interval in each.intervals]
        late.append(sent[each.settlement]._replace(intervals=intervals))
    return late


def by_settler(settlements: Iterable[Settlement]) -> list[list[Settlement]]:
    """The settlements that one client or subscription sends together."""
    found: dict[Callable[[Sequence[Settlement]], Any], list[Settlement]] = {}
    for settlement in settlements:
        found.setdefault(settlement.lease.settle, []).append(settlement)
    return list(found.values())


def is_open_to(lease: Lease, terms: SettlementTerms) -> bool:
    """False if there is nothing to do; raises `InvalidRequest` if it cannot be done."""
    if lease.token:
        return True
    if terms is ACK:
        return False
    raise InvalidRequest(
        'messages that were polled with ack="auto" were acknowledged before they were delivered: '
        'poll with ack="manual" to decide about them'
    )


def lease_lost(lost: Sequence[Settlement]) -> LeaseLost:
    """The error to raise about settlements that came too late."""
    shown = [
        f"{settlement.lease.topic}/{settlement.lease.partition} {_span(settlement.intervals)}"
        for settlement in sorted(lost, key=attrgetter("lease.partition"))[:8]
    ]
    if len(lost) > len(shown):
        shown.append(f"and {len(lost) - len(shown)} more leases")
    return LeaseLost(
        f"{'; '.join(shown)} is not leased to this consumer any more: the lease expired, or its "
        "leader failed within moments of giving it, or the group was sought. Others get these "
        "messages, or are done with them. If leases expire, take fewer at a time, or extend what "
        "takes longer than the visibility",
        lost=[
            (settlement.lease.topic, settlement.lease.partition, start, end)
            for settlement in lost
            for start, end in settlement.intervals
        ],
    )


def milliseconds(name: str, seconds: float, *, least: float) -> int:
    """A duration as it travels."""
    check_number(name, seconds, least=least)
    found = round(seconds * 1000)
    if found > MILLISECONDS_MAX:
        raise InvalidRequest(f"{name} must be at most {MILLISECONDS_MAX // 1000:,} s: {seconds!r}")
    return found


def _span(intervals: Sequence[Interval]) -> str:
    if not intervals:
        return "as a whole"
    shown = [
        f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"
        for start, end in intervals[:8]
    ]
    return ", ".join([*shown, "..."] if len(intervals) > len(shown) else shown)
