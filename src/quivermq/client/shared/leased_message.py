"""Leased messages, as polls and subscriptions return them: each can be settled by itself."""

from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple

from quivermq.batches import content_type_of
from quivermq.client.checks import Delay
from quivermq.client.models import expires_of, short
from quivermq.client.shared.leases import (
    ACK,
    Lease,
    Settlement,
    SettlementTerms,
    extend_terms,
    is_open_to,
    nack_terms,
    reject_terms,
)


class LeasedFields(NamedTuple):
    """One message as it was delivered to a group."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, bytes]
    timestamp: int
    """Milliseconds since 1970, UTC: the producer's own, else when the leader took it."""
    priority: int
    delivery_count: int
    """From 1; more than 1 if it failed before."""
    lease: Lease
    """Shared with the others that the same poll brought from the same partition."""

    @property
    def data(self) -> Any:
        """The value as `deserializer` decodes it; without one, the value. Raises what that
        raises."""
        return self.value

    @property
    def time(self) -> datetime:
        """`timestamp` as a datetime in UTC."""
        return datetime.fromtimestamp(self.timestamp / 1000, UTC)

    @property
    def last_reason(self) -> str | None:
        """Why it failed before, if a consumer said so: the reason of its last `nack`, or what a
        handler raised. Brokers remember the last thousand for each group and partition."""
        known = self.lease.reasons
        at = bisect_right(known, self.offset, key=itemgetter(0)) if known else 0
        return known[at - 1][2] if at and self.offset < known[at - 1][1] else None

    @property
    def content_type(self) -> str | None:
        """As its producer named it, in the header `content-type`."""
        return content_type_of(self.headers)

    @property
    def expires(self) -> datetime | None:
        """When its time to live is over; None: it has none."""
        return expires_of(self.headers)

    def settlement(self, terms: SettlementTerms) -> list[Settlement]:
        """The settlement of this message; empty: it is settled already."""
        if not is_open_to(self.lease, terms):
            return []
        intervals = [(self.offset, self.offset + 1)] if terms.ends_lease else []
        return [Settlement(self.lease, terms, intervals)]

    def __repr__(self) -> str:
        key = "" if self.key is None else f" key={short(self.key)}"
        again = "" if self.delivery_count == 1 else f" delivery {self.delivery_count}"
        place = f"{self.topic}/{self.partition}@{self.offset}"
        return f"<{type(self).__name__} {place}{key} {short(self.value)}{again}>"


class LeasedMessage(LeasedFields):
    """A message that was polled, and is this consumer's until its lease ends.

    >>> for message in client.poll("orders", group="billing"):
    ...     print(message.value)
    ...     message.ack()
    """

    __slots__ = ()

    def ack(self) -> None:
        """Acknowledge it: the group never gets it again. Durable when this returns."""
        self._settle(ACK)

    def nack(self, delay: Delay | None = None, reason: str | None = None) -> None:
        """Have it delivered again after `delay` seconds; None: after the topic's backoff. The
        reason is kept: the next delivery has it as `last_reason`, and the dead letter tells it."""
        self._settle(nack_terms(delay, reason))

    def reject(self, reason: str = "") -> None:
        """Put a message that can never succeed among the dead letters at once."""
        self._settle(reject_terms(reason))

    def extend(self, seconds: float) -> None:
        """Make its lease, which it shares with the messages polled with it from its partition, end
        so many seconds from now."""
        self._settle(extend_terms(seconds))

    def _settle(self, terms: SettlementTerms) -> None:
        settlements = self.settlement(terms)
        if settlements:
            self.lease.settle(settlements)


class AsyncLeasedMessage(LeasedFields):
    """A message that was polled, and is this consumer's until its lease ends.

    >>> for message in await client.poll("orders", group="billing"):
    ...     await message.ack()
    """

    __slots__ = ()

    async def ack(self) -> None:
        """Acknowledge it: the group never gets it again. Durable when this returns."""
        await self._settle(ACK)

    async def nack(self, delay: Delay | None = None, reason: str | None = None) -> None:
        """Have it delivered again after `delay` seconds; None: after the topic's backoff. The
        reason is kept: the next delivery has it as `last_reason`, and the dead letter tells it."""
        await self._settle(nack_terms(delay, reason))

    async def reject(self, reason: str = "") -> None:
        """Put a message that can never succeed among the dead letters at once."""
        await self._settle(reject_terms(reason))

    async def extend(self, seconds: float) -> None:
        """Make its lease, which it shares with the messages polled with it from its partition, end
        so many seconds from now."""
        await self._settle(extend_terms(seconds))

    async def _settle(self, terms: SettlementTerms) -> None:
        settlements = self.settlement(terms)
        if settlements:
            await self.lease.settle(settlements)
