"""Names leases for clients, and settles them: acks, nacks, extensions, rejections, releases.

The name of a lease holds all that a settlement needs: the partition, and the two numbers that only
its consumer knows. So settlements may go to any broker, and by any connection.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from itertools import islice
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class)
from typing import Final, NamedTuple

from quivermq.errors import InvalidRequest, LeaseLost, TooLarge
from quivermq.intervals import intervals_of
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto

VISIBILITY_MS: Final = 30_000
_NAME: Final = Struct(">BIQQ")
_VERSION: Final = 1
_CONSUMER_BITS: Final = 63
_SELECTIONS_MAX: Final = 1_000
_PLACES_MAX: Final = 10_000
"""Offsets and ranges of one request."""


class LeaseName(NamedTuple):
    """The parts of a lease's name."""

    partition: int
    consumer: int
    lease: int

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(_NAME.pack(_VERSION, *self)).decode()

    @classmethod
    def parse(cls, text: str) -> "LeaseName":
        try:
            version, *parts = _NAME.unpack(base64.b64decode(text, altchars=b"-_", validate=True))
        except (binascii.Error, StructError, ValueError) as error:
            raise _unknown(text) from error
        if version != _VERSION:
            raise _unknown(text)
        return cls(*parts)


def _unknown(text: str) -> InvalidRequest:
    return InvalidRequest(f"{text[:50]!r} is not a lease: pass it as it came with the messages")


def consumer_number(group: str, name: str) -> int:
    """The number of a consumer: the same for the same name at every broker, else a random one."""
    if not name:
        return secrets.randbits(_CONSUMER_BITS) or 1
    digest = hashlib.blake2b(f"{group}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> (64 - _CONSUMER_BITS) or 1


class LostLeases(LeaseLost):
    """Lost leases, by the names that their consumer knows."""

    def __init__(self, lost: Sequence[api.Selection]) -> None:
        super().__init__(
            f"{len(lost)} of the leases are not the caller's any more: they expired, their leader "
            "failed within moments of giving them, or the group was sought; the messages go to "
            "others. All other messages are settled"
        )
        self.selections = lost


async def settle(call: Call, request: proto.Settle, selections: Sequence[api.Selection]) -> None:
    """Settle messages, each partition at its leader; `request` has the topic, the group, and one
    settlement that says what became of them. Raises `LostLeases` once all others are durable."""
    _check_sizes(selections)
    by_place: dict[tuple[int, int], list[api.Selection]] = {}
    for selection in selections:
        name = LeaseName.parse(selection.lease)
        by_place.setdefault((name.partition, name.consumer), []).append(selection)
    if not by_place:
        raise InvalidRequest("name at least one lease")
    outcomes = await asyncio.gather(
        *(
            _settle_at(call, request, partition, consumer, found)
            for (partition, consumer), found in by_place.items()
        ),
        return_exceptions=True,
    )
    lost: list[api.Selection] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            # What cannot be settled did not keep the others from it.
            raise outcome
        lost += outcome
    if lost:
        raise LostLeases(lost)


def _check_sizes(selections: Sequence[api.Selection]) -> None:
    """Before any of them is looked at: they are read on the event loop."""
    if len(selections) > _SELECTIONS_MAX:
        raise TooLarge(
            f"{len(selections):,} leases in one request are above the limit of {_SELECTIONS_MAX:,}"
        )
    places = sum(len(each.offsets) + len(each.ranges) for each in selections)
    if places > _PLACES_MAX:
        raise TooLarge(
            f"{places:,} offsets and ranges in one request are above the limit of {_PLACES_MAX:,}: "
            "name ranges, or whole leases"
        )


async def _settle_at(
    call: Call,
    wanted: proto.Settle,
    partition: int,
    consumer: int,
    selections: Sequence[api.Selection],
) -> list[api.Selection]:
    request = proto.Request()
    body = request.settle
    body.topic, body.group, body.consumer = wanted.topic, wanted.group, consumer
    for selection in selections:
        settlement = body.settlements.add()
        settlement.CopyFrom(wanted.settlements[0])
        settlement.partition = partition
        settlement.lease = LeaseName.parse(selection.lease).lease
        for part in selection.ranges:
            settlement.intervals.add(start=part.start, end=part.end)
        if selection.offsets:
            for start, end in intervals_of(list(selection.offsets)):
                settlement.intervals.add(start=start, end=end)
    response, _ = await call.ask(request)
    return [
        api.Selection(
            lease=selections[lost.settlement].lease,
            ranges=[api.OffsetRange(start=part.start, end=part.end) for part in lost.intervals],
        )
        for lost in response.settled.lost
    ]


Settlement = (
    api.AckRequest | api.NackRequest | api.ExtendRequest | api.RejectRequest | api.ReleaseRequest
)


async def settle_request(call: Call, request: Settlement, group: str = "") -> None:
    """Carry out a settlement; `group` is that of the session."""
    wanted = proto.Settle(topic=request.topic, group=request.group or group)
    settlement = wanted.settlements.add()
    match request:
        case api.AckRequest():
            settlement.outcome = proto.ACK
        case api.NackRequest():
            settlement.outcome = proto.NACK
            if request.HasField("delay_ms"):
                settlement.delay_ms = request.delay_ms
            settlement.reason = request.reason
        case api.RejectRequest():
            settlement.outcome, settlement.reason = proto.REJECT, request.reason
        case api.ReleaseRequest():
            settlement.outcome = proto.RELEASE
        case api.ExtendRequest():
            settlement.outcome = proto.EXTEND
            settlement.visibility_ms = request.visibility_ms or VISIBILITY_MS
            # One more than may be, so that it shows.
            leases = islice(request.leases, _SELECTIONS_MAX + 1)
            wholes = [api.Selection(lease=lease) for lease in leases]
            await settle(call, wanted, wholes)
            return
    await settle(call, wanted, request.selections)
