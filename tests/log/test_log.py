"""What a log does when nothing goes wrong."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, Index, Limits, Offset
from quivermq.errors import BrokenInvariant, Corrupt, OffsetOutOfRange, StorageFailed, TooLarge
from quivermq.log import (
    TEMPORARY,
    Checkpoint,
    Edge,
    Log,
    LogSettings,
    Owner,
    RealDisk,
    name_logs,
    prepare_log,
)
from quivermq.log import log as log_module
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.log.entries import LOG_ID, entries, entry
from tests.log.logs import (
    FOLDER,
    SMALL,
    all_entries,
    fill,
    live_and_reopened,
    new_log,
    reopened,
)


def test_entries_come_back_as_they_were_written_across_segments_and_restarts() -> None:
    disk, log = new_log()
    written = fill(log, 40)
    assert len(log.segment_starts) > 3
    assert all_entries(log) == written
    assert all_entries(reopened(disk)) == written


def test_a_segment_is_sealed_past_a_number_of_entries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "ENTRIES_MAX", 5)
    _, log = new_log(LogSettings())
    written: list[Frame] = []
    for count in (1, 3, 1, 2, 4, 7, 1):
        frames = entries(log.edge, count)
        log.append(frames)
        written += frames
    log.sync()
    # Seven at once are more than fit, and stay together: what is appended is written as one.
    assert log.segment_starts == [1, 6, 8, 12, 19]
    assert all_entries(log) == written


def test_a_log_goes_on_where_it_ended() -> None:
    disk, log = new_log()
    written = fill(log, 7)
    log = reopened(disk)
    written += fill(log, 7)
    assert all_entries(reopened(disk)) == written
    assert [frame.header.index for frame in written] == list(range(1, 29))


def test_offsets_are_dense_and_count_messages_while_indexes_count_entries() -> None:
    _, log = new_log()
    counts = (3, 0, 5, 1)
    for count in counts:
        log.append([entry(log.edge, count=count)])
    assert log.edge.next_index == 1 + len(counts)
    assert log.edge.next_offset == sum(counts)


def test_every_offset_is_found_in_the_entry_that_holds_it() -> None:
    _, log = new_log()
    for count in (3, 0, 5, 1, 0, 0, 2) * 9:
        log.append([entry(log.edge, count=count, body=b"y" * 90)])
        log.sync()
    for offset in range(log.edge.next_offset):
        (frame,) = log.read(log.index_of_offset(Offset(offset)), bytes_max=1)
        header = frame.header
        assert header.base_offset <= offset < header.next_offset


def test_an_offset_that_is_not_kept_says_which_ones_are() -> None:
    _, log = new_log()
    with pytest.raises(OffsetOutOfRange, match="empty"):
        log.index_of_offset(Offset(0))
    fill(log, 3)
    for offset in (-1, 6, 1000):
        with pytest.raises(OffsetOutOfRange, match="from 0 to 5") as caught:
            log.index_of_offset(Offset(offset))
        assert (caught.value.earliest, caught.value.end) == (0, 6)


def test_a_time_leads_to_the_first_entry_stamped_then_or_later() -> None:
    _, log = new_log()
    for at in (10, 20, 20, 15, 40) * 8:
        log.append([entry(log.edge, at_ms=at, body=b"z" * 90)])
        log.sync()
    assert log.index_of_time(0) == 1
    assert log.index_of_time(10) == 1
    assert log.index_of_time(11) == 2
    assert log.index_of_time(21) == 5
    assert log.index_of_time(41) == log.edge.next_index


@pytest.mark.parametrize("bytes_max", [1, 150, 400, 10_000])
def test_a_read_is_bounded_yet_always_makes_progress(bytes_max: int) -> None:
    _, log = new_log()
    written = fill(log, 30)
    found: list[Frame] = []
    while len(found) < len(written):
        part = log.read(Index(len(found) + 1), bytes_max=bytes_max)
        assert part
        assert len(part) == 1 or sum(map(len, part)) <= bytes_max
        found += part
    assert found == written


def test_a_read_ends_before_the_end_that_was_asked_for() -> None:
    _, log = new_log()
    written = fill(log, 4)
    assert log.read(Index(2), end=Index(5)) == written[1:4]


def test_reading_outside_the_log_is_our_own_mistake() -> None:
    _, log = new_log()
    fill(log, 1)
    with pytest.raises(BrokenInvariant):
        log.read(Index(3))


def test_a_reader_that_retention_overtakes_is_told_what_is_kept() -> None:
    _, log = new_log()
    fill(log, 30)
    third = log.segment_starts[2]
    log.save_checkpoint(third, b"state")

    class Meanwhile(list):
        """The writer drops segments between a reader's check and its read."""

        def __iter__(self):
            log.drop_before(third)
            return super().__iter__()

    log.damage = Meanwhile()
    for index in (1, 9):
        with pytest.raises(OffsetOutOfRange, match=f"entry {index} is not kept") as caught:
            log.read(Index(index))
        assert caught.value.earliest == third - 1
    assert log.read(third)[0].header.index == third


