"""What was fetched ahead: the same messages, however they are taken."""

import threading
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import DEFAULT_LIMITS, Frame, Offset, Origin, encode_batch
from quivermq.client.shared.leased_message import LeasedMessage
from quivermq.client.shared.leases import Lease
from quivermq.client.shared.poll import LeasedPiece, LeasedRun
from quivermq.client.shared.poll_result import messages_of_runs
from quivermq.client.shared.prefetch_buffer import MADE_AT_ONCE, PrefetchBuffer
from quivermq.errors import Corrupt


def lease(token: int = 1, partition: int = 0) -> Lease:
    return Lease("t", b"id", "g", partition, token, print)


def frame(first: int, count: int, priority: int = 0) -> Frame:
    values = [b"%d" % n for n in range(first, first + count)]
    encoded = encode_batch(
        values, keys=values, headers=[{"n": value} for value in values],
        origin=Origin(1, 0, 0, priority),
    )  # fmt: skip
    header = encoded.header.stamped(1, 1, Offset(first), 1_700_000_000_000)  # type: ignore[arg-type]
    return Frame(header, bytes(encoded.body))


def run(held: Lease, first: int, count: int, priority: int = 0) -> LeasedRun:
    pieces = [LeasedPiece(first, first + count, 1)]
    return LeasedRun(held, pieces, [frame(first, count, priority)])


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 7), st.integers(0, 2)), max_size=5),
    st.lists(st.integers(0, 50), max_size=8),
    st.booleans(),
)
def test_messages_are_those_of_the_poll_however_they_are_taken(
    batches: list[tuple[int, int, int]], takes: list[int], packs: bool
) -> None:
    runs, at = [], 0
    for count, priority, gap in batches:
        # A gap: its messages were delivered before, to another consumer.
        pieces = [LeasedPiece(at, at + count, 1)]
        if gap and count > 3:
            pieces = [LeasedPiece(at, at + 1, gap), LeasedPiece(at + 1 + gap, at + count, 2)]
        runs.append(LeasedRun(lease(1 + at), pieces, [frame(at, count, priority)]))
        at += count
    wanted = messages_of_runs(runs, LeasedMessage, DEFAULT_LIMITS)
    held = {each.lease for each in runs}
    buffer = PrefetchBuffer(LeasedMessage, held, packs=packs)
    assert buffer.put(runs, DEFAULT_LIMITS) == bool(wanted)
    assert buffer.leases() == {message.lease for message in wanted}
    taken: list[LeasedMessage] = []
    for most in takes:
        assert len(buffer) == len(wanted) - len(taken)
        if most:
            found = buffer.take(most)
            assert len(found) == min(most, len(wanted) - len(taken))
            taken += found
        elif (message := buffer.pop()) is not None:
            taken.append(message)
    while (message := buffer.pop()) is not None:
        taken.append(message)
    assert taken == wanted
    assert buffer.is_empty


@pytest.mark.parametrize("is_list", [False, True])
def test_messages_whose_lease_has_ended_are_not_handed_out(is_list: bool) -> None:
    first, second, third = lease(1), lease(2, 1), lease(3, 2)
    held = {first, second, third}
    buffer = PrefetchBuffer(LeasedMessage, held)
    buffer.put([run(first, 0, 2 * MADE_AT_ONCE), run(second, 0, 10)], DEFAULT_LIMITS)
    buffer.put([run(third, 0, 1)], DEFAULT_LIMITS)

    def take() -> Lease | None:
        found = buffer.take(1)[0] if is_list else buffer.pop()
        return None if found is None else found.lease

    assert buffer.pop() is not None
    # Some of its messages were made by then, and some not.
    held.remove(first)
    assert [take() for _ in range(5)] == [second] * 5
    held.remove(second)
    assert take() is third
    assert buffer.pop() is None
    assert buffer.take(5) == []


def test_a_large_list_has_no_messages_whose_lease_has_ended() -> None:
    """It is made of batches, and not of messages that were made before."""
    first, second = lease(1), lease(2, 1)
    held = {first, second}
    buffer = PrefetchBuffer(LeasedMessage, held)
    buffer.put([run(first, 0, 2 * MADE_AT_ONCE), run(second, 0, 10)], DEFAULT_LIMITS)
    assert buffer.pop() is not None
    held.remove(first)
    assert [message.lease for message in buffer.take(MADE_AT_ONCE)] == [second] * 10


def test_those_that_were_acknowledged_before_have_no_lease_to_lose() -> None:
    buffer = PrefetchBuffer(LeasedMessage, set())
    buffer.put([run(lease(token=0), 0, 10)], DEFAULT_LIMITS)
    assert buffer.pop() is not None
    assert len(buffer.take(20)) == 9


def test_a_batch_that_is_damaged_is_refused_when_it_comes() -> None:
    held = lease()
    good = run(held, 0, 100)
    body = bytearray(good.frames[0].body)
    body[:60] = bytes(60)
    bad = good._replace(frames=[Frame(good.frames[0].header, bytes(body))])
    buffer = PrefetchBuffer(LeasedMessage, {held})
    with pytest.raises(Corrupt):
        buffer.put([run(held, 100, 5), bad], DEFAULT_LIMITS)
    assert buffer.is_empty


def test_threads_that_take_at_the_same_time_share_the_messages() -> None:
    held = lease()
    buffer = PrefetchBuffer(LeasedMessage, {held})
    buffer.put([run(held, at, 1_000) for at in range(0, 20_000, 1_000)], DEFAULT_LIMITS)
    seen: list[list[int]] = [[], [], []]

    def work(number: int) -> None:
        if number:
            while (message := buffer.pop()) is not None:
                seen[number].append(message.offset)
        else:
            while messages := buffer.take(7):
                seen[number] += [message.offset for message in messages]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(chain.from_iterable(seen)) == list(range(20_000))
