"""Idempotent producers against a naive model, and the rules one by one."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import FrameKind, Header, Index, Offset
from quivermq.errors import (
    BrokenInvariant,
    Fenced,
    InvalidRequest,
    OutOfSequence,
    SequenceReused,
    StoredBefore,
)
from quivermq.queue import (
    PRODUCERS_MAX,
    PRODUCERS_MIN,
    WINDOW_BATCHES,
    WINDOW_BATCHES_MIN,
    ProducerTable,
)
from quivermq.queue.producers import BATCHES_MAX, Bounds

HOUR_MS = 3_600_000


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
        kind=FrameKind.DATA,
        index=Index(1),
        base_offset=Offset(offset),
        timestamp_ms=at_ms,
        producer_id=producer,
        producer_epoch=epoch,
        sequence=sequence,
        count=count,
    )


def remembered(producers: ProducerTable, producer: int, up_to: int) -> list[int]:
    """Which of the first batches, of one message each, are recognised."""
    return [n for n in range(up_to) if found(producers, header(n, producer=producer))]


def found(producers: ProducerTable, batch: Header) -> list[int]:
    try:
        return [producers.find_repeat(batch).base_offset]
    except InvalidRequest:
        return []


def comes_next(producers: ProducerTable, batch: Header) -> bool:
    return producers.check(batch)


def test_a_repeat_finds_the_offsets_of_the_first_time() -> None:
    producers = ProducerTable()
    producers.record(header(0, 3, offset=40, at_ms=5))
    producers.record(header(3, 2, offset=90, at_ms=6))
    assert not comes_next(producers, header(0, 3))
    assert producers.find_repeat(header(0, 3)) == (0, 3, 40, 5, 0)
    assert producers.find_repeat(header(3, 2)) == (3, 2, 90, 6, 0)
    assert comes_next(producers, header(5))


def test_a_gap_is_refused_and_says_what_comes_next() -> None:
    producers = ProducerTable()
    producers.record(header(0, 3))
    with pytest.raises(OutOfSequence, match="3 comes next") as caught:
        comes_next(producers, header(4))
    assert caught.value.expected == 3
    assert caught.value.retriable
    with pytest.raises(OutOfSequence):
        comes_next(producers, header(1, producer=8))


def test_an_older_epoch_is_fenced_and_a_newer_one_starts_again() -> None:
    producers = ProducerTable()
    producers.record(header(0, 3, epoch=4))
    with pytest.raises(Fenced, match="epoch 4"):
        comes_next(producers, header(3, epoch=3))
    assert comes_next(producers, header(0, epoch=5))
    producers.record(header(0, epoch=5))
    assert producers.position(7) == (5, 1)


def test_a_repeat_with_other_messages_or_from_long_ago_is_refused() -> None:
    producers = ProducerTable()
    for number in range(WINDOW_BATCHES + 5):
        producers.record(header(number))
    with pytest.raises(StoredBefore, match="its offset is not known"):
        producers.find_repeat(header(4))
    assert producers.find_repeat(header(5)).sequence == 5
    with pytest.raises(SequenceReused, match="another batch"):
        producers.find_repeat(header(100, count=2))
    # It reaches into what is remembered, where no such batch begins.
    with pytest.raises(SequenceReused):
        producers.find_repeat(header(4, count=2))


def test_a_sequence_number_of_an_unknown_producer_is_no_repeat() -> None:
    with pytest.raises(SequenceReused):
        ProducerTable().find_repeat(header(3))


@pytest.mark.parametrize("jump_ms", [25 * HOUR_MS, 10**14, -(10**12), 10_000 * 24 * HOUR_MS])
def test_no_clock_makes_a_producer_forgotten(jump_ms: int) -> None:
    producers = ProducerTable()
    now_ms = 1_750_000_000_000
    producers.record(header(0, producer=1, at_ms=now_ms))
    producers.record(header(0, producer=2, at_ms=max(0, now_ms + jump_ms)))
    producers.record(header(0, producer=3, at_ms=now_ms))
    assert not comes_next(producers, header(0, producer=1))
    assert producers.find_repeat(header(0, producer=1)).timestamp_ms == now_ms


def test_the_producer_idle_longest_makes_room_for_a_new_one() -> None:
    bounds = Bounds(producers=3)
    producers = ProducerTable(bounds)
    for producer in (1, 2, 3, 1):
        sequence = producers.position(producer)[1]
        producers.record(header(sequence, producer=producer))
    with pytest.raises(OutOfSequence) as caught:
        producers.check(header(1, producer=4))
    assert not caught.value.may_be_forgotten, "nobody was forgotten so far"
    producers.record(header(0, producer=4))
    assert [producers.knows(n) for n in (1, 2, 3, 4)] == [True, False, True, True]
    producers.validate()
    for each in (producers, ProducerTable.unpack(memoryview(producers.pack()), bounds)):
        with pytest.raises(OutOfSequence, match="perhaps this one too") as caught:
            each.check(header(1, producer=2))
        assert (caught.value.expected, caught.value.may_be_forgotten) == (0, True)
        with pytest.raises(OutOfSequence) as caught:
            each.check(header(3, producer=1))
        assert not caught.value.may_be_forgotten


def test_windows_of_those_idle_longest_shrink_first_and_not_below_the_least() -> None:
    producers = ProducerTable(Bounds(window=8, window_min=3, batches=20))
    for producer in (1, 2, 3):
        for sequence in range(8):
            producers.record(header(sequence, producer=producer))
    # 24 were stored, 20 are remembered: four of the producer that is idle longest are gone.
    assert [remembered(producers, n, 8) for n in (1, 2, 3)] == [
        [4, 5, 6, 7],
        [*range(8)],
        [*range(8)],
    ]
    for sequence in range(8, 13):
        producers.record(header(sequence, producer=3))
    assert remembered(producers, 1, 8) == [4, 5, 6, 7], "its own oldest went"
    for sequence in range(3):
        producers.record(header(sequence, producer=4))
    assert remembered(producers, 1, 8) == [5, 6, 7]
    assert remembered(producers, 2, 8) == [2, 3, 4, 5, 6, 7]
    producers.validate()


def test_what_is_promised_of_many_producers_holds() -> None:
    """With so many producers that all windows are at their least, those are whole."""
    producers = ProducerTable()
    for sequence in range(WINDOW_BATCHES_MIN):
        for producer in range(1, PRODUCERS_MIN + 1):
            producers.record(header(sequence, producer=producer))
    assert (len(producers), producers.batches) == (PRODUCERS_MIN, BATCHES_MAX)
    assert remembered(producers, 1, WINDOW_BATCHES_MIN) == [*range(WINDOW_BATCHES_MIN)]
    producers.record(header(0, producer=PRODUCERS_MIN + 1))
    assert [producers.knows(n) for n in (1, 2)] == [False, True]
    for producer in range(10_001, 10_001 + PRODUCERS_MAX):
        producers.record(header(0, producer=producer))
    assert len(producers) == producers.batches == PRODUCERS_MAX
    producers.validate()


def test_memory_and_a_checkpoint_are_bounded_for_any_number_of_producers() -> None:
    """What 1,000 producers with 1,024 batches each would take 270 MB for, as objects."""
    tracemalloc.start()
    try:
        producers = ProducerTable()
        for producer in range(1, PRODUCERS_MAX + 1):
            for sequence in range(12 if producer <= PRODUCERS_MIN else 1):
                producers.record(header(sequence, producer=producer))
        for _ in range(WINDOW_BATCHES * 2):
            for producer in range(1, 9):
                producers.record(header(producers.position(producer)[1], producer=producer))
        memory, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert producers.size_bytes == len(producers.pack()) < 2.5 * 2**20
    assert memory < 7 * 2**20


def test_a_batch_that_was_not_checked_is_a_broken_invariant() -> None:
    producers = ProducerTable()
    producers.record(header(0))
    with pytest.raises(BrokenInvariant):
        producers.record(header(5))


class NaiveProducers:
    """Everything that was stored, and what is remembered of it worked out anew each time."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.kept: dict[int, list[Header]] = {}
        """Least recently used first."""

    def store(self, batch: Header) -> None:
        bounds, kept = self.bounds, self.kept
        mine = kept.pop(batch.producer_id, [])
        if mine and mine[0].producer_epoch < batch.producer_epoch:
            mine = []
        if not mine and len(kept) >= bounds.producers:
            del kept[next(iter(kept))]
        kept[batch.producer_id] = [*mine, batch][-bounds.window :]
        if sum(map(len, kept.values())) > bounds.batches:
            long = [n for n, batches in kept.items() if len(batches) > bounds.window_min]
            if long:
                del kept[long[0]][0]
            else:
                del kept[next(iter(kept))]


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 2), st.integers(0, 12), st.integers(1, 2)),
        max_size=120,
    ),
    st.builds(Bounds, st.integers(4, 6), st.integers(1, 3), st.integers(4, 14), st.integers(2, 5)),
)
def test_any_mix_of_producers_is_judged_as_a_plain_list_judges_it(calls, bounds) -> None:
    producers, naive = ProducerTable(bounds), NaiveProducers(bounds)
    for number, (producer, epoch, back, count) in enumerate(calls):
        mine = naive.kept.get(producer, [])
        newest = mine[-1].producer_epoch if mine else 0
        same = [b for b in mine if b.producer_epoch == epoch]
        expected = same[-1].sequence + same[-1].count if same else 0
        # Mostly what comes next, else a repeat, or a gap.
        sequence = expected if back > 4 else max(0, expected - back + 1)
        batch = header(sequence, count, producer=producer, epoch=epoch, offset=number, at_ms=number)
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
                naive.store(batch)
            else:
                first = [b for b in mine if (b.sequence, b.count) == (sequence, count)]
                assert found(producers, batch) == [b.base_offset for b in first]
    producers.validate()
    again = ProducerTable.unpack(memoryview(producers.pack()), bounds)
    again.validate()
    assert again.pack() == producers.pack()
    assert producers.size_bytes == len(producers.pack())
    assert [n for n in range(8) if again.knows(n)] == sorted(naive.kept)
    for batches in naive.kept.values():
        assert [found(again, b) for b in batches] == [[b.base_offset] for b in batches]


def test_replicas_go_on_alike_from_a_checkpoint() -> None:
    """What is forgotten next follows from what a checkpoint holds."""
    bounds = Bounds(window=6, window_min=2, batches=15, producers=6)
    dice = Random(5)
    left, right = ProducerTable(bounds), ProducerTable(bounds)
    for number in range(2_000):
        producer = dice.randint(1, 9)
        batch = header(left.position(producer)[1], producer=producer, offset=number)
        for each in (left, right):
            each.record(batch)
        if dice.random() < 0.1:
            right = ProducerTable.unpack(memoryview(right.pack()), bounds)
        assert left.pack() == right.pack()


def test_a_producer_that_was_forgotten_after_its_batch_was_proposed_goes_on() -> None:
    producers = ProducerTable(Bounds(producers=2))
    producers.record(header(0, 3))
    producers.record(header(0, producer=8))
    producers.record(header(0, producer=9))
    assert not producers.knows(7)
    producers.record(header(3, 2))
    assert producers.position(7) == (0, 5)
    producers.validate()
