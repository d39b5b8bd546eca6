"""The log in two parts against a plain list, and what must never happen to it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quivermq.errors import BrokenInvariant
from quivermq.raft import Configuration, Entry, Snapshot
from quivermq.raft.entry_log import EntryLog
from quivermq.raft.messages import entry_bytes
from quivermq.testing.memory_storage import MemoryStorage


class TwoPartLog(RuleBasedStateMachine):
    """Appends, truncations, writes confirmed late, commits, applies, snapshots, compaction."""

    @initialize()
    def begin(self) -> None:
        self.storage = MemoryStorage()
        self.log = EntryLog(self.storage)
        self.model: list[Entry] = []  # everything after `base`
        self.base = 0
        self.term = 1
        self.writes: list[tuple[int, int]] = []

    @rule(count=st.integers(1, 4), back=st.integers(0, 3), new_term=st.booleans())
    def append(self, count: int, back: int, new_term: bool) -> None:
        """Append at the end, or replace a part of the tail by entries of a later term."""
        last = self.log.last_index
        first = max(last + 1 - back, self.log.committed + 1)
        if new_term or first <= last:
            self.term += 1
        entries = [Entry(self.term, first + i, data=b"x" * i) for i in range(count)]
        self.log.append(entries)
        self.model[first - self.base - 1 :] = entries

    @rule()
    def hand_out(self) -> None:
        snapshot, entries = self.log.unhanded_snapshot, self.log.unhanded()
        if snapshot:
            self.storage.install(snapshot)
        self.storage.append(entries)
        self.log.hand_out()
        if snapshot:
            self.log.snapshot_stored(snapshot.index)
            self.log.applied_to(snapshot.index)
        self.writes.append((self.log.last_index, self.log.last_term))

    @precondition(lambda self: self.writes)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        self.log.entries_stored(*self.writes.pop(data.draw(st.integers(0, len(self.writes) - 1))))

    @rule(ahead=st.integers(0, 5))
    def commit(self, ahead: int) -> None:
        self.log.commit_to(min(self.log.committed + ahead, self.log.last_index))

    @rule()
    def apply(self) -> None:
        entries = self.log.appliable(unstable_too=False)
        if entries:
            assert entries[0].index == self.log.applied + 1
            self.log.hand_out_applying(entries, unstable_too=False)
            self.log.applied_to(entries[-1].index, sum(map(entry_bytes, entries)))

    @rule(ahead=st.integers(1, 3))
    def restore(self, ahead: int) -> None:
        self.term += 1
        self.base = self.log.last_index + ahead
        self.model = []
        self.writes = []
        self.log.restore(Snapshot(self.base, self.term, Configuration((1,))))

    @rule()
    def compact(self) -> None:
        to = self.log.applied
        if self.log.incoming is None and to > self.storage.base_index:
            self.storage.compact(to)

    @invariant()
    def it_reads_like_the_list(self) -> None:
        log = self.log
        assert log.last_index == self.base + len(self.model)
        first = max(log.first_index, self.base + 1)
        kept = self.model[first - self.base - 1 :]
        assert list(log.slice(first, log.last_index + 1)) == kept
        assert [log.term(entry.index) for entry in kept] == [entry.term for entry in kept]
        assert log.term(log.last_index + 1) is None
        assert log.applied <= log.applying <= log.committed <= log.last_index
        assert log.tail_start <= log.handed <= log.last_index + 1


TwoPartLog.TestCase.settings = settings(max_examples=100, deadline=None)
TestTwoPartLog = TwoPartLog.TestCase


def log_of(*terms: int) -> EntryLog:
    storage = MemoryStorage()
    storage.append([Entry(term, index) for index, term in enumerate(terms, 1)])
    return EntryLog(storage)


@pytest.mark.parametrize(
    ("index", "term", "found"),
    [
        (6, 5, (6, 5)),  # as it is
        (6, 4, (5, 3)),  # past the entries of term 5
        (6, 2, (3, 2)),
        (6, 1, (2, 1)),
        (6, 0, (0, 0)),
        (4, 9, (4, 3)),
    ],
)
def test_agreement_is_found_one_term_at_a_time(
    index: int, term: int, found: tuple[int, int]
) -> None:
    assert log_of(1, 1, 2, 3, 3, 5).agreement_by_term(index, term) == found


def test_agreement_below_what_is_kept_is_unknown() -> None:
    log = log_of(2, 2, 2, 3)
    log.storage.compact(2)
    assert log.agreement_by_term(4, 1) == (1, 0)


def test_a_slice_across_both_parts_keeps_to_the_limit() -> None:
    log = log_of(1, 1)
    log.append([Entry(1, 3), Entry(1, 4)])
    for limit, count in ((1, 1), (16, 2), (24, 3), (31, 3), (32, 4), (1000, 4)):
        assert len(log.slice(1, 5, limit)) == count


def test_nothing_is_applied_that_is_not_committed() -> None:
    log = log_of(1, 1)
    log.commit_to(1)
    with pytest.raises(BrokenInvariant, match="2 is applied"):
        log.applied_to(2)


def test_storage_refuses_holes_and_reads_outside_of_what_it_keeps() -> None:
    storage = MemoryStorage()
    with pytest.raises(BrokenInvariant, match="hole"):
        storage.append([Entry(1, 2)])
    storage.append([Entry(1, 1), Entry(1, 2)])
    storage.compact(1)
    with pytest.raises(BrokenInvariant, match="were asked for"):
        storage.entries(1, 2, 100)
    with pytest.raises(BrokenInvariant, match="compaction to 5"):
        storage.compact(5)
    assert (storage.term(0), storage.term(1), storage.term(3)) == (None, 1, None)
