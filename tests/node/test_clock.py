"""The time that brokers go by while clocks of machines are set to anything."""

import logging

import pytest

from quivermq.batches.limits import TIMESTAMP_MS_MAX
from quivermq.node.clock import BELIEVED_AFTER_MS, BrokerClock

RIGHT_MS = 1_750_000_000_000
SECOND_MS = 1_000
HOUR_MS = 3600 * SECOND_MS
DAY_MS = 24 * HOUR_MS
JUMPS = [HOUR_MS, -HOUR_MS, 25 * HOUR_MS, -25 * HOUR_MS, -RIGHT_MS, 10**14]


class Machine:
    """A broker's clocks: one that is set, and one that is not."""

    def __init__(self, cluster: "Clocks", error_ms: int = 0) -> None:
        self.error_ms = error_ms
        self.is_silent = False
        # When a machine was booted is its own affair.
        booted_ms = 7 * HOUR_MS * len(cluster.machines)
        self.clock = BrokerClock(
            lambda: min(max(cluster.true_ms + self.error_ms, 0), TIMESTAMP_MS_MAX),
            lambda: cluster.true_ms - RIGHT_MS + booted_ms,
        )


class Clocks:
    """Brokers that tell each other their time at every tick."""

    def __init__(self, *errors_ms: int) -> None:
        self.true_ms = RIGHT_MS
        self.machines: list[Machine] = []
        for error_ms in errors_ms:
            self.machines.append(Machine(self, error_ms))

    def run(self, duration_ms: int = 2 * SECOND_MS, tick_ms: int = 500) -> None:
        for _ in range(duration_ms // tick_ms):
            self.true_ms += tick_ms
            for number, machine in enumerate(self.machines):
                for other in self.machines:
                    if other is not machine and not machine.is_silent:
                        other.clock.heard(number, machine.clock.machine_ms())
            for machine in self.machines:
                machine.clock.look()

    def now_errors(self) -> list[int]:
        return [machine.clock.now_ms() - self.true_ms for machine in self.machines]

    def age_errors(self) -> list[int]:
        return [machine.clock.age_ms() - self.true_ms for machine in self.machines]


def test_a_clock_that_is_right_is_followed_also_as_it_drifts() -> None:
    clocks = Clocks(0, 0, 0)
    for _ in range(100):
        clocks.machines[0].error_ms += 10
        clocks.run(SECOND_MS)
    assert clocks.now_errors() == clocks.age_errors() == [1_000, 0, 0]


@pytest.mark.parametrize("jump_ms", JUMPS)
@pytest.mark.parametrize("brokers", [2, 3, 4, 5])
def test_a_clock_that_jumps_among_others_moves_nothing(brokers: int, jump_ms: int) -> None:
    clocks = Clocks(*[0] * brokers)
    clocks.run()
    clocks.machines[0].error_ms = jump_ms
    assert clocks.now_errors() == [0] * brokers, "not even before the next tick"
    clocks.run()
    assert clocks.now_errors() == clocks.age_errors() == [0] * brokers
    assert abs(clocks.machines[0].clock.difference_ms) >= HOUR_MS
    clocks.machines[0].error_ms = 0
    clocks.run()
    assert clocks.now_errors() == [0] * brokers
    assert clocks.machines[0].clock.difference_ms == 0


def test_a_clock_that_is_refuted_is_not_believed_after_a_day_either() -> None:
    clocks = Clocks(0, 25 * HOUR_MS, 0)
    clocks.run(DAY_MS + HOUR_MS, 9 * SECOND_MS)
    assert clocks.now_errors() == clocks.age_errors() == [0, 0, 0]


@pytest.mark.parametrize("error_ms", JUMPS)
def test_a_broker_that_starts_with_a_wrong_clock_follows_the_others(error_ms: int) -> None:
    clocks = Clocks(0, error_ms, 0)
    clocks.run()
    assert clocks.now_errors() == [0, 0, 0]
    # Also when these go away: it is known by now that its own clock is wrong.
    for machine in (clocks.machines[0], clocks.machines[2]):
        machine.is_silent = True
        clocks.run(HOUR_MS, 9 * SECOND_MS)
        assert clocks.now_errors() == [0, 0, 0]


def test_clocks_that_are_all_set_right_are_followed_once_most_are() -> None:
    clocks = Clocks(-RIGHT_MS, -RIGHT_MS, -RIGHT_MS)
    clocks.run()
    for expected, machine in zip([-RIGHT_MS, 0, 0], clocks.machines, strict=True):
        machine.error_ms = 0
        clocks.run()
        assert clocks.now_errors() == [expected] * 3
    assert clocks.age_errors() == [0, 0, 0], "most confirm it"


def test_a_broker_on_its_own_follows_its_clock_but_its_retention_does_not_run_ahead() -> None:
    clocks = Clocks(0)
    clocks.run()
    clocks.machines[0].error_ms = 25 * HOUR_MS
    clocks.run(HOUR_MS, 9 * SECOND_MS)
    assert clocks.now_errors() == [25 * HOUR_MS]
    assert clocks.age_errors() == [0]
    clocks.machines[0].error_ms = 0
    clocks.run()
    assert clocks.now_errors() == clocks.age_errors() == [0]
    # For ever it would keep what it should delete, had the clock been wrong before.
    clocks.machines[0].error_ms = HOUR_MS
    clocks.run(BELIEVED_AFTER_MS - HOUR_MS, 9 * SECOND_MS)
    assert clocks.age_errors() == [0]
    clocks.run(2 * HOUR_MS, 9 * SECOND_MS)
    assert clocks.age_errors() == clocks.now_errors() == [HOUR_MS]


@pytest.mark.parametrize("brokers", [1, 4])
def test_a_clock_that_is_ahead_for_less_than_a_minute_leaves_no_trace(brokers: int) -> None:
    """Also where nobody can tell: alone, or as many against as many."""
    clocks = Clocks(*[0] * brokers)
    clocks.run()
    for machine in clocks.machines[: max(1, brokers // 2)]:
        machine.error_ms = 25 * HOUR_MS
    for _ in range(50):
        clocks.run(SECOND_MS)
        assert clocks.now_errors() == clocks.age_errors() == [0] * brokers
    for machine in clocks.machines:
        machine.error_ms = 0
    clocks.run()
    assert clocks.now_errors() == [0] * brokers
    clocks.machines[0].error_ms = HOUR_MS
    clocks.run()
    assert clocks.now_errors() == [0] * brokers, "it begins anew"


def test_retention_follows_a_clock_that_goes_back_at_once() -> None:
    clocks = Clocks(0)
    clocks.run()
    clocks.machines[0].error_ms = -DAY_MS
    clocks.run()
    assert clocks.age_errors() == clocks.now_errors() == [-DAY_MS]


@pytest.mark.parametrize("between_ms", [0.0, 0.25, 0.5, 0.75])
def test_time_is_never_a_millisecond_behind_the_machine(between_ms: float) -> None:
    """Whatever lies between the two clocks, and whenever they are compared."""
    elapsed_ms = 0.0
    clock = BrokerClock(lambda: RIGHT_MS + elapsed_ms, lambda: elapsed_ms + between_ms)
    for _ in range(100):
        elapsed_ms += 0.125
        clock.look()
        at_look_ms = elapsed_ms
        for _ in range(8):
            assert clock.now_ms() == RIGHT_MS + int(elapsed_ms)
            elapsed_ms += 0.125
        elapsed_ms = at_look_ms


def test_time_stays_within_what_a_header_holds() -> None:
    clocks = Clocks(10**15)
    clocks.run()
    assert clocks.machines[0].clock.now_ms() == TIMESTAMP_MS_MAX
    clocks.machines[0].error_ms = -(10**15)
    clocks.run()
    assert clocks.machines[0].clock.now_ms() == 0


def test_a_wrong_clock_is_reported_once_and_again_every_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "quivermq.clock")
    clocks = Clocks(0, 0, 0)
    clocks.run()
    clocks.machines[1].error_ms = 25 * HOUR_MS
    clocks.run(10 * SECOND_MS)
    (record,) = caplog.records
    assert "25.0 h ahead of most brokers': this broker goes by theirs" in record.getMessage()
    clocks.run(3 * HOUR_MS, 9 * SECOND_MS)
    assert len(caplog.records) == 4
    clocks.machines[1].error_ms = 0
    clocks.run()
    assert "agrees with most brokers' again" in caplog.records[-1].getMessage()
