"""Leases messages from whichever brokers lead the partitions of a topic.

One leader: one poll, which that broker holds until there are messages. Several: each is polled in
turn without waiting; if none has messages, all are asked to say when they have some.
"""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from quivermq.batches import Frame
from quivermq.errors import InvalidRequest, QuiverError
from quivermq.transports.grpc.call import Call
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.grpc.leases import VISIBILITY_MS, LeaseName, settle
from quivermq.transports.grpc.parts import Parts, batch_parts, with_parts
from quivermq.transports.grpc.shapes import add_messages, check_format, leased_ranges, runs_of
from quivermq.wire import proto

MESSAGES_DEFAULT: Final = 100
BYTES_DEFAULT: Final = 1 << 20
PLAIN_MESSAGES_MAX: Final = 10_000
"""Of one answer with plain messages: they are made on the event loop."""
_BEGUN_MAX: Final = 10_000
_AFRESH_S: Final = 10.0
"""The leaders are looked up again after so long; partitions may have been added, too."""
_PARTIAL_WAIT_S: Final = 0.25
"""While a leader cannot be asked, the others are not waited for longer than this at a time."""
_AGAIN_S: Final = 0.02


class Leased(NamedTuple):
    """Messages that a poll brought from one partition."""

    found: proto.Leased
    frames: list[Frame]


class Polled(NamedTuple):
    """The result of a poll."""

    leased: list[Leased]
    throttled_ms: int = 0


NOTHING: Final = Polled([])
Share = list[int]
"""The partitions that one broker leads."""


class Polling:
    """Polls for calls and sessions."""

    def __init__(self) -> None:
        self._turns = 0
        # Topics and groups of which all leaders were asked.
        self._begun: set[tuple[str, str]] = set()

    async def poll(
        self, call: Call, poll: proto.Poll, wait_s: float, partitions: Sequence[int] = ()
    ) -> Polled:
        """Lease messages of some partitions, or all, as soon as there are any."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        self._turns += 1
        while True:
            shares = await self._shares(call, poll.topic, partitions)
            if len(shares) == 1:
                wait = max(0.0, min(end - loop.time(), _AFRESH_S))
                found = await _poll_share(call, poll, shares[0], wait)
            else:
                await self._begin(call, poll, shares)
                found = await _Round(call, poll, end).work(shares)
            left = end - loop.time()
            if found.leased or left <= 0:
                return found
            if found.throttled_ms:
                await asyncio.sleep(min(left, found.throttled_ms / 1000))

    async def _shares(self, call: Call, topic: str, partitions: Sequence[int]) -> list[Share]:
        """Partitions by leader, rotated, so that each time others come first."""
        numbers = list(partitions) or list(range(await call.consumed_partitions_of(topic)))
        first = self._turns % len(numbers)
        by_leader: dict[int, Share] = {}
        for number in numbers[first:] + numbers[:first]:
            by_leader.setdefault(call.leader_of(topic, number), []).append(number)
        return list(by_leader.values())

    async def _begin(self, call: Call, poll: proto.Poll, shares: list[Share]) -> None:
        """Create the group in every partition at once, whichever leader is polled first: it gets
        all messages from here on everywhere."""
        place = (poll.topic, poll.group)
        if place in self._begun:
            return
        asked = (call.ask(_await_request(poll, share, 0.0)) for share in shares)
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        has_begun = not any(isinstance(outcome, BaseException) for outcome in outcomes)
        if has_begun and len(self._begun) < _BEGUN_MAX:
            self._begun.add(place)


class _Round:
    """One round of a poll of several leaders: each is asked once."""

    def __init__(self, call: Call, poll: proto.Poll, end: float) -> None:
        self._call = call
        self._poll = poll
        self._end = end
        self._failures: list[QuiverError] = []

    async def work(self, shares: list[Share]) -> Polled:
        found, well = await self._first_of(shares)
        if found.leased or found.throttled_ms:
            return found
        if not well:
            raise self._failures[0]
        left = self._end - asyncio.get_running_loop().time()
        if left <= 0:
            return found
        if self._failures:
            left = min(left, _PARTIAL_WAIT_S)
        ready = await self._ready(well, min(left, _AFRESH_S))
        found, _ = await self._first_of(ready)
        return found

    async def _first_of(self, shares: list[Share]) -> tuple[Polled, list[Share]]:
        """The messages of the first leader that has any; and the leaders that answered."""
        well: list[Share] = []
        for share in shares:
            try:
                found = await _poll_share(self._call, self._poll, share, 0.0)
            except QuiverError as error:
                if not error.retriable:
                    raise
                self._failures.append(error)
                continue
            if found.leased or found.throttled_ms:
                return found, well
            well.append(share)
        return NOTHING, well

    async def _ready(self, shares: list[Share], wait_s: float) -> list[Share]:
        """The partitions that have something to lease, once any has, or the time is over."""
        asking = [
            asyncio.create_task(
                self._call.ask(_await_request(self._poll, share, wait_s), wait_s=wait_s)
            )
            for share in shares
        ]
        try:
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asking:
                task.cancel()
            # Retrieves what those raised that nobody waits for any more.
            await asyncio.gather(*asking, return_exceptions=True)
        ready: list[Share] = []
        for task in done:
            if task.exception() is None:
                answer, _ = task.result()
                ready.append(list(answer.ready.partitions))
            else:
                # Its leader changes: who leads is looked up again, and not in a hot circle.
                await asyncio.sleep(_AGAIN_S)
        return [share for share in ready if share]


def _await_request(poll: proto.Poll, share: Share, wait_s: float) -> proto.Request:
    request = proto.Request()
    ask = request.await_ready
    ask.topic, ask.group, ask.start_latest = poll.topic, poll.group, poll.start_latest
    ask.partitions.extend(share)
    ask.consumer, ask.consumer_name = poll.consumer, poll.consumer_name
    ask.wait_ms = int(wait_s * 1000)
    return request


async def _poll_share(call: Call, poll: proto.Poll, share: Share, wait_s: float) -> Polled:
    request = proto.Request(poll=poll)
    del request.poll.partitions[:]
    request.poll.partitions.extend(share)
    request.poll.wait_ms = int(wait_s * 1000)
    response, sent = await call.ask(request, wait_s=wait_s)
    frames = iter(sent)
    leased = [Leased(found, list(islice(frames, found.frames))) for found in response.polled.leased]
    return Polled(leased, response.polled.throttled_ms)


def poll_of(request: api.PollRequest, consumer: int) -> proto.Poll:
    """The service's words for a poll; raises `InvalidRequest`."""
    check_format(request.format)
    if request.start not in api.Start.values():
        raise InvalidRequest(f"start {request.start} is unknown")
    wanted = request.max_messages or MESSAGES_DEFAULT
    if request.format == api.FORMAT_MESSAGES:
        wanted = min(wanted, PLAIN_MESSAGES_MAX)
    return proto.Poll(
        topic=request.topic,
        group=request.group,
        consumer=consumer,
        consumer_name=request.consumer,
        messages_max=wanted,
        bytes_max=request.max_bytes or BYTES_DEFAULT,
        visibility_ms=request.visibility_ms or VISIBILITY_MS,
        auto_ack=request.auto_ack,
        start_latest=request.start == api.START_LATEST,
    )


