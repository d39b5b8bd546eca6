"""Idempotent producers against a naive model, and the rules one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Header, Index, Kind, Offset
from quivermq.errors import BrokenInvariant, Fenced, OutOfSequence, SequenceReused, StoredBefore
from quivermq.queue import KEEP_MS, WINDOW_BATCHES, Producers, check_sequence


def header(
    sequence: int,
    count: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    at_ms: int = 0,
    offset: int = 0,
) -> Header:
    return Header(
        kind=Kind.DATA,
        index=Index(1),
        base_offset=Offset(offset),
        timestamp_ms=at_ms,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
        count=count,
    )


def comes_next(producers: Producers, batch: Header) -> bool:
    return check_sequence(batch, *producers.position(batch.producer_id))


def test_a_repeat_finds_the_offsets_of_the_first_time() -> None:
    producers = Producers()
    producers.record(header(0, 3, offset=40, at_ms=5))
    producers.record(header(3, 2, offset=90, at_ms=6))
    assert not comes_next(producers, header(0, 3))
    assert producers.repeated(header(0, 3)) == (0, 3, 40, 5, 0)
    assert producers.repeated(header(3, 2)) == (3, 2, 90, 6, 0)
    assert comes_next(producers, header(5))


def test_a_gap_is_refused_and_says_what_comes_next() -> None:
    producers = Producers()
    producers.record(header(0, 3))
    with pytest.raises(OutOfSequence, match="3 comes next") as caught:
        comes_next(producers, header(4))
    assert caught.value.expected == 3
    assert caught.value.retriable
    with pytest.raises(OutOfSequence):
        comes_next(producers, header(1, producer=8))


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_again() -> None:
    producers = Producers()
    producers.record(header(0, 3, epoch=4))
    with pytest.raises(Fenced, match="epoch 4"):
        comes_next(producers, header(3, epoch=3))
    assert comes_next(producers, header(0, epoch=5))
    producers.record(header(0, epoch=5))
    assert producers.position(7) == (5, 1)


def test_a_repeat_with_other_messages_or_from_long_ago_is_refused() -> None:
    producers = Producers()
    for number in range(WINDOW_BATCHES + 5):
        producers.record(header(number))
    with pytest.raises(StoredBefore, match="nobody remembers where"):
        producers.repeated(header(4))
    assert producers.repeated(header(5)).sequence == 5
    with pytest.raises(SequenceReused, match="another batch"):
        producers.repeated(header(100, count=2))
    # It reaches into what is remembered, where no such batch begins.
    with pytest.raises(SequenceReused):
        producers.repeated(header(4, count=2))


def test_a_number_of_a_producer_that_nobody_knows_is_no_repeat() -> None:
    with pytest.raises(SequenceReused):
        Producers().repeated(header(3))


def test_producers_are_forgotten_a_day_after_their_last_use_by_the_time_in_entries() -> None:
    producers = Producers()
    producers.record(header(0, producer=1, at_ms=0))
    producers.record(header(0, producer=2, at_ms=10))
    producers.record(header(1, producer=1, at_ms=20))
    producers.record(header(0, producer=3, at_ms=KEEP_MS + 15))
    assert [producers.knows(n) for n in (1, 2, 3)] == [True, False, True]
    producers.record(header(0, producer=0, at_ms=KEEP_MS + 20))
    assert not producers.knows(1)


def test_a_batch_that_was_not_checked_is_a_broken_invariant() -> None:
    producers = Producers()
    producers.record(header(0))
    with pytest.raises(BrokenInvariant):
        producers.record(header(5))


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 9), st.integers(1, 3)),
        max_size=60,
    )
)
def test_any_mix_of_producers_is_judged_as_a_plain_list_judges_it(calls) -> None:
    producers, stored = Producers(), []
    for number, (producer, epoch, sequence, count) in enumerate(calls):
        batch = header(sequence, count, producer=producer, epoch=epoch, offset=number, at_ms=number)
        mine = [b for b in stored if b.producer_id == producer]
        newest = max((b.producer_epoch for b in mine), default=0)
        same = [b for b in mine if b.producer_epoch == epoch]
        expected = max((b.sequence + b.count for b in same), default=0)
        try:
            fresh = comes_next(producers, batch)
        except Fenced:
            assert epoch < newest
        except OutOfSequence as error:
            assert epoch >= newest
            assert error.expected == expected < sequence
        else:
            assert epoch >= newest
            assert fresh == (sequence == expected)
            if fresh:
                producers.record(batch)
                stored.append(batch)
    producers.validate()
    again = Producers.unpack(memoryview(producers.pack()))
    assert again.pack() == producers.pack()
    assert {n: again.position(n) for n in range(4)} == {n: producers.position(n) for n in range(4)}


def test_a_producer_that_was_forgotten_after_its_batch_was_proposed_goes_on() -> None:
    producers = Producers()
    producers.record(header(0, 3))
    producers.record(header(3, 2, at_ms=KEEP_MS))
    assert producers.position(7) == (0, 5)
    producers.record(header(0, producer=8, at_ms=2 * KEEP_MS))
    producers.record(header(5, at_ms=2 * KEEP_MS))
    assert producers.position(7) == (0, 6)
    producers.validate()
