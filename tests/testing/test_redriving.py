"""The checker of dead letters that are put back finds those that are lost, or come twice."""

import pytest

from quivermq.testing import Violation
from quivermq.testing.simulation.redriving import RedriveHistory


def test_a_message_that_is_not_acknowledged_in_the_end_is_missing() -> None:
    history = RedriveHistory()
    for value in (b"a", b"b", b"c"):
        history.store(value)
    history.deliver(b"a")
    history.ack(b"a", is_certain=True)
    history.ack(b"b", is_certain=False)
    assert history.missing == {b"c"}
    assert history.judged == 3


def test_a_message_that_comes_again_after_its_ack_is_found() -> None:
    history = RedriveHistory()
    history.store(b"a")
    history.deliver(b"a")
    history.ack(b"a", is_certain=False)
    history.deliver(b"a")
    history.ack(b"a", is_certain=True)
    with pytest.raises(Violation, match="I5: b'a' was acknowledged, and came again"):
        history.deliver(b"a")
