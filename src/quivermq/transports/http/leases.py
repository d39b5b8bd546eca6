"""Leases over HTTP: polls them, names them so that any broker can settle them, settles them.

A client keeps no connection, so what it settles with must say everything: the number of the
consumer that polled and the token of the lease, together 32 hexadecimal digits. Every poll has a
number of its own.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from fastapi import Request

from quivermq.client import AsyncLeasedMessage, SharedConsumer, messages_of_runs
from quivermq.errors import BrokenInvariant, LeaseLost
from quivermq.intervals import intervals_of
from quivermq.transports.http.backend import (
    Backend,
    ClientGoneError,
    first_failure,
    while_connected,
)
from quivermq.transports.http.bodies import LeaseBody, PollBody, numbers_of
from quivermq.wire import proto

_SETTLED_AT_ONCE: Final = 16
_NAME: Final = "http"

Fill = Callable[[proto.Settlement], None]


class LeasedMessages(NamedTuple):
    """The messages of one poll."""

    messages: list[AsyncLeasedMessage]
    consumer: int

    def name_of(self, message: AsyncLeasedMessage) -> str:
        """The name of the message's lease; empty: it is acknowledged."""
        return lease_name(self.consumer, message.lease.token)


def lease_name(consumer: int, token: int) -> str:
    return f"{consumer:016x}{token:016x}" if token else ""


def leases_of(leased: LeasedMessages) -> list[dict[str, Any]]:
    """The leases that acknowledge these messages, as JSON shows them (`LeaseAnswer`)."""
    found: dict[str, dict[str, Any]] = {}
    for message in leased.messages:
        name = leased.name_of(message)
        if name:
            empty = {"partition": message.partition, "lease": name, "offsets": []}
            found.setdefault(name, empty)["offsets"].append(str(message.offset))
    return list(found.values())


def settlement(
    outcome: int, *, delay_ms: int | None = None, reason: str = "", visibility_ms: int = 0
) -> Fill:
    """Writes what becomes of messages into a request."""

    def fill(found: proto.Settlement) -> None:
        found.outcome = outcome  # type: ignore[assignment]  # an enum is an int
        found.reason, found.visibility_ms = reason, visibility_ms
        if delay_ms is not None:
            found.delay_ms = delay_ms
        if visibility_ms:
            # Only whole leases can be extended.
            found.ClearField("intervals")

    return fill


class Leases:
    """Polls and settlements of all HTTP clients of a broker."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def poll(
        self, request: Request, topic: str, group: str, body: PollBody
    ) -> LeasedMessages:
        """Lease messages; gives them back if the client is gone when they come."""
        consumer = self._backend.consumer()
        try:
            work = self.poll_as(consumer, topic, group, body)
            leased = await while_connected(request, work)
            if leased.messages and await request.is_disconnected():
                raise ClientGoneError("the client is gone")
        except BaseException:
            await consumer.release()
            raise
        return leased

    async def poll_as(
        self, consumer: SharedConsumer, topic: str, group: str, body: PollBody
    ) -> LeasedMessages:
        """Lease messages for a consumer."""
        asked = consumer.poll_request(
            topic,
            group,
            body.max_messages,
            body.wait,
            body.visibility,
            body.ack,
            body.start,
            _never,
        )._replace(consumer_name=body.consumer or _NAME)
        runs = await consumer.polling.poll(asked)
        limits = self._backend.core.router.limits
        return LeasedMessages(messages_of_runs(runs, AsyncLeasedMessage, limits), asked.consumer)

    async def settle(self, topic: str, group: str, leases: Sequence[LeaseBody], fill: Fill) -> None:
        """Settle messages; raises `LeaseLost` once all others are durable."""
        requests: dict[tuple[int, int], proto.Request] = {}
        for lease in leases:
            # No token is 0: this one is nobody's lease.
            consumer, token = int(lease.lease[:16], 16), int(lease.lease[16:], 16) or 1
            request = requests.setdefault((lease.partition, consumer), proto.Request())
            settle = request.settle
            settle.topic, settle.group, settle.consumer = topic, group, consumer
            found = settle.settlements.add(partition=lease.partition, lease=token)
            offsets = numbers_of(lease.offsets or ())
            for start, end in intervals_of(offsets) if offsets else ():
                found.intervals.add(start=start, end=end)
            fill(found)
        limiter = asyncio.Semaphore(_SETTLED_AT_ONCE)

        async def send(request: proto.Request) -> Any:
            async with limiter:
                return await self._backend.ask(request)

        answers = await asyncio.gather(*map(send, requests.values()), return_exceptions=True)
        failure = first_failure(answers)
        if failure is not None:
            raise failure
        lost = list(_lost(topic, requests.values(), answers))
        if lost:
            raise _lease_lost(lost)


def _lost(
    topic: str, requests: Iterable[proto.Request], answers: Sequence[Any]
) -> Iterable[tuple[str, int, int, int]]:
    for request, answer in zip(requests, answers, strict=True):
        for each in answer.settled.lost:
            of = request.settle.settlements[each.settlement]
            if not each.intervals:
                yield topic, of.partition, 0, 0
            for interval in each.intervals:
                yield topic, of.partition, interval.start, interval.end


def _lease_lost(lost: Sequence[tuple[str, int, int, int]]) -> LeaseLost:
    shown = [
        f"{topic}/{partition} " + (f"offsets {start} to {end - 1}" if end else "as a whole")
        for topic, partition, start, end in lost[:8]
    ]
    more = f"; and {len(lost) - len(shown)} more" if len(lost) > len(shown) else ""
    return LeaseLost(
        f"{'; '.join(shown)}{more} is not leased by this name any more, or never was: the lease "
        "expired or was settled, its leader failed within moments of giving it, or the group was "
        "sought. Others get these messages, or are done with them. Everything else is settled",
        lost=list(lost),
    )


async def _never(*_: object) -> None:
    raise BrokenInvariant("messages that were polled over HTTP are settled by their names")
