"""Sticky groups in the catalog: hand-over one by one, epochs that never go back, edits."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quivermq.cluster import (
    Enrolled,
    StickyChanges,
    StickyGroup,
    StickyName,
    View,
    alter_topic,
    create_topic,
    delete_topic,
    regroup,
    sticky_key,
)
from quivermq.cluster.assignors import ASSIGNORS, moves_needed
from quivermq.cluster.sticky import MEMBERS_MAX
from quivermq.errors import Corrupt, Overloaded, TopicNotFound
from tests.cluster.catalogs import broker, edited, view_of, with_topic

MEMBER = Enrolled("someone", 10_000)
NAME = StickyName("orders", "g")


def joined(*members: int, left: tuple[int, ...] = ()) -> StickyChanges:
    changes = StickyChanges()
    for member in left:
        changes.leave(member)
    for member in members:
        changes.join(member, MEMBER)
    return changes


def released(member: int, generation: int, *partitions: int) -> StickyChanges:
    changes = StickyChanges()
    changes.release(member, generation, partitions)
    return changes


def owners_of(group: StickyGroup) -> list[int]:
    return [owner.member for owner in group.owners]


def empty(assignor: str = "sticky") -> StickyGroup:
    return StickyGroup("aa" * 12, "g", 0, assignor)


def test_the_first_member_owns_everything_under_the_first_generation() -> None:
    group = empty().changed(joined(7), 3)
    assert group.generation == 1
    assert group.share(7).assigned == ((0, 1), (1, 1), (2, 1))
    assert group.share(7).revoked == ()


def test_a_partition_moves_only_when_its_owner_released_it() -> None:
    alone = empty().changed(joined(1), 4)
    both = alone.changed(joined(2), 4)
    assert owners_of(both) == [1, 1, 1, 1]
    assert both.share(1).revoked == (2, 3)
    assert both.share(2).assigned == ()
    after = both.changed(released(1, both.generation, 2), 4)
    assert owners_of(after) == [1, 1, 2, 1]
    assert after.share(2).assigned == ((2, after.generation),)
    assert after.share(1).revoked == (3,)
    assert after.share(1).assigned == alone.share(1).assigned[:2]


def test_a_release_of_what_is_not_revoked_does_nothing() -> None:
    both = empty().changed(joined(1), 4).changed(joined(2), 4)
    assert both.changed(released(1, both.generation, 0, 1), 4) is both
    assert both.changed(released(2, both.generation, 2, 3), 4) is both
    assert both.changed(released(1, both.generation, 99), 4) is both


def test_a_release_said_before_the_revocation_does_nothing() -> None:
    both = empty().changed(joined(1), 4).changed(joined(2), 4)
    assert both.changed(released(1, both.generation - 1, 2), 4) is both


def test_what_the_dead_owned_goes_to_others_at_once() -> None:
    both = empty().changed(joined(1, 2), 4)
    alone = both.changed(joined(left=(2,)), 4)
    assert owners_of(alone) == [1, 1, 1, 1]
    assert not alone.revoking
    epochs = [owner.epoch for owner in alone.owners]
    assert sorted(epochs) == [both.generation] * 2 + [alone.generation] * 2


def test_a_revocation_is_taken_back_when_its_heir_leaves() -> None:
    alone = empty().changed(joined(1), 4)
    again = alone.changed(joined(2), 4).changed(joined(left=(2,)), 4)
    assert again.owners == alone.owners
    assert not again.revoking
    assert again.generation == 3


def test_a_member_that_left_and_came_back_gets_other_epochs() -> None:
    alone = empty().changed(joined(1), 2)
    again = alone.changed(joined(1, left=(1,)), 2)
    assert [owner.epoch for owner in again.owners] == [again.generation] * 2


def test_partitions_that_are_added_go_to_those_with_the_fewest() -> None:
    both = empty().changed(joined(1, 2), 3)
    grown = both.changed(StickyChanges(), 4)
    assert Counter(owners_of(grown)) == {1: 2, 2: 2}
    assert grown.owners[:3] == both.owners


def test_a_group_without_members_owns_no_partition() -> None:
    gone = empty().changed(joined(1, 2), 3).changed(joined(left=(1, 2)), 3)
    assert not gone.members
    assert not gone.owners


def test_several_join_and_leave_in_one_generation() -> None:
    group = empty().changed(joined(1, 2, 3), 12)
    after = group.changed(joined(4, 5, left=(1,)), 12)
    assert after.generation == group.generation + 1
    assert set(after.members) == {2, 3, 4, 5}


def test_an_assignor_of_another_build_is_replaced_by_the_usual_one() -> None:
    known = empty("sticky").changed(joined(1, 2), 5)
    assert empty("clever").changed(joined(1, 2), 5).owners == known.owners


def test_records_come_back_as_they_were_written() -> None:
    group = empty().changed(joined(1), 4).changed(joined(2, 3), 4)
    assert group.revoking
    assert StickyGroup.from_json(group.to_json()) == group


@pytest.mark.parametrize(
    "damage",
    [
        {"owners": None},
        {"owners": [[1]]},
        {"owners": [[99, 1]]},
        {"owners": [["1", 1]]},
        {"revoking": {"9": [1, 1]}},
        {"revoking": {"0": [99, 1]}},
        {"members": {"x": ["a", 1]}},
        {"members": []},
        {"generation": -1},
        {"group": "g" * 201},
        {"assignor": 7},
    ],
)
def test_a_record_that_cannot_be_is_corrupt(damage: dict[str, Any]) -> None:
    record = empty().changed(joined(1), 4).changed(joined(2), 4).to_json()
    with pytest.raises(Corrupt):
        StickyGroup.from_json(record | damage)


@pytest.mark.parametrize("record", [None, [], "x", {}])
def test_what_is_no_record_is_corrupt(record: Any) -> None:
    with pytest.raises(Corrupt):
        StickyGroup.from_json(record)


# In the catalog.


def catalog(partitions: int = 4) -> View:
    return with_topic(view_of([broker(1)]), "orders", partitions)


def changed(view: View, changes: StickyChanges, name: StickyName = NAME) -> View:
    return edited(view, regroup(view, {name: changes}).edit)


def found(view: View, name: StickyName = NAME) -> StickyGroup:
    return view.sticky[sticky_key(view.topic(name.topic).id, name.group)]


def test_a_group_is_made_by_its_first_member_and_gone_with_its_last() -> None:
    view = changed(catalog(), joined(1))
    assert owners_of(found(view)) == [1, 1, 1, 1]
    assert not changed(view, joined(left=(1,))).sticky


def test_generations_never_go_back_though_the_group_was_forgotten() -> None:
    view = changed(catalog(), joined(1))
    for member in range(2, 6):
        view = changed(view, joined(member))
    last = found(view).generation
    view = changed(view, joined(left=(1, 2, 3, 4, 5)))
    view = changed(view, joined(1))
    assert found(view).generation > last
    assert min(owner.epoch for owner in found(view).owners) > last


def test_a_view_after_a_regrouping_knows_the_rest_as_before() -> None:
    before = catalog()
    view = changed(before, joined(1))
    assert view.topics is before.topics
    assert view.layout_version == before.layout_version < view.version
    fresh = View(view.version, view.values)
    assert fresh.sticky == view.sticky
    assert fresh.topics == view.topics
    assert list(view.hosted(1)) == list(fresh.hosted(1))
    grown = edited(view, alter_topic(view, "orders", partitions=5))
    assert grown.layout_version == grown.version
    assert grown.sticky == view.sticky


def test_a_deleted_topic_takes_its_sticky_groups_with_it() -> None:
    view = with_topic(catalog(), "other")
    view = changed(view, joined(1))
    view = changed(view, joined(2), StickyName("other", "g"))
    view = edited(view, delete_topic(view, "orders"))
    assert [group.topic_id for group in view.sticky.values()] == [view.topic("other").id]
    view = edited(view, create_topic(view, "orders", topic_id="f" * 24))
    last = view.version
    assert found(changed(view, joined(1))).generation > last


def test_what_is_wrong_with_one_group_is_no_harm_to_others() -> None:
    view = catalog()
    crowd = StickyChanges(joins=dict.fromkeys(range(1, MEMBERS_MAX + 2), MEMBER))
    outcome = regroup(
        view,
        {StickyName("gone", "g"): joined(1), StickyName("orders", "crowd"): crowd, NAME: joined(1)},
    )
    assert outcome.done == [NAME]
    assert isinstance(outcome.refused[StickyName("gone", "g")], TopicNotFound)
    assert isinstance(outcome.refused[StickyName("orders", "crowd")], Overloaded)
    assert owners_of(found(edited(view, outcome.edit))) == [1, 1, 1, 1]


def test_more_than_one_edit_holds_is_left_for_the_next() -> None:
    view = catalog()
    crowd = dict.fromkeys(range(1, 4001), MEMBER)
    wanted = {StickyName("orders", f"g{n}"): StickyChanges(joins=dict(crowd)) for n in range(5)}
    outcome = regroup(view, wanted)
    assert 1 <= len(outcome.done) < 5
    assert not outcome.refused


class Handover(RuleBasedStateMachine):
    """Members come and go, and release what they are told to, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.partitions = 5
        self.group = empty()
        self.held: dict[int, tuple[int, int]] = {}
        """Who believes to have each partition, with the epoch."""

    def apply(self, changes: StickyChanges) -> None:
        before = self.group
        self.group = before.changed(changes, self.partitions)
        assert self.group is before or self.group.generation == before.generation + 1
        for number, owner in enumerate(self.group.owners):
            member, epoch = self.held.get(number, (0, 0))
            if owner != (member, epoch):
                has_let_go = member in changes.leaves or member not in before.members
                assert has_let_go or number in changes.releases.get(member, (0, set()))[1]
                assert owner.epoch == self.group.generation > epoch
            self.held[number] = owner

    @rule(
        joins=st.sets(st.integers(1, 9), max_size=3),
        leaves=st.sets(st.integers(1, 9), max_size=3),
    )
    def members_change(self, joins: set[int], leaves: set[int]) -> None:
        fresh = joins - (self.group.members.keys() - leaves)
        current = {
            number: owner.member
            for number, owner in enumerate(self.group.owners)
            if owner.member not in leaves
        }
        moving = set(self.group.revoking)
        self.apply(joined(*fresh, left=tuple(leaves)))
        if self.group.members and not moving:
            least = moves_needed(range(self.partitions), list(self.group.members), current)
            assert len(self.group.revoking) == (0 if not fresh and not leaves else least)

    @rule(data=st.data())
    def somebody_releases(self, data: st.DataObject) -> None:
        if self.group.revoking:
            number = data.draw(st.sampled_from(sorted(self.group.revoking)))
            owner = self.group.owners[number].member
            self.apply(released(owner, self.group.generation, number))
            assert number not in self.group.revoking

    @rule()
    def the_topic_grows(self) -> None:
        self.partitions += self.partitions < 12
        self.apply(StickyChanges())

    @invariant()
    def what_will_be_is_balanced(self) -> None:
        group = self.group
        assert StickyGroup.from_json(group.to_json()) == group
        if group.members:
            planned = Counter(dict.fromkeys(group.members, 0))
            for number, owner in enumerate(group.owners):
                revocation = group.revoking.get(number)
                planned[revocation.heir if revocation else owner.member] += 1
            assert set(planned) == set(group.members)
            assert max(planned.values()) - min(planned.values()) <= 1
            assert len(group.owners) == self.partitions


TestHandover = Handover.TestCase
TestHandover.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_every_assignor_hands_over_by_releases(name: str) -> None:
    group = empty(name).changed(joined(1, 2), 6).changed(joined(3), 6)
    while group.revoking:
        number = min(group.revoking)
        owner = group.owners[number].member
        group = group.changed(released(owner, group.generation, number), 6)
    assert Counter(owners_of(group)) == {1: 2, 2: 2, 3: 2}
