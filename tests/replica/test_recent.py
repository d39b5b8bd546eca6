"""Entries between their write and their application."""

from hypothesis import given
from hypothesis import strategies as st

from quivermq.raft import Entry
from quivermq.raft.messages import entry_bytes
from quivermq.replica import Persist, Produced, ReplicaSettings
from quivermq.replica.recent import Recent
from tests.replica.group import Group

SIZE = entry_bytes(Entry(1, 1, data=b"12"))


def entries(first: int, count: int, term: int = 1) -> list[Entry]:
    return [Entry(term, first + number, data=b"%02d" % term) for number in range(count)]


def test_what_is_added_is_there_until_it_is_applied() -> None:
    recent = Recent(1000)
    recent.add(entries(5, 3))
    assert recent.run(5, 8, 1000) == entries(5, 3)
    assert recent.run(6, 7, 1000) == entries(6, 1)
    assert recent.run(4, 8, 1000) == []
    recent.forget([5, 6])
    assert recent.run(5, 8, 1000) == []
    assert recent.run(7, 99, 1000) == entries(7, 1)


def test_a_run_is_cut_to_its_limit_but_has_at_least_one() -> None:
    recent = Recent(1000)
    recent.add(entries(1, 5))
    assert len(recent.run(1, 6, 3 * SIZE)) == 3
    assert len(recent.run(1, 6, 3 * SIZE - 1)) == 2
    assert len(recent.run(1, 6, 1)) == 1


def test_what_replaces_entries_replaces_all_behind_them_too() -> None:
    recent = Recent(1000)
    recent.add(entries(1, 5))
    recent.add(entries(3, 1, term=2))
    assert recent.run(1, 6, 1000) == [*entries(1, 2), *entries(3, 1, term=2)]


def test_where_there_is_no_room_the_oldest_stay() -> None:
    recent = Recent(3 * SIZE)
    recent.add(entries(1, 5))
    assert recent.run(1, 6, 1000) == entries(1, 3)
    recent.forget([1, 2, 3])
    recent.add(entries(6, 2))
    assert recent.run(4, 8, 1000) == []
    assert recent.run(6, 8, 1000) == entries(6, 2)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 3)), max_size=20))
def test_it_never_gives_anything_but_the_last_that_was_written(steps) -> None:
    """Each step: how many entries are replaced, how many written, how many applied."""
    recent, model = Recent(4 * SIZE), {}
    end, applied = 1, 0
    for term, (back, count, applying) in enumerate(steps, 1):
        first = max(end - back, applied + 1)
        added = entries(first, count, term)
        model |= {entry.index: entry for entry in added}
        end = first + count
        recent.add(added)
        for low in range(applied + 1, end):
            for entry in recent.run(low, end, 1000):
                assert model[entry.index] == entry
        recent.forget(range(applied + 1, min(applied + 1 + applying, end)))
        applied = min(applied + applying, end - 1)
    recent.forget(range(applied + 1, end))
    assert (len(recent), recent._bytes) == (0, 0)


def test_applying_what_was_just_written_reads_no_disk() -> None:
    group = Group(3)
    leader = group.leader()
    group.produce(leader)
    reads = []
    for node in group.nodes.values():
        node.log.read = lambda *args, **more: reads.append(args)
    for _ in range(20):
        assert isinstance(leader.answers[group.produce(leader)], Produced)
    group.tick()
    assert not reads
    assert {node.replica.applied_index for node in group.nodes.values()} == {
        leader.replica.applied_index
    }
    assert not any(len(node.replica._live._recent) for node in group.nodes.values())


def test_without_room_everything_is_read_again_and_comes_to_the_same() -> None:
    group = Group(3, ReplicaSettings(recent_bytes_max=0))
    leader = group.leader()
    for _ in range(20):
        assert isinstance(leader.answers[group.produce(leader)], Produced)
    group.tick()
    assert len({node.replica.digest for node in group.nodes.values()}) == 1


def test_a_conflict_is_not_served_from_memory() -> None:
    group = Group(3)
    old = group.leader()
    group.produce(old)
    others = [node for node in group.nodes.values() if node is not old]
    group.isolate(old.member)
    lost = group.produce(old)
    old.is_up = False
    successor = group.leader()
    assert successor in others
    kept = group.produce(successor)
    assert isinstance(successor.answers[kept], Produced)
    old.is_up = True
    group.heal()
    group.tick(30)
    assert lost not in old.answers or not isinstance(old.answers[lost], Produced)
    assert len({node.replica.digest for node in group.nodes.values()}) == 1
    assert not [work for work in old.work if isinstance(work, Persist)]
