"""The clocks of simulated nodes."""

from quivermq.testing.virtual.virtual_time import VirtualTime
from tests.replica.simulation.node_clock import EPOCH_MS, NodeClock


def test_a_clock_drifts_from_now_on_and_jumps_at_once() -> None:
    time = VirtualTime()
    clock = NodeClock(time)
    time.run_for_ms(1000)
    assert clock.now_ms == EPOCH_MS + 1000
    clock.drift(1.5)
    time.run_for_ms(1000)
    assert clock.now_ms == EPOCH_MS + 2500
    assert clock.real_ms(150) == 100
    clock.jump(-3_600_000)
    assert clock.now_ms == EPOCH_MS + 2500 - 3_600_000
