"""The limit on copying: a rate, a burst, an order."""

from collections.abc import Callable

from quivermq.token_bucket import Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self.timers.append((self.now + delay, action))

    def run_until(self, end: float) -> None:
        while due := [timer for timer in self.timers if timer[0] <= end]:
            timer = min(due, key=lambda one: one[0])
            self.timers.remove(timer)
            self.now = timer[0]
            timer[1]()
        self.now = end


def test_so_many_bytes_pass_in_a_second_and_in_order() -> None:
    clock = Clock()
    throttle = Throttle(1_000, lambda: clock.now, clock.later)
    sent: list[tuple[float, int]] = []
    for number in range(50):
        throttle.pass_on(100, lambda number=number: sent.append((clock.now, number)))
    clock.run_until(2.0)
    assert [number for _, number in sent] == [*range(len(sent))]
    assert 19 <= len(sent) <= 23
    assert throttle.waiting == 50 - len(sent)
    clock.run_until(10.0)
    assert len(sent) == 50
    assert throttle.waiting == 0


def test_what_is_larger_than_the_burst_passes_and_is_paid_for_afterwards() -> None:
    clock = Clock()
    throttle = Throttle(1_000, lambda: clock.now, clock.later)
    sent: list[float] = []
    throttle.pass_on(5_000, lambda: sent.append(clock.now))
    throttle.pass_on(1, lambda: sent.append(clock.now))
    clock.run_until(20.0)
    assert sent[0] == 0.0
    assert 4.8 <= sent[1] <= 5.1


def test_time_in_which_nothing_passed_is_not_saved_up() -> None:
    clock = Clock()
    throttle = Throttle(1_000, lambda: clock.now, clock.later)
    clock.run_until(1_000.0)
    sent: list[int] = []
    for number in range(100):
        throttle.pass_on(100, lambda number=number: sent.append(number))
    assert len(sent) <= 2


def test_what_waits_for_one_can_be_let_go_and_the_others_keep_their_order() -> None:
    clock = Clock()
    throttle = Throttle(1_000, lambda: clock.now, clock.later)
    sent: list[int] = []
    for number in range(20):
        throttle.pass_on(1_000, lambda number=number: sent.append(number), number % 2)
    del sent[:]
    throttle.let_go(1)
    assert sent == [*range(1, 20, 2)]
    assert (throttle.waiting, throttle.waiting_bytes) == (9, 9_000)
    clock.run_until(60.0)
    assert sent[10:] == [*range(2, 20, 2)]
    assert throttle.waiting_bytes == 0


def test_a_higher_rate_holds_from_then_on() -> None:
    clock = Clock()
    throttle = Throttle(1_000, lambda: clock.now, clock.later)
    sent: list[float] = []
    for _ in range(50):
        throttle.pass_on(100, lambda: sent.append(clock.now))
    throttle.set_rate(100_000)
    clock.run_until(0.5)
    assert len(sent) == 50
