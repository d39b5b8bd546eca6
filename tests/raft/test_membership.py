"""Membership changes against a model that tracks each member by itself."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quivermq.raft import (
    Act,
    Change,
    Configuration,
    MembershipChange,
    MembershipRefused,
    Transition,
    parse_changes,
)
from quivermq.raft.membership import changed, check

changes = st.lists(st.builds(Change, st.sampled_from(Act), st.integers(0, 6)), max_size=5).map(
    tuple
)
orders = st.builds(MembershipChange, changes, st.sampled_from(Transition))
START = Configuration((1, 2, 3), (), (4,))


def target(wishes: Sequence[Change], voters: set[int], learners: set[int]) -> dict[int, str]:
    """What each member should be in the end, by the last wish about it."""
    kinds = dict.fromkeys(voters, "voter") | dict.fromkeys(learners, "learner")
    for wish in wishes:
        if wish.member == 0 or wish.act is Act.UPDATE:
            continue
        if wish.act is Act.REMOVE:
            kinds.pop(wish.member, None)
        else:
            kinds[wish.member] = "voter" if wish.act is Act.ADD_VOTER else "learner"
    return kinds


@given(st.lists(orders, max_size=12))
def test_any_sequence_of_changes_keeps_the_configuration_sound(
    sequence: list[MembershipChange],
) -> None:
    configuration = START
    for order in sequence:
        try:
            after = changed(configuration, order)
        except MembershipRefused:
            continue
        check(after)
        assert after.voters, "never without voters"
        if after.is_joint and not configuration.is_joint:
            assert after.outgoing == configuration.voters
        if not after.is_joint and not configuration.is_joint:
            assert len(set(after.voters) ^ set(configuration.voters)) <= 1
        configuration = after


@given(changes)
@example(parse_changes("r1 r2 r3"))
@example(parse_changes("l1 l2 l3"))
def test_through_a_joint_configuration_every_wish_comes_true(wishes: tuple[Change, ...]) -> None:
    expected = target(wishes, {1, 2, 3}, {4})
    voters = tuple(sorted(m for m, kind in expected.items() if kind == "voter"))
    learners = tuple(sorted(m for m, kind in expected.items() if kind == "learner"))
    order = MembershipChange(wishes, Transition.EXPLICIT)
    if not voters:
        with pytest.raises(MembershipRefused, match="removed all voters"):
            changed(START, order)
        return
    joint = changed(START, order)
    assert (joint.voters, joint.outgoing) == (voters, (1, 2, 3))
    assert changed(joint, MembershipChange()) == Configuration(voters, (), learners)


@given(orders)
def test_a_change_reads_back_from_its_bytes(order: MembershipChange) -> None:
    assert MembershipChange.decode(order.encode()) == order
    assert MembershipChange.decode(memoryview(order.encode())) == order


@pytest.mark.parametrize("data", [b"", b"auto", b"never:v1", b"auto:x1", b"auto:v", b"\xff", 7])
def test_bytes_that_are_no_change_are_refused(data: object) -> None:
    if data == b"auto":
        assert MembershipChange.decode(data).leaves_joint
        return
    with pytest.raises(MembershipRefused):
        MembershipChange.decode(data)


@pytest.mark.parametrize(
    ("text", "transition", "joint", "auto_leave"),
    [
        ("v4", Transition.AUTO, False, False),
        ("v4 v5", Transition.AUTO, True, True),
        ("v4", Transition.IMPLICIT, True, True),
        ("v4", Transition.EXPLICIT, True, False),
        ("v4", Transition.SIMPLE, False, False),
    ],
)
def test_the_transition_says_how_to_get_there(
    text: str, transition: Transition, joint: bool, auto_leave: bool
) -> None:
    after = changed(START, MembershipChange(parse_changes(text), transition))
    assert (after.is_joint, after.auto_leave) == (joint, auto_leave)


@pytest.mark.parametrize(
    ("configuration", "fault"),
    [
        (Configuration((2, 1)), "out of order"),
        (Configuration((1, 2), (), (2,)), "a learner that votes"),
        (Configuration((1,), (2,), (2,)), "a learner that votes"),
        (Configuration((1,), (1, 2), (), (1,)), "both voter and learner to be"),
        (Configuration((1,), (2,), (), (3,)), "not an outgoing voter"),
        (Configuration((1,), (), (), (), auto_leave=True), "joint leftovers"),
    ],
)
def test_an_unsound_configuration_is_named(configuration: Configuration, fault: str) -> None:
    with pytest.raises(MembershipRefused, match=fault):
        check(configuration)
