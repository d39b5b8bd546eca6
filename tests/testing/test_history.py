"""The checker of real clusters finds each kind of lie that is planted in otherwise good copies."""

from collections.abc import Callable

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials import History, TopicPartition
from quivermq.testing.trials.history import ReplicaCopy, StoredBatch
from quivermq.testing.trials.observer import ReplicaProgress, Sighting, sightings
from quivermq.wire import proto

PLACE = TopicPartition("orders", 0)


def batch(first_offset: int, *values: bytes, producer: int = 1, sequence: int = 0) -> StoredBatch:
    raw = b"%d %d %d " % (first_offset, producer, sequence) + b"|".join(values)
    return StoredBatch(first_offset, values, producer, 0, sequence, raw)


def history() -> History:
    """Two producers: `a` sent three values and was told of two, `b` sent one."""
    found = History()
    found.attempt("a", PLACE, [b"a0", b"a1", b"a2"])
    found.attempt("b", PLACE, [b"b0"])
    found.ack(PLACE, 0, [b"a0", b"a1"])
    found.ack(PLACE, 2, [b"b0"])
    return found


GOOD = [batch(0, b"a0", b"a1"), batch(2, b"b0", producer=2), batch(3, b"a2", sequence=2)]


def copy(
    batches: list[StoredBatch], node: int = 1, start: int = 0, place: TopicPartition = PLACE
) -> ReplicaCopy:
    return ReplicaCopy(node, "planted", place, start, batches)


def test_copies_that_keep_every_promise_pass() -> None:
    history().check([copy(GOOD), copy(GOOD, node=2), copy(GOOD, node=3)])


def test_a_value_that_was_not_acknowledged_may_be_there_or_not() -> None:
    history().check([copy(GOOD[:2]), copy(GOOD[:2], node=2)])


