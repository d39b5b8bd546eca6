"""Intervals of offsets: the same messages, however they are gathered, cut and masked."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, Frame, Offset, Origin, encode_batch
from quivermq.client.shared.held_leases import HeldLeases, LeaseSource
from quivermq.client.shared.leased_message import LeasedMessage
from quivermq.client.shared.leases import (
    ACK,
    Lease,
    lease_lost,
    nack_terms,
    reject_terms,
    settlements_of,
)
from quivermq.client.shared.poll import LeasedPiece, LeasedRun
from quivermq.client.shared.poll_result import intervals_of_rows, messages_of_runs, table_of_runs
from quivermq.errors import InvalidRequest
from quivermq.intervals import intervals_of


def ignore(_: object) -> None:
    raise AssertionError("nothing is settled here")


LEASE = Lease("t", b"id", "g", 3, 7, ignore)


def batch(first: int, count: int) -> Frame:
    frame = encode_batch([b"%d" % n for n in range(first, first + count)], origin=Origin(1, 0))
    header = frame.header.stamped(1, 1, Offset(first), 1_700_000_000_000)  # type: ignore[arg-type]
    return Frame(header, bytes(frame.body))


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_masks_become_the_intervals_of_their_offsets(mask: list[bool]) -> None:
    offsets = [2 * n if n > 20 else n for n in range(len(mask))]
    chosen = [offset for offset, is_in in zip(offsets, mask, strict=True) if is_in]
    found = intervals_of_rows(pa.array(offsets, pa.int64()), pa.array(mask))
    assert found == (intervals_of(chosen) if chosen else [])


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.sets(st.integers(0, 59), min_size=1),
    st.integers(1, 3),
)
def test_whatever_pieces_are_leased_of_batches_come_out(
    sizes: list[int], leased: set[int], deliveries: int
) -> None:
    frames = []
    end = 0
    for size in sizes:
        frames.append(batch(end, size))
        end += size
    wanted = sorted(offset for offset in leased if offset < end)
    # Neighbours that were delivered equally often may be one piece, across batches, or several.
    pieces = [
        LeasedPiece(start + cut, min(stop, start + cut + 5), 1 + start % deliveries)
        for start, stop in (intervals_of(wanted) if wanted else [])
        for cut in range(0, stop - start, 5)
    ]
    count_of = {each: piece.delivery for piece in pieces for each in range(piece.start, piece.end)}
    leased_runs = [LeasedRun(LEASE, pieces, frames)]
    messages = messages_of_runs(leased_runs, LeasedMessage, DEFAULT_LIMITS)
    assert [message.offset for message in messages] == wanted
    assert [message.value for message in messages] == [b"%d" % offset for offset in wanted]
    assert [message.delivery_count for message in messages] == [count_of[each] for each in wanted]
    assert all(message.lease is LEASE and message.partition == 3 for message in messages)
    table, (rows,) = table_of_runs(leased_runs, DEFAULT_LIMITS)
    assert table["offset"].to_pylist() == wanted
    assert table["value"].to_pylist() == [b"%d" % offset for offset in wanted]
    assert table["delivery_count"].to_pylist() == [count_of[each] for each in wanted]
    assert (rows.lease, rows.first, rows.stop) == (LEASE, 0, len(wanted))


def test_what_is_not_leased_cannot_be_settled() -> None:
    with pytest.raises(InvalidRequest, match="not messages that were polled"):
        settlements_of([b"value"], ACK)  # type: ignore[list-item]


@pytest.mark.parametrize("reason", [7, "x" * 2000])
def test_reasons_are_short_texts(reason: str) -> None:
    with pytest.raises(InvalidRequest, match="reason"):
        reject_terms(reason)


@pytest.mark.parametrize("delay", [-1, "soon", float("nan"), 1e9])
def test_delays_are_seconds(delay: float) -> None:
    with pytest.raises(InvalidRequest, match="delay"):
        nack_terms(delay)


def test_the_story_of_lost_leases_is_bounded() -> None:
    (settlement,) = settlements_of([_message(2 * n) for n in range(50)], ACK)
    story = str(lease_lost([settlement] * 20))
    assert "t/3 offset 0, offset 2" in story
    assert "and 12 more leases" in story
    assert len(story) < 2000


def test_a_reason_is_measured_in_bytes() -> None:
    assert reject_terms("é" * 512).reason == "é" * 512
    with pytest.raises(InvalidRequest, match="1,024 bytes"):
        reject_terms("é" * 513)


def _message(offset: int) -> LeasedMessage:
    return LeasedMessage("t", 3, offset, None, b"", {}, 0, 0, 1, LEASE)


def test_leases_that_ended_do_not_gather() -> None:
    held, source = HeldLeases(), LeaseSource("t", "g", 0)
    for token in range(1, 100):
        held.add(source, token, [(token, token + 1)], until=token + 10.0, now=float(token))
    assert [len(leases) for leases in held._held.values()] == [10]
