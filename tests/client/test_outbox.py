"""Settlements on their way from threads to the event loop: all of them, in their order."""

import asyncio
from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from quivermq.client.shared.delivery_run import DeliveryRun
from quivermq.client.shared.leased_message import LeasedMessage
from quivermq.client.shared.leases import (
    ACK,
    RELEASE,
    Lease,
    Settlement,
    SettlementTerms,
    extend_terms,
    nack_terms,
    settlements_of,
)
from quivermq.client.shared.outbox import Entry, Handled, SettlementOutbox

LEASES = [Lease("t", b"id", "g", partition, 7, print) for partition in range(2)]
ALL_TERMS = [ACK, RELEASE, nack_terms(1.0), nack_terms(2.0), extend_terms(5.0)]

Outcome = tuple[Lease, SettlementTerms, int]
"""Of one message; -1: of all that is left of the lease."""


class Settled:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.settlements: list[Settlement] = []

    def finish(self, done: Sequence[Handled]) -> None:
        self.outcomes += [(message.lease, terms, message.offset) for message, terms in done]

    def enqueue(self, settlements: Sequence[Settlement]) -> None:
        self.settlements += settlements
        self.outcomes += outcomes_of(settlements)

    def look_at_runs(self) -> Sequence[tuple[DeliveryRun, int]]:
        return []

    def acknowledge_run(self, run: DeliveryRun, until: int) -> None:
        offsets = range(run.acknowledged, until)
        self.outcomes += [(run.lease, ACK, offset) for offset in offsets]
        run.acknowledged = until


def outcomes_of(settlements: Sequence[Settlement]) -> Iterator[Outcome]:
    for lease, terms, intervals in settlements:
        for start, end in intervals:
            yield from ((lease, terms, offset) for offset in range(start, end))
        if not intervals:
            yield lease, terms, -1


def message(lease: Lease, offset: int) -> LeasedMessage:
    return LeasedMessage("t", lease.partition, offset, None, b"", {}, 0, 0, 1, lease)


def sent(entries: Sequence[Entry]) -> Settled:
    async def put_all() -> Settled:
        settled = Settled()
        outbox = SettlementOutbox(settled, lambda: False)
        for entry in entries:
            outbox.put(entry)
        await asyncio.sleep(0)
        return settled

    return asyncio.run(put_all())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alone", "run", "handled", "list"]), st.sampled_from(LEASES),
            st.sampled_from(ALL_TERMS), st.integers(0, 9), st.sampled_from([1, 1, 2, 5]),
            st.sampled_from([1, 1, 2]),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_every_message_is_settled_once_as_it_was_said_and_in_order(
    said: list[tuple[str, Lease, SettlementTerms, int, int, int]],
) -> None:
    entries: list[Entry] = []
    wanted: list[Outcome] = []
    for kind, lease, terms, first, count, step in said:
        several = [message(lease, first + step * n) for n in range(count)]
        if kind == "alone":
            entries += several
            wanted += outcomes_of(settlements_of(several, ACK))
            # What follows is not gathered with them: in which order these are settled is all one.
            entries.append([])
        elif kind == "run":
            row = [message(lease, first + n) for n in range(count)]
            entries.append(DeliveryRun(row))
            wanted += [(lease, ACK, each.offset) for each in row]
        elif kind == "handled":
            entries += [(each, terms) for each in several]
            wanted += [(lease, terms, each.offset) for each in several]
        else:
            settlements = settlements_of(several, terms)
            wanted += outcomes_of(settlements)
            entries.append(settlements)
    assert sent(entries).outcomes == wanted


def test_a_run_is_acknowledged_behind_what_its_handler_failed_at() -> None:
    first, _ = LEASES
    run = DeliveryRun([message(first, at) for at in range(4)])
    failed: Handled = (message(first, 1), nack_terms(1.0))

    class Handling(Settled):
        """Its handler goes on while it is looked at."""

        def look_at_runs(self) -> Sequence[tuple[DeliveryRun, int]]:
            if run.acknowledged:
                return []
            outbox.put(failed)
            return [(run, 2)]

    async def fetch() -> list[Outcome]:
        nonlocal outbox
        settled = Handling()
        outbox = SettlementOutbox(settled, lambda: False)
        outbox.empty()
        outbox.put(run)
        outbox.empty()
        return settled.outcomes

    outbox: SettlementOutbox
    assert asyncio.run(fetch()) == [
        (first, nack_terms(1.0), 1), (first, ACK, 0), (first, ACK, 1),
        (first, ACK, 2), (first, ACK, 3),
    ]  # fmt: skip


def test_messages_alone_in_a_row_are_settled_as_one() -> None:
    first, second = LEASES
    entries: list[Entry] = [message(first, at) for at in range(1_000)]
    entries += [message(second, at) for at in (7, 8, 10)]
    assert sent(entries).settlements == [
        Settlement(first, ACK, [(0, 1_000)]),
        Settlement(second, ACK, [(7, 9), (10, 11)]),
    ]


def test_what_failed_is_not_settled_with_what_was_acknowledged_before() -> None:
    first, _ = LEASES
    entries: list[Entry] = [
        settlements_of(message(first, 0), ACK), settlements_of(message(first, 1), nack_terms(1.0)),
    ]  # fmt: skip
    assert sent(entries).settlements == [
        Settlement(first, ACK, [(0, 1)]), Settlement(first, nack_terms(1.0), [(1, 2)]),
    ]  # fmt: skip


def test_small_lists_in_a_row_are_settled_as_one() -> None:
    first, second = LEASES
    entries = [settlements_of([message(first, at), message(first, at + 1)], ACK)
               for at in range(0, 1_000, 2)]  # fmt: skip
    entries.append(settlements_of(message(first, 2_000), ACK))
    entries.append(settlements_of(message(second, 2_001), ACK))
    entries.append(settlements_of([message(second, at) for at in (2_002, 2_004)], ACK))
    assert sent(entries).settlements == [
        Settlement(first, ACK, [(0, 1_000)]),
        Settlement(first, ACK, [(2_000, 2_001)]),
        Settlement(second, ACK, [(2_001, 2_003), (2_004, 2_005)]),
    ]
