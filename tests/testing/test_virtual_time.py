"""Time passes only with events, in one order."""

from random import Random

from quivermq.testing.virtual.virtual_time import VirtualTime


def test_events_happen_in_the_order_of_their_time_and_then_of_their_planning() -> None:
    time, seen = VirtualTime(), []
    for name, delay_ms in (("c", 5), ("a", 1), ("b", 1), ("d", 5.0004)):
        time.after_ms(delay_ms, lambda name=name: seen.append((name, time.now_us)))
    time.run_for_ms(10)
    assert seen == [("a", 1000), ("b", 1000), ("c", 5000), ("d", 5000)]
    assert time.now_ms == 10


def test_an_event_planned_for_now_or_the_past_happens_now() -> None:
    time, seen = VirtualTime(), []
    time.after_ms(3, lambda: time.after_ms(-1, lambda: seen.append(time.now_ms)))
    time.run_for_ms(3)
    assert seen == [3]


def test_any_plan_gives_a_sorted_history() -> None:
    dice, time, seen = Random(5), VirtualTime(), []
    for _ in range(500):
        time.after_ms(dice.uniform(0, 50), lambda: seen.append(time.now_us))
    time.run_for_ms(50)
    assert len(seen) == 500
    assert seen == sorted(seen)
