"""Trying again: pauses, deadlines, and what is said in the end."""

from contextlib import suppress

import pytest

from quivermq.client.retry import Attempts
from quivermq.client.transport import run
from quivermq.errors import (
    ConnectionFailed,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    QuiverError,
    Timeout,
)
from tests.client.virtual_transport import VirtualTransport


def last_error(*errors: QuiverError, timeout: float = 2.0) -> QuiverError:
    """What is raised when attempts fail like this, over and over."""
    attempts = Attempts(VirtualTransport(), timeout, "asking")
    try:
        for _ in range(1000):
            for number, error in enumerate(errors):
                attempts.record_failure(f"server{number}", error)
            run(attempts.pause())
    except QuiverError as last:
        return last
    raise AssertionError("it never ended")


def test_pauses_grow_and_end_with_the_deadline() -> None:
    transport = VirtualTransport()
    attempts = Attempts(transport, 10.0, "asking")
    with suppress(QuiverError):
        while True:
            attempts.record_failure("a", Overloaded("busy"))
            run(attempts.pause())
    assert transport.slept[0] <= 0.02
    assert max(transport.slept) <= 1.0
    assert any(pause > 0.4 for pause in transport.slept)
    assert 9.9 < sum(transport.slept) <= 10.0
    assert len(transport.slept) < 50


def test_pauses_differ_from_client_to_client() -> None:
    firsts = set()
    for _ in range(10):
        transport = VirtualTransport()
        run(Attempts(transport, 10.0, "asking").pause())
        firsts.add(transport.slept[0])
    assert len(firsts) > 1


def test_one_attempt_does_not_use_up_all_the_time() -> None:
    transport = VirtualTransport()
    assert Attempts(transport, 10.0, "asking").attempt_deadline() == 102.5
    assert Attempts(transport, 0.2, "asking").attempt_deadline() == 100.2


def test_the_final_error_names_the_servers_and_their_answers() -> None:
    error = last_error(ConnectionFailed("a is down"), ConnectionFailed("b is down"))
    assert isinstance(error, ConnectionFailed)
    for part in ("asking", "within 2 s", "server0: a is down", "server1: b is down"):
        assert part in str(error)


def test_without_a_leader_it_says_that_a_majority_is_missing() -> None:
    error = last_error(NotLeader("not me"))
    assert isinstance(error, NotEnoughReplicas)
    assert "quiver cluster status" in str(error)


def test_without_an_answer_it_says_that_the_outcome_is_unknown() -> None:
    error = last_error(Timeout("silence"))
    assert isinstance(error, Timeout)
    assert "unknown" in str(error)


def test_a_refusal_is_raised_with_the_broker_that_was_asked() -> None:
    refusal = Overloaded("busy")
    error = last_error(refusal)
    assert error is refusal
    assert "server0" in error.__notes__[0]


def test_hints_are_followed_at_once_but_not_in_circles() -> None:
    attempts = Attempts(VirtualTransport(), 10.0, "asking")
    assert [attempts.may_follow_hint() for _ in range(5)] == [True, True, True, False, False]
    run(attempts.pause())
    assert attempts.may_follow_hint()


def test_no_hint_is_followed_when_the_time_is_over() -> None:
    transport = VirtualTransport()
    attempts = Attempts(transport, 1.0, "asking")
    attempts.record_failure("a", NotLeader("not me"))
    transport.time += 1.0
    with pytest.raises(NotEnoughReplicas):
        attempts.may_follow_hint()


def test_an_operation_that_takes_long_says_once_why(caplog: pytest.LogCaptureFixture) -> None:
    error = last_error(ConnectionFailed("server0: Connection refused"), timeout=10.0)
    assert str(error).count("server0: Connection refused") == 1
    assert "server0: server0" not in str(error)
    (told,) = caplog.messages
    assert told.startswith("asking: still trying, for ")
    assert told.endswith(" s more. server0: Connection refused")
    last_error(Overloaded("busy"), timeout=1.0)
    assert len(caplog.messages) == 1