def test_terms_are_known_for_every_entry_and_for_the_one_before_the_first() -> None:
    disk, log = new_log()
    terms = [1] * 9 + [2] * 2 + [5] * 30 + [6]
    for term in terms:
        log.append([entry(log.edge, term=term, body=b"t" * 80)])
    log.sync()
    for found in live_and_reopened(disk, log):
        assert [found.term_at(Index(i + 1)) for i in range(len(terms))] == terms
        assert found.term_at(Index(0)) == 0


def test_an_entry_out_of_order_is_refused_before_anything_is_written() -> None:
    _, log = new_log()
    first, second = entries(log.edge, 2)
    with pytest.raises(BrokenInvariant, match="stands where 1 belongs"):
        log.append([second])
    with pytest.raises(BrokenInvariant, match="offset"):
        log.append([entry(Edge(Index(1), Offset(7)))])
    log.append([first])
    with pytest.raises(BrokenInvariant, match="term"):
        log.append([first.stamped(term=0, index=Index(2), base_offset=Offset(1), timestamp_ms=0)])
    with pytest.raises(BrokenInvariant, match="no entry"):
        log.append([Frame.of(FrameKind.MARK)])
    assert all_entries(log) == [first]


def test_recovery_accepts_exactly_what_append_accepts_at_the_size_limit() -> None:
    limits = Limits(message_bytes_max=1000, batch_bytes_max=5000)
    settings = LogSettings(segment_bytes=2048, allocation_bytes_min=512, limits=limits)
    disk, log = new_log(settings)
    largest = entry(log.edge, body=b"m" * 5000)
    log.append([largest])
    log.sync()
    with pytest.raises(TooLarge):
        log.append([entry(log.edge, body=b"m" * 5001)])
    log = reopened(disk, settings)
    assert (all_entries(log), log.damage, log.notes) == ([largest], [], [])


def test_a_group_larger_than_a_segment_is_kept_whole() -> None:
    disk, log = new_log()
    log.append(entries(log.edge, 1))
    log.append(group := entries(log.edge, 60, body=b"g" * 100))
    log.sync()
    assert log.segment_starts == [1, 2]
    assert all_entries(reopened(disk))[1:] == group


def test_cutting_removes_the_tail_for_good_and_leaves_room_for_another() -> None:
    disk, log = new_log()
    written = fill(log, 20)
    log.commit_index = Index(0)
    for index in (39, 30, 17, 9):
        log.cut(Index(index))
        assert log.edge.next_index == index
        assert all_entries(reopened(disk)) == written[: index - 1]
        log = reopened(disk)
        log.commit_index = Index(0)
    other = entries(log.edge, 3, term=2)
    log.append(other)
    log.sync()
    assert all_entries(reopened(disk)) == written[:8] + other


def test_what_is_committed_cannot_be_cut() -> None:
    _, log = new_log()
    fill(log, 3)
    with pytest.raises(BrokenInvariant, match="commit index 6"):
        log.cut(Index(6))


def test_the_commit_index_that_was_synced_is_known_after_a_restart() -> None:
    disk, log = new_log()
    log.append(entries(log.edge, 5))
    log.sync(Index(3))
    assert reopened(disk).commit_index == 3
    log = reopened(disk)
    log.append(entries(log.edge, 1))
    log.sync(Index(99))
    assert reopened(disk).commit_index == 6


def test_term_and_vote_survive_and_never_go_back() -> None:
    disk, log = new_log()
    log.save_vote(3, 0)
    log.save_vote(3, 2)
    log = reopened(disk)
    assert (log.term, log.vote) == (3, 2)
    for term, vote in ((2, 2), (3, 1), (3, 0)):
        with pytest.raises(BrokenInvariant):
            log.save_vote(term, vote)
    log.save_vote(4, 1)
    assert (log.term, log.vote) == (4, 1)


def test_the_front_is_dropped_by_whole_segments_that_a_checkpoint_replaces() -> None:
    disk, log = new_log()
    written = fill(log, 40)
    starts = log.segment_starts
    assert log.drop_before(starts[3]) == 1, "nothing replaces the entries yet"
    log.save_checkpoint(starts[2], b"the state")
    assert log.drop_before(Index(starts[2] - 1)) == 1, "the segment before is still needed"
    assert log.drop_before(log.edge.next_index) == starts[2]
    for found in live_and_reopened(disk, log):
        assert found.first_index == starts[2]
        assert all_entries(found) == written[starts[2] - 1 :]
        assert found.load_checkpoint(starts[2]).data == b"the state"
        assert found.start.next_offset == starts[2] - 1
        assert found.term_at(Index(starts[2] - 1)) == 1
    assert [path for path in disk.paths() if path < f"{FOLDER}/{starts[2]:020d}"] == []