LIES: dict[str, tuple[str, list[StoredBatch]]] = {
    "an acknowledged batch is missing": ("I1", GOOD[:1]),
    "acknowledged messages are missing at the front": (
        "I6",
        [batch(2, b"b0", producer=2), batch(3, b"a2")],
    ),
    "an acknowledged value is another": (
        "I1",
        [batch(0, b"a0", b"a2"), batch(2, b"b0", producer=2)],
    ),
    "acknowledged values changed places": (
        "I1",
        [batch(0, b"b0", producer=2), batch(1, b"a0", b"a1")],
    ),
    "a value that nobody sent": ("I2", [*GOOD, batch(4, b"x", producer=3)]),
    "a value is there twice": ("I7", [*GOOD, batch(4, b"a2", sequence=3)]),
    "a sequence number is there twice": (
        "I7",
        [*GOOD[:2], batch(3, b"a2", sequence=1)],
    ),
    "offsets have a gap": ("I6", [*GOOD[:2], batch(4, b"a2", sequence=2)]),
    "offsets overlap": ("I6", [*GOOD[:2], batch(2, b"a2", sequence=2)]),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_all_replicas_is_found(lie: str) -> None:
    promise, batches = LIES[lie]
    with pytest.raises(Violation, match=promise):
        history().check([copy(batches), copy(batches, node=2)])


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_one_replica_is_found(lie: str) -> None:
    with pytest.raises(Violation):
        history().check([copy(GOOD), copy(LIES[lie][1], node=2)])


def test_values_of_a_producer_out_of_their_order_are_found() -> None:
    found = History()
    found.attempt("a", PLACE, [b"a0", b"a1"])
    swapped = [batch(0, b"a1"), batch(1, b"a0", sequence=1)]
    with pytest.raises(Violation, match="I3"):
        found.check([copy(swapped)])


def test_a_value_in_another_partition_is_found() -> None:
    found = history()
    other = TopicPartition("orders", 1)
    found.attempt("a", other, [b"a9"])
    with pytest.raises(Violation, match="I2"):
        found.check([copy(GOOD), copy([batch(0, b"a2")], place=other)])


def test_a_replica_that_has_less_than_another_is_found() -> None:
    with pytest.raises(Violation, match="I1"):
        history().check([copy(GOOD), copy(GOOD[:2], node=2)])


def test_replicas_that_differ_in_a_byte_are_found() -> None:
    other = [*GOOD[:2], GOOD[2]._replace(raw=GOOD[2].raw + b"!")]
    with pytest.raises(Violation, match="I1"):
        history().check([copy(GOOD), copy(other, node=2)])


def test_a_partition_without_any_copy_is_found() -> None:
    with pytest.raises(Violation, match="I1"):
        history().check([])


def test_a_message_that_was_shown_and_is_not_stored_is_found() -> None:
    found = history()
    found.see(PLACE, 3, [b"a2"])
    with pytest.raises(Violation, match="I6"):
        found.check([copy(GOOD[:2])])


@pytest.mark.parametrize("tell", [History.ack, History.see])
def test_an_offset_that_is_told_with_two_values_is_found(
    tell: Callable[[History, TopicPartition, int, list[bytes]], None],
) -> None:
    found = history()
    tell(found, PLACE, 3, [b"a2"])
    with pytest.raises(Violation, match="I6"):
        tell(found, PLACE, 3, [b"b0"])


def test_messages_missing_at_the_front_are_a_violation_unless_they_may_be_dropped() -> None:
    late = [copy(GOOD[1:], start=2)]
    history().check(late, may_be_dropped=True)
    with pytest.raises(Violation, match="I1"):
        history().check(late)


def test_replicas_that_keep_different_fronts_are_compared_where_both_keep() -> None:
    found = history()
    found.check([copy(GOOD), copy(GOOD[1:], node=2, start=2)], may_be_dropped=True)
    other = [GOOD[1], GOOD[2]._replace(raw=b"!")]
    with pytest.raises(Violation, match="I1"):
        found.check([copy(GOOD), copy(other, node=2, start=2)], may_be_dropped=True)


def test_a_value_cannot_be_sent_twice_by_the_load_itself() -> None:
    with pytest.raises(ValueError, match="unique"):
        history().attempt("b", PLACE, [b"a0"])


def sighting(node: int = 1, life: int = 1, **changes: int) -> Sighting:
    seen = Sighting(node, (life, 0), PLACE, 5, 100, 10, 50, leads=False)
    return seen._replace(**changes)


@pytest.mark.parametrize("name", ["term", "commit_index", "start_offset", "end_offset"])
def test_a_value_that_goes_back_within_a_process_is_found(name: str) -> None:
    progress = ReplicaProgress()
    progress.see(sighting())
    progress.see(sighting(**{name: getattr(sighting(), name) + 1}))
    with pytest.raises(Violation, match="I6"):
        progress.see(sighting())


def test_a_process_that_starts_again_may_know_less_but_not_of_a_term_that_it_led() -> None:
    progress = ReplicaProgress()
    progress.see(sighting())
    progress.see(sighting(life=2, commit_index=90, end_offset=40, term=4))
    progress.see(sighting(life=2, term=5)._replace(leads=True))
    with pytest.raises(Violation, match="forgot"):
        progress.see(sighting(life=3, term=4))


def test_two_leaders_of_one_term_are_found() -> None:
    progress = ReplicaProgress()
    progress.see(sighting()._replace(leads=True))
    progress.see(sighting(node=2, term=6)._replace(leads=True))
    with pytest.raises(Violation, match="both lead"):
        progress.see(sighting(node=2, term=5, life=2)._replace(leads=True, term=5, node=3))


def test_a_replica_that_was_moved_away_and_back_begins_anew() -> None:
    progress = ReplicaProgress()
    progress.see(sighting()._replace(leads=True))
    progress.see(sighting(node=2))
    progress.move_away(1, PLACE)
    progress.see(sighting(term=0, commit_index=0, start_offset=0, end_offset=0))
    with pytest.raises(Violation, match="I6"):
        progress.see(sighting(node=2, term=0))


def test_a_replica_that_was_moved_away_and_back_between_two_looks_begins_anew() -> None:
    progress = ReplicaProgress()
    progress.see(sighting(incarnation=4))
    progress.see(sighting(incarnation=9, term=0, commit_index=0, start_offset=0, end_offset=0))
    progress.see(sighting(incarnation=9, term=5))
    with pytest.raises(Violation, match="went back"):
        progress.see(sighting(incarnation=9, term=4))


def test_a_replica_that_cannot_run_is_not_one_that_forgot_its_term() -> None:
    found = proto.PartitionsDescribed()
    found.partitions.add(topic="orders", partition=0, term=0, leader=1)
    found.partitions.add(topic="orders", partition=1, trouble="read-only file system")
    (seen,) = sightings(1, 7, found)
    assert (seen.place, seen.term, seen.leads, seen.life) == (PLACE, 0, True, (7, 0))
