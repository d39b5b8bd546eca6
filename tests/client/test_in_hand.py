"""Messages in hand: of which loop or handler, and for how long."""

import threading

import pytest

from quivermq.client.shared.in_hand import LOOP_SECONDS_MAX, InHandTracker
from quivermq.client.shared.leased_message import LeasedMessage
from quivermq.client.shared.leases import Lease


def message(offset: int, lease: Lease) -> LeasedMessage:
    return LeasedMessage("t", 0, offset, None, b"v", {}, 0, 0, 1, lease)


@pytest.fixture
def leases() -> list[Lease]:
    return [Lease("t", b"", "g", 0, token, print) for token in (1, 2)]


def test_a_worker_is_done_with_what_it_had_when_it_takes_more(leases: list[Lease]) -> None:
    hands = InHandTracker(lambda: 0.0)
    hands.take_one(1, message(0, leases[0]))
    hands.take_one(2, message(5, leases[1]))
    assert hands.leases(lambda _: True) == set(leases)
    hands.take_one(1, message(6, leases[1]))
    assert hands.leases(lambda _: True) == {leases[1]}
    hands.empty(1)
    hands.empty(2)
    assert hands.leases(lambda _: True) == set()


def test_what_is_settled_is_not_worked_on(leases: list[Lease]) -> None:
    hands = InHandTracker(lambda: 0.0)
    several = [message(0, leases[0]), message(1, leases[0]), message(2, leases[1])]
    hands.take(threading.current_thread(), several)
    assert hands.leases(lambda found: found.offset == 1) == {leases[0]}


def test_a_loop_that_was_left_loses_its_message_in_the_end(leases: list[Lease]) -> None:
    now = 0.0
    hands = InHandTracker(lambda: now)
    hands.take(threading.current_thread(), [message(0, leases[0])])
    hands.take_one(1, message(5, leases[1]))
    now = LOOP_SECONDS_MAX - 1
    assert hands.leases(lambda _: True) == set(leases)
    now = LOOP_SECONDS_MAX
    assert hands.leases(lambda _: True) == {leases[1]}
