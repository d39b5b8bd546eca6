"""Which members a leader can do without for now: what they lack is in no hurry."""

import pytest

from tests.replica.group import Group, Node


def led_group() -> tuple[Group, Node]:
    group = Group(3)
    group[1].replica.campaign()
    group.settle()
    group.produce(group[1])
    group.settle()
    assert group[1].replica.is_leader
    return group, group[1]


@pytest.mark.parametrize("member", [2, 3])
def test_any_one_can_be_spared_while_all_have_everything(member: int) -> None:
    _, leader = led_group()
    assert leader.replica.can_spare(member, ())


def test_nobody_can_be_spared_whose_place_nobody_can_take() -> None:
    _, leader = led_group()
    assert not leader.replica.can_spare(3, {2})
    assert leader.replica.can_spare(3, {3})


def test_one_that_is_behind_takes_the_place_of_nobody() -> None:
    group, leader = led_group()
    group.isolate(2)
    group.produce(leader)
    group.settle()
    assert leader.replica.can_spare(2, ())
    assert not leader.replica.can_spare(3, ())


def test_only_a_leader_spares_anyone() -> None:
    group, _ = led_group()
    assert not group[2].replica.can_spare(3, ())