def test_offsets_survive_dropping_everything() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.save_checkpoint(log.segment_starts[-1], b"")
    log.drop_before(log.edge.next_index)
    assert reopened(disk).edge == log.edge


def test_a_damaged_checkpoint_drops_nothing() -> None:
    disk, log = new_log()
    fill(log, 30)
    at = log.segment_starts[2]
    log.save_checkpoint(at, b"the state of the machine")
    disk.flip_bit(f"{FOLDER}/{at:020d}.ckpt", 8 * 90)
    with pytest.raises(Corrupt, match="ckpt"):
        log.drop_before(log.edge.next_index)
    assert log.first_index == 1


def test_a_checkpoint_belongs_at_the_start_of_a_segment() -> None:
    _, log = new_log()
    fill(log, 20)
    with pytest.raises(BrokenInvariant, match="no segment starts at 3"):
        log.save_checkpoint(Index(3), b"")
    _, small = new_log(LogSettings(checkpoint_bytes_max=10))
    with pytest.raises(TooLarge):
        small.save_checkpoint(Index(1), b"more than ten")


def test_a_reset_replaces_everything_by_a_checkpoint() -> None:
    disk, log = new_log()
    fill(log, 20)
    edge = Edge(Index(500), Offset(9000), 7, 123)
    log.reset(Checkpoint(edge, b"from the leader"))
    for found in live_and_reopened(disk, log):
        assert (found.start, found.edge, found.first_index) == (edge, edge, 500)
        assert found.load_checkpoint(Index(500)).data == b"from the leader"
        assert found.term_at(Index(499)) == 7
    log = reopened(disk)
    written = fill(log, 2)
    assert all_entries(reopened(disk)) == written


def test_creating_a_log_twice_is_refused_and_an_unfinished_creation_is_no_log() -> None:
    disk, _ = new_log()
    with pytest.raises(StorageFailed, match="exists already"):
        Log.create(disk, FOLDER, LOG_ID, SMALL)
    with pytest.raises(Corrupt, match="missing"):
        Log.open(disk, "log/nowhere/0", SMALL)


def test_only_a_few_sealed_segments_are_held_open() -> None:
    settings = LogSettings(segment_bytes=2048, allocation_bytes_min=512, open_segments_max=2)
    _, log = new_log(settings)
    written = fill(log, 40)
    for _ in range(2):
        assert all_entries(log) == written
    assert len(log._sealed._open) == 2


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 60))
def test_any_mix_of_entries_is_found_by_offset(counts: list[int], offset: int) -> None:
    _, log = new_log()
    owner = {}
    for count in counts:
        frame = entry(log.edge, count=count)
        owner.update(
            dict.fromkeys(range(frame.header.base_offset, frame.header.next_offset), frame)
        )
        log.append([frame])
    if offset in owner:
        assert log.read(log.index_of_offset(Offset(offset)), bytes_max=1) == [owner[offset]]
    else:
        with pytest.raises(OffsetOutOfRange):
            log.index_of_offset(Offset(offset))


def test_a_new_log_syncs_each_file_once_and_its_names_once() -> None:
    """Thousands are made at a time, and syncs are what they cost."""
    disk, asked = SimulatedDisk(Random(0)), Counter[str]()

    def count(name: str) -> float:
        asked[name] += 1
        return 0.0

    disk.faults.latency_ms = count
    founding = Checkpoint(Edge(), b"state")
    new = prepare_log(disk, FOLDER, Owner(LOG_ID, 1), SMALL, founding)
    files = len(disk.paths())
    assert (files, asked["sync"]) == (6, 6)
    assert {path.rpartition("/")[0] for path in disk.paths()} == {FOLDER + TEMPORARY}
    folders = asked["sync_folder"]
    assert folders == 1
    name_logs(disk, [FOLDER])
    asked.clear()
    log = Log.open_new(disk, SMALL, new)
    assert asked["sync"] + asked["sync_folder"] + asked["read"] == 0
    disk.lose_power()
    found = Log.open(disk, FOLDER, SMALL)
    for each in (log, found):
        assert (each.log_id, each.member, each.term, each.edge) == (LOG_ID, 1, 0, Edge())
        assert [each.load_checkpoint(index) for index in each.checkpoints()] == [founding]
    assert found.notes == []


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def test_a_log_that_nothing_is_written_to_keeps_one_file_open(tmp_path: Path) -> None:
    before = open_files()
    log = Log.create(RealDisk(tmp_path), FOLDER, LOG_ID, SMALL)
    log.save_vote(1, 1)
    assert open_files() == before + 1
    fill(log, 2)
    log.save_vote(2, 1)
    assert open_files() == before + 2