async def add_deliveries(
    into: api.PollResponse | api.Push, call: Call, poll: proto.Poll, polled: Polled
) -> None:
    """The leased messages, as plain ones."""
    async with call.broker.partitions.slices.turn() as turn:
        for found, frames in polled.leased:
            delivery = into.deliveries.add()
            delivery.CopyFrom(_delivery(poll, found))
            for frame, runs in zip(frames, runs_of(found.pieces, frames), strict=True):
                await add_messages(delivery, frame, runs, call.limits, turn)


def arrow_deliveries(poll: proto.Poll, polled: Polled) -> list[Parts]:
    """The leased messages, as Arrow batches."""
    return [
        with_parts(
            _delivery(poll, found),
            "batches",
            (
                batch_parts(frame, leased_ranges(runs))
                for frame, runs in zip(frames, runs_of(found.pieces, frames), strict=True)
            ),
        )
        for found, frames in polled.leased
    ]


def _delivery(poll: proto.Poll, found: proto.Leased) -> api.Delivery:
    delivery = api.Delivery(topic=poll.topic, partition=found.partition)
    if found.lease:
        delivery.lease = str(LeaseName(found.partition, poll.consumer, found.lease))
    for known in found.reasons:
        end = known.start + known.count
        delivery.reasons.add(start=known.start, end=end, reason=known.reason)
    return delivery


async def give_back(call: Call, poll: proto.Poll, polled: Polled) -> None:
    """Release leases whose messages never reached their consumer."""
    names = [
        str(LeaseName(found.partition, poll.consumer, found.lease))
        for found, _ in polled.leased
        if found.lease
    ]
    if names:
        wanted = proto.Settle(topic=poll.topic, group=poll.group)
        wanted.settlements.add(outcome=proto.RELEASE)
        await settle(call, wanted, [api.Selection(lease=name) for name in names])
