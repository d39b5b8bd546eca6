"""The judge of tokens and grants finds what was allowed too late and refused too early."""

import pytest

from quivermq.testing import Violation
from quivermq.testing.trials.access_history import SIGN_IN, Permit


def permit() -> Permit:
    """A user who may produce from 100 us on."""
    found = Permit("guest", "token")
    found.grant(SIGN_IN, 50)
    found.grant("produce", 100)
    return found


def test_what_is_done_without_a_grant_is_found() -> None:
    permit().judge_effect("produce", 0)
    with pytest.raises(Violation, match="guest may not consume, and did"):
        permit().judge_effect("consume", 200)
    with pytest.raises(Violation, match="may not sign in"):
        Permit("a stranger", "made up").judge_effect(SIGN_IN, 0)


def test_what_is_done_after_every_server_knew_of_the_revocation_is_found() -> None:
    found = permit()
    change = found.begin_to_take(["produce"], 200)
    found.judge_effect("produce", 10_000)
    change.known_us = 300
    found.judge_effect("produce", 300)
    found.judge_effect(SIGN_IN, 10_000)
    change.actions |= {SIGN_IN}
    found.judge_effect(SIGN_IN, 10_000)
    change.settled_us = 400
    with pytest.raises(Violation, match="all servers knew at 400 us"):
        found.judge_effect(SIGN_IN, 401)
    with pytest.raises(Violation, match="all servers knew at 300 us"):
        found.judge_effect("produce", 301)


def test_a_refusal_while_the_grant_stood_is_found() -> None:
    permit().judge_refusal("produce", 99, 120)
    permit().judge_refusal("consume", 200, 210)
    with pytest.raises(Violation, match="refused to produce between 100 and 120 us"):
        permit().judge_refusal("produce", 100, 120)


def test_a_refusal_is_right_once_it_was_asked_to_take_the_grant_away() -> None:
    found = permit()
    change = found.begin_to_take(["produce"], 200)
    change.known_us = change.settled_us = 300
    with pytest.raises(Violation):
        found.judge_refusal("produce", 150, 199)
    found.judge_refusal("produce", 150, 200)
    found.judge_refusal("produce", 10_000, 10_010)


def test_while_a_change_spreads_refusals_of_other_actions_are_excused() -> None:
    found = permit()
    change = found.begin_to_take(["consume"], 200)
    found.judge_refusal("produce", 10_000, 10_010)
    change.settled_us = 300
    found.judge_refusal("produce", 300, 310)
    with pytest.raises(Violation):
        found.judge_refusal("produce", 301, 310)
    assert found.left == {SIGN_IN, "produce"}


def test_a_revocation_that_was_never_answered_may_have_spared_the_next_token() -> None:
    found = Permit("guest", "token")
    for action in (SIGN_IN, "produce", "consume"):
        found.grant(action, 0)
    unanswered, known = found.begin_to_take(("consume",), 10), found.begin_to_take(("produce",), 20)
    known.known_us = 30
    replaced = found.replaced("next", found.changes)
    replaced.judge_effect("consume", 40)
    with pytest.raises(Violation, match="may not produce, and did"):
        replaced.judge_effect("produce", 40)
    unanswered.known_us = 50
    with pytest.raises(Violation, match="all servers knew"):
        replaced.judge_effect("consume", 60)
