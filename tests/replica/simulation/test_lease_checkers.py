"""The checkers of consuming: each passes an honest history, and fails on one with its own fault."""

from random import Random

import pytest

from quivermq.batches import Frame, Index, Offset, Origin, encode_batch
from quivermq.errors import NotEnoughReplicas, OutOfSequence, Timeout
from quivermq.queue import Piece
from quivermq.testing import Violation
from tests.replica.simulation import consumer_service
from tests.replica.simulation.consumer_service import DeadLetterTopic
from tests.replica.simulation.lease_checkers import (
    CountedFailures,
    EveryMessage,
    NeverEarly,
    OneWinner,
)


def piece(start: int, end: int, failures: int = 0) -> Piece:
    return Piece(start, end, 0, failures)


def test_a_finished_message_is_not_delivered_to_a_later_poll() -> None:
    checker = OneWinner()
    checker.grant("g", 1, 5, [piece(0, 3)], asked_us=0)
    checker.finish("g", 5, [0, 1], now_us=100)
    checker.grant("g", 2, 6, [piece(2, 3)], asked_us=200)
    checker.grant("other", 2, 6, [piece(0, 3)], asked_us=200)
    # Asked before it was confirmed: nobody could know.
    checker.grant("g", 3, 7, [piece(0, 1)], asked_us=100)
    with pytest.raises(Violation, match="I4: message 1 of g is given out again"):
        checker.grant("g", 3, 8, [piece(1, 2)], asked_us=101)


def test_a_token_has_one_holder_and_a_message_one_winner() -> None:
    checker = OneWinner()
    checker.grant("g", 1, 5, [piece(0, 3)], asked_us=0)
    with pytest.raises(Violation, match="I4: token 5"):
        checker.grant("g", 2, 5, [piece(3, 4)], asked_us=0)
    with pytest.raises(Violation, match="I4: a lease of g holds a message twice"):
        checker.grant("g", 2, 6, [piece(0, 3), piece(2, 4)], asked_us=0)
    checker.finish("g", 5, [0], now_us=1)
    checker.finish("g", 5, [0], now_us=2)
    with pytest.raises(Violation, match="I4: message 0 of g is finished under 5 and 6"):
        checker.finish("g", 6, [0], now_us=3)


def test_a_message_that_is_acknowledged_in_advance_is_delivered_once() -> None:
    checker = OneWinner()
    checker.finish("g", 0, [4], now_us=1)
    with pytest.raises(Violation, match="I4: message 4 of g"):
        checker.finish("g", 0, [4], now_us=2)


def test_failures_without_a_delivery_before_them_are_noticed() -> None:
    checker = CountedFailures()
    checker.grant("g", [piece(0, 2)])
    checker.grant("g", [piece(0, 1, failures=1)])
    with pytest.raises(Violation, match="message 1 of g failed 2 times"):
        checker.grant("g", [piece(1, 2, failures=2)])


def delayed(until_ms: int) -> Frame:
    frame = encode_batch([b"a", b"b"], origin=Origin(not_before_ms=until_ms))
    return frame.stamped(term=1, index=Index(2), base_offset=Offset(0), timestamp_ms=0)


def test_a_delayed_message_may_not_be_given_out_before_its_time() -> None:
    checker = NeverEarly()
    checker.grant("g", [piece(0, 2)], clock_ms=1_000)
    checker.grant("g", [piece(0, 2)], clock_ms=10)
    checker.check([delayed(1_000)])
    with pytest.raises(Violation, match="I8: g gets message 0 1 ms too early"):
        checker.check([delayed(1_001)])


def test_a_message_that_a_group_is_done_with_was_finished_or_is_a_dead_letter() -> None:
    checker = EveryMessage(tried={("g", 1)})
    winners = {("g", 0): 5}
    checker.check("g", 3, [2], winners)
    with pytest.raises(Violation, match="I5: g is done with message 2"):
        checker.check("g", 3, [], winners)
    with pytest.raises(Violation, match="I5: message 0 of g is finished, and a dead letter"):
        checker.check("g", 3, [0, 2], winners)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> DeadLetterTopic:
    monkeypatch.setattr(consumer_service, "LOST_ANSWERS", 0.0)
    return DeadLetterTopic(Random(0))


def test_dead_letters_are_taken_in_order_and_once(topic: DeadLetterTopic) -> None:
    topic.store("g", 1, 0, [7, 8])
    topic.store("g", 1, 0, [7, 8])
    topic.store("g", 2, 0, [9])
    assert topic.letters == {"g": [7, 8, 9]}
    with pytest.raises(OutOfSequence):
        topic.store("g", 2, 5, [10])
    with pytest.raises(Violation, match="taken for a repeat"):
        topic.store("g", 2, 0, [10])
    with pytest.raises(Violation, match="message 7 of g is a dead letter twice"):
        topic.store("g", 2, 1, [7])


def test_a_topic_of_dead_letters_may_be_unavailable_or_its_answer_lost(
    topic: DeadLetterTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.is_available = False
    with pytest.raises(NotEnoughReplicas):
        topic.store("g", 1, 0, [7])
    assert topic.letters == {}
    topic.is_available = True
    monkeypatch.setattr(consumer_service, "LOST_ANSWERS", 1.0)
    with pytest.raises(Timeout):
        topic.store("g", 1, 0, [7])
    assert topic.letters == {"g": [7]}
