"""The sequencer: numbers of batches, and their outcomes after a failure."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import encode_batch
from quivermq.client.producer.sequencer import (
    InFlightBatch,
    PartitionSequencer,
    ProducerIdentity,
    StoredAt,
)
from quivermq.errors import (
    BrokenInvariant,
    ConnectionFailed,
    Fenced,
    InvalidRequest,
    NotLeader,
    OutOfSequence,
    Overloaded,
    QuiverError,
    StorageFailed,
    Timeout,
)
from tests.client.stand_in import Log

GIVEN_UP = Overloaded("no time is left")
FAR = 1e9


def batch(*values: bytes, deadline: float = FAR) -> InFlightBatch:
    return InFlightBatch(encode_batch(list(values)), deadline)


def launched(sequencer: PartitionSequencer, *sizes: int) -> list[InFlightBatch]:
    made = [batch(*[b"x"] * size) for size in sizes]
    for each in made:
        sequencer.launch(each)
    return made


def failed(each: InFlightBatch, error: QuiverError) -> None:
    each.fail(error, was_sent=True)


def numbers(sequencer: PartitionSequencer) -> list[tuple[int, int]]:
    return [(each.frame.header.producer_id, each.sequence) for each in sequencer.in_flight]


def test_batches_are_numbered_without_gaps() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7, 2))
    launched(sequencer, 3, 1, 2)
    assert numbers(sequencer) == [(7, 0), (7, 3), (7, 4)]
    assert sequencer.in_flight[0].frame.header.producer_epoch == 2
    assert sequencer.next_sequence == 6


def test_what_may_pass_is_sent_again_under_the_same_numbers() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    first, second = launched(sequencer, 2, 2)
    failed(first, Timeout("?"))
    failed(second, NotLeader("?"))
    sequencer.regroup(0.0, GIVEN_UP)
    assert numbers(sequencer) == [(7, 0), (7, 2)]
    assert [first.outcome, second.outcome] == [None, None]


def test_a_refused_batch_leaves_its_number_to_the_next() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    first, second, third = launched(sequencer, 2, 2, 1)
    failed(first, InvalidRequest("no"))
    failed(second, OutOfSequence("gap", expected=0))
    failed(third, ConnectionFailed("gone"))
    sequencer.regroup(0.0, GIVEN_UP)
    assert isinstance(first.outcome, InvalidRequest)
    assert numbers(sequencer) == [(7, 0), (7, 2)]
    assert sequencer.next_sequence == 3
    # Behind a hole nothing can have been stored.
    assert not third.is_uncertain


def test_a_stored_batch_is_settled_and_the_others_stay() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    first, second = launched(sequencer, 1, 1)
    sequencer.in_flight[1].settle(StoredAt(5, 0))
    failed(first, Timeout("?"))
    sequencer.regroup(0.0, GIVEN_UP)
    assert second.outcome == StoredAt(5, 0)
    assert numbers(sequencer) == [(7, 0)]
    assert sequencer.next_sequence == 2


def test_a_batch_given_up_in_doubt_makes_the_identity_unusable() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    doubtful = batch(b"a", deadline=1.0)
    sequencer.launch(doubtful)
    beside, refused = launched(sequencer, 1, 2)
    failed(doubtful, Timeout("?"))
    failed(beside, ConnectionFailed("gone"))
    failed(refused, NotLeader("?"))
    sequencer.regroup(2.0, GIVEN_UP)
    assert isinstance(doubtful.outcome, Timeout)
    assert isinstance(beside.outcome, Timeout)
    assert sequencer.identity is None
    with pytest.raises(BrokenInvariant):
        sequencer.launch(batch(b"x"))
    sequencer.adopt(ProducerIdentity(8))
    assert numbers(sequencer) == [(8, 0)]
    assert sequencer.next_sequence == 2


def test_a_batch_given_up_without_doubt_keeps_the_identity() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    late = batch(b"a", deadline=1.0)
    sequencer.launch(late)
    launched(sequencer, 1)
    for each in sequencer.in_flight:
        each.fail(ConnectionFailed("refused"), was_sent=False)
    sequencer.regroup(2.0, GIVEN_UP)
    assert late.outcome is GIVEN_UP
    assert numbers(sequencer) == [(7, 0)]


def test_a_failed_disk_leaves_doubt() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7))
    (first,) = launched(sequencer, 1)
    failed(first, StorageFailed("fsync"))
    sequencer.regroup(0.0, GIVEN_UP)
    assert isinstance(first.outcome, StorageFailed)
    assert sequencer.identity is None


def test_a_broker_that_forgot_the_producer_gets_a_fresh_identity() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7), next_sequence=10)
    (first,) = launched(sequencer, 1)
    failed(first, OutOfSequence("who?", expected=0))
    sequencer.regroup(0.0, GIVEN_UP)
    # It may have been a broker that lags behind: once more.
    assert numbers(sequencer) == [(7, 10)]
    failed(first, OutOfSequence("who?", expected=0))
    sequencer.regroup(0.0, GIVEN_UP)
    assert sequencer.identity is None
    sequencer.adopt(ProducerIdentity(8))
    assert numbers(sequencer) == [(8, 0)]


def test_an_uncertain_batch_is_never_sent_under_another_identity() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7), next_sequence=10)
    (first,) = launched(sequencer, 1)
    failed(first, Timeout("?"))
    for _ in range(5):
        failed(first, OutOfSequence("who?", expected=0))
        sequencer.regroup(0.0, GIVEN_UP)
        assert numbers(sequencer) == [(7, 10)]


def test_an_identity_of_the_users_own_is_not_replaced() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7), is_replaceable=False)
    doubtful = batch(b"a", deadline=1.0)
    sequencer.launch(doubtful)
    (behind,) = launched(sequencer, 1)
    failed(doubtful, Timeout("?"))
    failed(behind, NotLeader("?"))
    sequencer.regroup(2.0, GIVEN_UP)
    assert isinstance(doubtful.outcome, Timeout)
    assert isinstance(behind.outcome, InvalidRequest)
    assert "higher epoch" in str(behind.outcome)
    late = batch(b"b")
    sequencer.launch(late)
    assert late.outcome is behind.outcome


def test_a_topic_that_was_created_again_starts_at_zero() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7), next_sequence=10)
    (first,) = launched(sequencer, 2)
    failed(first, Timeout("?"))
    sequencer.restart()
    assert numbers(sequencer) == [(7, 0)]
    assert not first.is_uncertain
    assert sequencer.next_sequence == 2


def test_a_pinned_number_is_never_left_to_another_batch() -> None:
    sequencer = PartitionSequencer(
        ProducerIdentity(7), next_sequence=100, is_replaceable=False, is_pinned=True
    )
    first, second, third = launched(sequencer, 2, 2, 2)
    failed(first, InvalidRequest("no such batch is among its last"))
    failed(second, OutOfSequence("?", expected=100))
    failed(third, Timeout("?"))
    sequencer.regroup(0.0, GIVEN_UP)
    assert not sequencer.in_flight
    assert "no such batch" in str(first.outcome)
    assert "number 100 was refused" in str(second.outcome)
    assert "cannot go on" in str(third.outcome)
    (after,) = launched(sequencer, 1)
    assert isinstance(after.outcome, InvalidRequest)


def test_pinned_numbers_do_not_start_anew_in_a_topic_that_was_created_again() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7), is_replaceable=False, is_pinned=True)
    first, second = launched(sequencer, 2, 2)
    first.settle(StoredAt(0, 0))
    sequencer.restart()
    assert "created again" in str(second.outcome)
    assert not sequencer.in_flight


def test_every_batch_behind_a_fenced_one_is_fenced() -> None:
    sequencer = PartitionSequencer(ProducerIdentity(7, 0))
    batches = launched(sequencer, 1, 1)
    while sequencer.in_flight:
        for each in sequencer.in_flight:
            failed(each, Fenced("newer"))
        sequencer.regroup(0.0, GIVEN_UP)
    assert all(isinstance(each.outcome, Fenced) for each in batches)


# What may happen to one attempt: stored and answered, stored and not answered, not stored.
FATES = ("stored", "stored, no answer", "no answer", "not leader", "overloaded", "invalid")
Round = st.lists(st.sampled_from(FATES), min_size=1, max_size=6)


def attempt(log: Log, each: InFlightBatch, fate: str) -> None:
    """One attempt at a broker that checks numbers as ours do."""
    if fate == "not leader":
        failed(each, NotLeader("?"))
    elif fate == "overloaded":
        failed(each, Overloaded("?"))
    elif fate == "invalid":
        failed(each, InvalidRequest("no"))
    elif fate == "no answer":
        failed(each, Timeout("?"))
    else:
        try:
            first, _ = log.store(each.frame)
        except OutOfSequence as error:
            failed(each, error)
            return
        if fate == "stored":
            each.settle(StoredAt(first, 0))
        else:
            failed(each, ConnectionFailed("lost"))


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=6),
    deadlines=st.integers(1, 12),
    rounds=st.lists(Round, max_size=12),
)
def test_no_batch_is_stored_twice_or_out_of_order_whatever_fails(
    sizes: list[int], deadlines: int, rounds: list[list[str]]
) -> None:
    log, sequencer = Log(), PartitionSequencer(ProducerIdentity(1))
    waiting = deque(
        batch(*[b"%d" % number] * size, deadline=deadlines + number)
        for number, size in enumerate(sizes)
    )
    everything = list(waiting)
    fresh = iter(range(2, 1000))
    for now, fates in enumerate([*rounds, *[["stored"] * 6] * 20]):
        while waiting and len(sequencer.in_flight) < 3:
            sequencer.launch(waiting.popleft())
        for each, fate in zip(list(sequencer.in_flight), [*fates, *["stored"] * 6], strict=False):
            attempt(log, each, fate)
        sequencer.regroup(float(now), GIVEN_UP)
        if sequencer.identity is None:
            sequencer.adopt(ProducerIdentity(next(fresh)))
    stored = [int(value) for value in log.values]
    assert stored == sorted(stored)
    for number, each in enumerate(everything):
        copies = stored.count(number)
        assert copies in {0, each.count}
        if isinstance(each.outcome, StoredAt):
            assert copies == each.count
            at = stored.index(number)
            assert each.outcome.first_offset == at
        elif not isinstance(each.outcome, Timeout):
            assert isinstance(each.outcome, QuiverError)
            # Refused for good after an unanswered attempt is the one case of doubt beside Timeout.
            assert copies == 0 or each.is_uncertain
