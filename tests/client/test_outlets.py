"""Outlets: numbering, and what becomes of batches after a failure."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import encode_batch
from quivermq.client.outlets import Identity, Outlet, Shipment, Stored
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


def shipment(*values: bytes, deadline: float = FAR) -> Shipment:
    return Shipment(encode_batch(list(values)), deadline)


def launched(outlet: Outlet, *sizes: int) -> list[Shipment]:
    made = [shipment(*[b"x"] * size) for size in sizes]
    for each in made:
        outlet.launch(each)
    return made


def failed(each: Shipment, error: QuiverError) -> None:
    each.fail(error, was_sent=True)


def numbers(outlet: Outlet) -> list[tuple[int, int]]:
    return [(each.frame.header.producer_id, each.sequence) for each in outlet.flying]


def test_batches_are_numbered_without_gaps() -> None:
    outlet = Outlet(Identity(7, 2))
    launched(outlet, 3, 1, 2)
    assert numbers(outlet) == [(7, 0), (7, 3), (7, 4)]
    assert outlet.flying[0].frame.header.producer_epoch == 2
    assert outlet.next_sequence == 6


def test_what_may_pass_is_sent_again_under_the_same_numbers() -> None:
    outlet = Outlet(Identity(7))
    first, second = launched(outlet, 2, 2)
    failed(first, Timeout("?"))
    failed(second, NotLeader("?"))
    outlet.regroup(0.0, GIVEN_UP)
    assert numbers(outlet) == [(7, 0), (7, 2)]
    assert [first.outcome, second.outcome] == [None, None]


def test_a_refused_batch_leaves_its_number_to_the_next() -> None:
    outlet = Outlet(Identity(7))
    first, second, third = launched(outlet, 2, 2, 1)
    failed(first, InvalidRequest("no"))
    failed(second, OutOfSequence("gap", expected=0))
    failed(third, ConnectionFailed("gone"))
    outlet.regroup(0.0, GIVEN_UP)
    assert isinstance(first.outcome, InvalidRequest)
    assert numbers(outlet) == [(7, 0), (7, 2)]
    assert outlet.next_sequence == 3
    # Behind a hole nothing can have been stored.
    assert not third.is_uncertain


def test_a_stored_batch_is_settled_and_the_others_stay() -> None:
    outlet = Outlet(Identity(7))
    first, second = launched(outlet, 1, 1)
    outlet.flying[1].settle(Stored(5, 0))
    failed(first, Timeout("?"))
    outlet.regroup(0.0, GIVEN_UP)
    assert second.outcome == Stored(5, 0)
    assert numbers(outlet) == [(7, 0)]
    assert outlet.next_sequence == 2


def test_a_batch_given_up_in_doubt_makes_the_identity_unusable() -> None:
    outlet = Outlet(Identity(7))
    doubtful = shipment(b"a", deadline=1.0)
    outlet.launch(doubtful)
    beside, refused = launched(outlet, 1, 2)
    failed(doubtful, Timeout("?"))
    failed(beside, ConnectionFailed("gone"))
    failed(refused, NotLeader("?"))
    outlet.regroup(2.0, GIVEN_UP)
    assert isinstance(doubtful.outcome, Timeout)
    assert isinstance(beside.outcome, Timeout)
    assert outlet.identity is None
    with pytest.raises(BrokenInvariant):
        outlet.launch(shipment(b"x"))
    outlet.adopt(Identity(8))
    assert numbers(outlet) == [(8, 0)]
    assert outlet.next_sequence == 2


def test_a_batch_given_up_without_doubt_keeps_the_identity() -> None:
    outlet = Outlet(Identity(7))
    late = shipment(b"a", deadline=1.0)
    outlet.launch(late)
    launched(outlet, 1)
    for each in outlet.flying:
        each.fail(ConnectionFailed("refused"), was_sent=False)
    outlet.regroup(2.0, GIVEN_UP)
    assert late.outcome is GIVEN_UP
    assert numbers(outlet) == [(7, 0)]


def test_a_failed_disk_leaves_doubt() -> None:
    outlet = Outlet(Identity(7))
    (first,) = launched(outlet, 1)
    failed(first, StorageFailed("fsync"))
    outlet.regroup(0.0, GIVEN_UP)
    assert isinstance(first.outcome, StorageFailed)
    assert outlet.identity is None


def test_a_broker_that_forgot_the_producer_gets_a_fresh_identity() -> None:
    outlet = Outlet(Identity(7), next_sequence=10)
    (first,) = launched(outlet, 1)
    failed(first, OutOfSequence("who?", expected=0))
    outlet.regroup(0.0, GIVEN_UP)
    # It may have been a broker that lags behind: once more.
    assert numbers(outlet) == [(7, 10)]
    failed(first, OutOfSequence("who?", expected=0))
    outlet.regroup(0.0, GIVEN_UP)
    assert outlet.identity is None
    outlet.adopt(Identity(8))
    assert numbers(outlet) == [(8, 0)]


def test_an_uncertain_batch_is_never_sent_under_another_identity() -> None:
    outlet = Outlet(Identity(7), next_sequence=10)
    (first,) = launched(outlet, 1)
    failed(first, Timeout("?"))
    for _ in range(5):
        failed(first, OutOfSequence("who?", expected=0))
        outlet.regroup(0.0, GIVEN_UP)
        assert numbers(outlet) == [(7, 10)]


def test_an_identity_of_the_users_own_is_not_replaced() -> None:
    outlet = Outlet(Identity(7), is_replaceable=False)
    doubtful = shipment(b"a", deadline=1.0)
    outlet.launch(doubtful)
    (behind,) = launched(outlet, 1)
    failed(doubtful, Timeout("?"))
    failed(behind, NotLeader("?"))
    outlet.regroup(2.0, GIVEN_UP)
    assert isinstance(doubtful.outcome, Timeout)
    assert isinstance(behind.outcome, InvalidRequest)
    assert "higher epoch" in str(behind.outcome)
    late = shipment(b"b")
    outlet.launch(late)
    assert late.outcome is behind.outcome


def test_a_topic_that_was_created_again_starts_at_zero() -> None:
    outlet = Outlet(Identity(7), next_sequence=10)
    (first,) = launched(outlet, 2)
    failed(first, Timeout("?"))
    outlet.restart()
    assert numbers(outlet) == [(7, 0)]
    assert not first.is_uncertain
    assert outlet.next_sequence == 2


def test_a_pinned_number_is_never_left_to_another_batch() -> None:
    outlet = Outlet(Identity(7), next_sequence=100, is_replaceable=False, is_pinned=True)
    first, second, third = launched(outlet, 2, 2, 2)
    failed(first, InvalidRequest("no such batch is among its last"))
    failed(second, OutOfSequence("?", expected=100))
    failed(third, Timeout("?"))
    outlet.regroup(0.0, GIVEN_UP)
    assert not outlet.flying
    assert "no such batch" in str(first.outcome)
    assert "number 100 was refused" in str(second.outcome)
    assert "cannot go on" in str(third.outcome)
    (after,) = launched(outlet, 1)
    assert isinstance(after.outcome, InvalidRequest)


def test_pinned_numbers_do_not_start_anew_in_a_topic_that_was_created_again() -> None:
    outlet = Outlet(Identity(7), is_replaceable=False, is_pinned=True)
    first, second = launched(outlet, 2, 2)
    first.settle(Stored(0, 0))
    outlet.restart()
    assert "created again" in str(second.outcome)
    assert not outlet.flying


def test_every_batch_behind_a_fenced_one_is_told_so() -> None:
    outlet = Outlet(Identity(7, 0))
    batches = launched(outlet, 1, 1)
    while outlet.flying:
        for each in outlet.flying:
            failed(each, Fenced("newer"))
        outlet.regroup(0.0, GIVEN_UP)
    assert all(isinstance(each.outcome, Fenced) for each in batches)


# What may happen to one attempt: stored and answered, stored and not answered, not stored.
FATES = ("stored", "stored, no answer", "no answer", "not leader", "overloaded", "invalid")
Round = st.lists(st.sampled_from(FATES), min_size=1, max_size=6)


def attempt(log: Log, each: Shipment, fate: str) -> None:
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
            each.settle(Stored(first, 0))
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
    log, outlet = Log(), Outlet(Identity(1))
    waiting = deque(
        shipment(*[b"%d" % number] * size, deadline=deadlines + number)
        for number, size in enumerate(sizes)
    )
    everything = list(waiting)
    fresh = iter(range(2, 1000))
    for now, fates in enumerate([*rounds, *[["stored"] * 6] * 20]):
        while waiting and len(outlet.flying) < 3:
            outlet.launch(waiting.popleft())
        for each, fate in zip(list(outlet.flying), [*fates, *["stored"] * 6], strict=False):
            attempt(log, each, fate)
        outlet.regroup(float(now), GIVEN_UP)
        if outlet.identity is None:
            outlet.adopt(Identity(next(fresh)))
    stored = [int(value) for value in log.values]
    assert stored == sorted(stored)
    for number, each in enumerate(everything):
        copies = stored.count(number)
        assert copies in {0, each.count}
        if isinstance(each.outcome, Stored):
            assert copies == each.count
            at = stored.index(number)
            assert each.outcome.first_offset == at
        elif not isinstance(each.outcome, Timeout):
            assert isinstance(each.outcome, QuiverError)
            # Refused for good after an unanswered attempt is the one case of doubt beside Timeout.
            assert copies == 0 or each.is_uncertain
