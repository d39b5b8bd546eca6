"""Leased messages as one Arrow table, as `poll_arrow` returns them: settled by masks."""

from collections.abc import Callable, Sequence
from typing import Any

from quivermq.batches import pa, pc
from quivermq.client.checks import Delay
from quivermq.client.shared.leases import (
    ACK,
    Settlement,
    SettlementTerms,
    extend_terms,
    is_open_to,
    nack_terms,
    reject_terms,
)
from quivermq.client.shared.poll_result import Rows, intervals_of_rows, mask_of
from quivermq.errors import LeaseLost

Mask = Sequence[bool] | Any
"""One bool for each row: a sequence, or a pyarrow boolean array."""


class TableSettlements:
    """A table, and which of its rows are not settled yet."""

    def __init__(
        self, table: Any, rows: list[Rows], settle: Callable[[Sequence[Settlement]], Any]
    ) -> None:
        self.table = table
        """A `pyarrow.Table`: offset, timestamp, key, value, headers, priority, partition and
        delivery_count."""
        self._rows = rows
        self._settle = settle
        self._left: Any = None
        """Rows that are not settled; None: all of them."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self):,} messages>"

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The table for any library that takes Arrow data, without a copy:
        `polars.DataFrame(batch)`, `duckdb.sql("SELECT ... FROM batch")`."""
        return self.table.__arrow_c_stream__(requested_schema)

    def _extensions(self, seconds: float) -> list[Settlement]:
        terms = extend_terms(seconds)
        return [
            Settlement(rows.lease, terms, [])
            for rows in self._rows
            if is_open_to(rows.lease, terms)
        ]

    def _settlements(self, chosen: Any, terms: SettlementTerms) -> list[Settlement]:
        """Settlements of these rows, one for each lease."""
        offsets = self.table.column("offset").combine_chunks()
        settlements = []
        for lease, first, stop in self._rows:
            if is_open_to(lease, terms):
                rows = stop - first
                found = intervals_of_rows(offsets.slice(first, rows), chosen.slice(first, rows))
                if found:
                    settlements.append(Settlement(lease, terms, found))
        return settlements

    def _mark_settled(self, chosen: Any) -> None:
        """These rows are settled."""
        left = pc.invert(chosen)
        self._left = left if self._left is None else pc.and_(self._left, left)

    def _chosen(self, mask: Mask | None) -> Any:
        """The masked rows, without those that were settled before."""
        if mask is None:
            return pa.repeat(pa.scalar(True), len(self)) if self._left is None else self._left
        chosen = mask_of(mask, len(self))
        return chosen if self._left is None else pc.and_(chosen, self._left)


class LeasedTable(TableSettlements):
    """Messages that were polled as one Arrow table.

    >>> batch = client.poll_arrow("orders", group="billing")
    >>> batch.reject(pc.equal(batch.table["value"], b""), reason="empty")
    >>> batch.ack()

    Without a mask, a call settles all rows that are not settled yet. Rows that are settled already
    are passed over.
    """

    def ack(self, mask: Mask | None = None) -> None:
        """Acknowledge these rows. Durable when this returns."""
        self._settle_rows(mask, ACK)

    def nack(
        self, mask: Mask | None = None, delay: Delay | None = None, reason: str | None = None
    ) -> None:
        """Have rows delivered again after `delay` seconds; None: after the topic's backoff."""
        self._settle_rows(mask, nack_terms(delay, reason))

    def reject(self, mask: Mask | None = None, reason: str = "") -> None:
        """Put rows that can never succeed among the dead letters at once."""
        self._settle_rows(mask, reject_terms(reason))

    def extend(self, seconds: float) -> None:
        """Make all leases end so many seconds from now."""
        self._send(self._extensions(seconds))

    def _settle_rows(self, mask: Mask | None, terms: SettlementTerms) -> None:
        chosen = self._chosen(mask)
        try:
            self._send(self._settlements(chosen, terms))
        except LeaseLost:
            # They are settled, if not by us; after other failures they can be settled again.
            self._mark_settled(chosen)
            raise
        self._mark_settled(chosen)

    def _send(self, settlements: list[Settlement]) -> None:
        if settlements:
            self._settle(settlements)


class AsyncLeasedTable(TableSettlements):
    """Messages that were polled as one Arrow table: see `quivermq.LeasedTable`."""

    async def ack(self, mask: Mask | None = None) -> None:
        """Acknowledge these rows. Durable when this returns."""
        await self._settle_rows(mask, ACK)

    async def nack(
        self, mask: Mask | None = None, delay: Delay | None = None, reason: str | None = None
    ) -> None:
        """Have rows delivered again after `delay` seconds; None: after the topic's backoff."""
        await self._settle_rows(mask, nack_terms(delay, reason))

    async def reject(self, mask: Mask | None = None, reason: str = "") -> None:
        """Put rows that can never succeed among the dead letters at once."""
        await self._settle_rows(mask, reject_terms(reason))

    async def extend(self, seconds: float) -> None:
        """Make all leases end so many seconds from now."""
        await self._send(self._extensions(seconds))

    async def _settle_rows(self, mask: Mask | None, terms: SettlementTerms) -> None:
        chosen = self._chosen(mask)
        try:
            await self._send(self._settlements(chosen, terms))
        except LeaseLost:
            # They are settled, if not by us; after other failures they can be settled again.
            self._mark_settled(chosen)
            raise
        self._mark_settled(chosen)

    async def _send(self, settlements: list[Settlement]) -> None:
        if settlements:
            await self._settle(settlements)
