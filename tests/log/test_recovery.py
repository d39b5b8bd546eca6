"""What opening a log makes of torn writes, flipped bits, and files that are cut, empty or gone."""

from dataclasses import replace

import pytest

from quivermq.batches import HEADER_BYTES, Frame, Index, Limits
from quivermq.errors import BrokenInvariant, Corrupt, StorageFailed, UnsupportedFormat
from quivermq.log import Log
from quivermq.log.layout import SEGMENT_HEADER_BYTES
from quivermq.log.marks import MARK_BYTES
from quivermq.log.state import _FORMER
from tests.log.entries import LOG_ID, entries, entry
from tests.log.logs import (
    FOLDER,
    SMALL,
    all_entries,
    fill,
    new_log,
    reopened,
    segment_paths,
    verified,
)


def test_a_write_torn_at_any_byte_of_the_last_frame_is_cut_and_nothing_else() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    end = log._active.end
    last = entry(log.edge, body=bytes(range(1, 200)))
    log.append([last])
    (path,) = segment_paths(disk)
    whole = disk.content(path)
    assert whole[end : end + len(last)] == bytes(last)
    for torn_at in range(end, end + len(last)):
        disk.replace_content(path, whole[:torn_at] + bytes(len(whole) - torn_at))
        if torn_at > end:
            assert [f.severity for f in verified(disk).findings] == ["torn"]
        log = reopened(disk)
        assert (all_entries(log), log.damage) == (kept, [])
        assert len(log.notes) == (torn_at > end)
        assert reopened(disk).notes == [], "the second opening finds nothing left to do"
        assert verified(disk).findings == []


def test_a_group_torn_with_later_frames_whole_is_cut_where_it_starts_to_lack() -> None:
    disk, log = new_log()
    kept = fill(log, 2)
    first, second, third = entries(log.edge, 3, body=b"w" * 100)
    at = log._active.end
    log.append([first, second, third])
    (path,) = segment_paths(disk)
    whole = disk.content(path)
    hole = at + len(first)
    disk.replace_content(path, whole[:hole] + bytes(len(second)) + whole[hole + len(second) :])
    log = reopened(disk)
    assert (all_entries(log), log.damage) == ([*kept, first], [])
    # What was cut must not come back behind the next entries.
    written = fill(log, 1, of=1, body=b"w" * 100)
    assert all_entries(reopened(disk)) == [*kept, first, *written]


def test_a_bad_frame_with_a_mark_behind_it_is_damage_and_is_never_cut() -> None:
    disk, log = new_log()
    kept = fill(log, 4)
    (path,) = segment_paths(disk)
    for number in range(len(kept)):
        whole = disk.content(path)
        at = log._active.index.positions[number]
        disk.flip_bit(path, 8 * (at + HEADER_BYTES + 5))
        found = reopened(disk)
        (damage,) = found.damage
        assert damage.covers(Index(number + 1))
        assert (damage.path, damage.position) == (path, at)
        assert found.edge == log.edge, "the log is as long as it was"
        for index in range(1, 9):
            if damage.covers(Index(index)):
                with pytest.raises(Corrupt, match="damaged"):
                    found.read(Index(index))
            else:
                assert found.read(Index(index), bytes_max=1) == [kept[index - 1]]
        disk.replace_content(path, whole)


@pytest.mark.parametrize("sealed", [True, False])
def test_cutting_behind_damage_does_not_cut_the_damage(sealed: bool) -> None:
    for number in range(4):
        disk, log = new_log()
        kept = fill_uncommitted(log, 8, of=4) if sealed else fill_uncommitted(log, 1, of=4)
        disk.flip_bit(segment_paths(disk)[0], 8 * (position_of(log, number) + HEADER_BYTES + 5))
        edge = log.edge_before(Index(4))
        log.cut(Index(4))
        assert log.edge == edge
        found = reopened(disk)
        assert (found.edge, bool(found.damage)) == (edge, number < 3)
        for frame in kept[:number]:
            assert found.read(frame.header.index, bytes_max=1) == [frame]


def test_a_cut_whose_segment_is_missing_is_damage() -> None:
    disk, log = new_log()
    fill(log, 3)
    log._state_file.save(log._state_file.state._replace(cut_index=Index(4)))
    (path,) = segment_paths(disk)
    disk.remove(path)
    for _ in range(2):
        with pytest.raises(Corrupt, match="cut at entry 4 is missing"):
            reopened(disk)


def test_a_cut_that_a_crash_interrupted_does_not_cut_damage_before_it() -> None:
    disk, log = new_log()
    fill_uncommitted(log, 1, of=4)
    (path,) = segment_paths(disk)
    disk.flip_bit(path, 8 * (position_of(log, 1) + 5))
    log._state_file.save(log._state_file.state._replace(cut_index=Index(4)))
    before = disk.content(path)
    with pytest.raises(Corrupt, match="what is before entry 4 is unknown"):
        reopened(disk)
    assert disk.content(path) == before


def fill_uncommitted(log: Log, groups: int, *, of: int) -> list[Frame]:
    written = []
    for _ in range(groups):
        written += entries(log.edge, of, body=b"u" * 60)
        log.append(written[-of:])
        log.sync()
    return written


def position_of(log: Log, number: int) -> int:
    segment, _ = log._segment_holding(Index(1))
    return segment.index.positions[number]


@pytest.mark.parametrize("number", [1, -2])
def test_an_old_file_with_entries_that_were_cut_since_is_not_taken(number: int) -> None:
    disk, log = new_log()
    fill_uncommitted(log, 30, of=2)
    paths, contents = segment_paths(disk), [disk.content(path) for path in segment_paths(disk)]
    log.cut(log.segment_starts[1])
    while len(segment_paths(disk)) < len(paths):
        log.append(entries(log.edge, 2, body=b"w" * 60, term=2))
        log.sync()
    kept = all_entries(log)
    disk.replace_content(paths[number], contents[number])
    assert verified(disk).is_damaged
    log = reopened(disk)
    (damage,) = log.damage
    assert damage.path == paths[number]
    log.repair([frame for frame in kept if damage.covers(frame.header.index)])
    assert (all_entries(log), log.damage) == (kept, [])


def test_what_was_accepted_stays_readable_under_lower_limits() -> None:
    disk, log = new_log()
    kept = fill(log, 30, body=b"x" * 500)
    low = replace(SMALL, limits=Limits(message_bytes_max=100, batch_bytes_max=100))
    for settings in (low, SMALL):
        log = reopened(disk, settings)
        assert (all_entries(log), log.damage, log.notes) == (kept, [], [])
        assert verified(disk, settings).findings == []


def test_messages_that_look_like_marks_do_not_slow_the_search_for_marks() -> None:
    disk, log = new_log(replace(SMALL, segment_bytes=1 << 20))
    log.append(entries(log.edge, 2, body=b"\x51\x71\x01\x05" * 50_000))
    (path,) = segment_paths(disk)
    disk.flip_bit(path, 8 * (log._active.index.positions[0] + 3))
    before = disk.operations
    assert reopened(disk).notes
    assert disk.operations - before < 100


def test_a_log_with_a_damaged_middle_takes_entries_at_its_end() -> None:
    disk, log = new_log()
    fill(log, 4)
    (path,) = segment_paths(disk)
    disk.flip_bit(path, 8 * (log._active.index.positions[2] + 3))
    log = reopened(disk)
    assert log.damage
    written = fill(log, 20)
    log = reopened(disk)
    assert [log.read(f.header.index, bytes_max=1) for f in written] == [[f] for f in written]
    assert log.damage


def test_a_flip_in_a_sealed_segment_is_found_by_reading_it() -> None:
    disk, log = new_log()
    kept = fill(log, 30)
    path = segment_paths(disk)[1]
    first = log.segment_starts[1]
    segment, _ = log._segment_holding(first)
    disk.flip_bit(path, 8 * (segment.index.positions[1] + 20))
    log = reopened(disk)
    assert log.damage == []
    assert log.read(first) == [kept[first - 1]], "what is before the damage is served"
    with pytest.raises(Corrupt, match=f"entry {first + 1} is damaged"):
        log.read(Index(first + 1))
    (damage,) = log.damage
    assert (damage.first_index, damage.last_index) == (first + 1, first + 1)
    assert log.read(Index(first + 2), bytes_max=1) == [kept[first + 1]]


@pytest.mark.parametrize("stride", [0, 1, 2, 3])
def test_a_flipped_bit_anywhere_is_reported_and_never_served(stride: int) -> None:
    """Every byte of every file, one bit of each (F10, F11)."""
    disk, log = new_log()
    kept = fill(log, 14)
    at = log.segment_starts[-1]
    log.save_checkpoint(at, b"state" * 20)
    log.save_vote(5, 2)
    for path in disk.paths():
        whole = disk.content(path)
        for byte in range(stride, len(whole), 4):
            disk.flip_bit(path, 8 * byte + byte * 7 % 8)
            assert verified(disk).findings, f"{path}: a flip of byte {byte} goes unseen"
            try:
                log = reopened(disk)
                assert (log.term, log.vote) == (5, 2)
                assert log.edge.next_index == 29
                for index in range(1, 29):
                    try:
                        assert log.read(Index(index), bytes_max=1) == [kept[index - 1]]
                    except Corrupt:
                        assert any(damage.covers(Index(index)) for damage in log.damage)
                assert log.load_checkpoint(at).data == b"state" * 20
            except Corrupt as error:
                assert path in str(error)
            disk.replace_content(path, whole)


@pytest.mark.parametrize("name", ["state", "state.copy"])
def test_the_vote_survives_the_loss_of_either_file(name: str) -> None:
    disk, log = new_log()
    other = Log.create(disk, "log/orders/1", b"another log's id", SMALL)
    other.save_vote(10, 1)
    log.save_vote(9, 3)
    path = f"{FOLDER}/{name}"
    whole = disk.content(path)
    flipped = bytearray(whole)
    flipped[20] ^= 1
    (segment,) = segment_paths(disk)[:1]
    contents = (bytes(flipped), b"", whole[:50], bytes(len(whole)), disk.content(segment))
    for content in (*contents, disk.content("log/orders/1/state"), None):
        if content is None:
            disk.lose_file(path)
        else:
            disk.replace_content(path, content)
        assert verified(disk).findings
        assert not verified(disk).is_damaged
        log = reopened(disk)
        assert (log.term, log.vote) == (9, 3)
        assert path in log.notes[0]
        assert disk.content(f"{FOLDER}/state") == disk.content(f"{FOLDER}/state.copy") == whole


def test_without_both_files_the_vote_is_unknown() -> None:
    disk, log = new_log()
    log.save_vote(9, 3)
    for name in ("state", "state.copy"):
        disk.replace_content(f"{FOLDER}/{name}", bytes(4096))
    with pytest.raises(Corrupt, match="term and vote are unknown"):
        reopened(disk)


def test_a_disk_that_gives_neither_file_for_a_while_has_lost_nothing() -> None:
    disk, log = new_log()
    log.save_vote(9, 3)
    paths = [f"{FOLDER}/{name}" for name in ("state", "state.copy")]
    for path in paths:
        disk.lose_block(path, 0)
    with pytest.raises(StorageFailed, match="neither copy of its state can be read"):
        reopened(disk)
    assert verified(disk).is_damaged
    for path in paths:
        disk._seen[path].lost_blocks.clear()
    assert (reopened(disk).term, reopened(disk).vote) == (9, 3)


def test_a_state_of_an_earlier_build_is_refused_and_left_alone() -> None:
    disk, _ = new_log()
    old = _FORMER.pack(LOG_ID, bytes(16), 5, 3, 1, 1, 1, 4096, 0, 0).ljust(4096, b"\0") * 2
    disk.replace_content(f"{FOLDER}/state", old)
    with pytest.raises(UnsupportedFormat, match="earlier build"):
        reopened(disk)
    assert disk.content(f"{FOLDER}/state") == old


def test_a_lost_footer_index_or_header_is_made_again_from_the_entries() -> None:
    for position in (-10, -200, 12):
        disk, log = new_log()
        kept = fill(log, 30)
        path = segment_paths(disk)[1]
        whole = disk.content(path)
        disk.flip_bit(path, 8 * (position % len(whole)))
        log = reopened(disk)
        assert (all_entries(log), log.damage) == (kept, [])


def test_a_damaged_header_of_the_last_segment_is_made_again() -> None:
    disk, log = new_log()
    kept = fill(log, 30)
    path = segment_paths(disk)[-1]
    whole = disk.content(path)
    disk.flip_bit(path, 8 * 30)
    log = reopened(disk)
    assert all_entries(log) == kept
    assert "made the header again" in log.notes[0]
    assert disk.content(path)[:SEGMENT_HEADER_BYTES] == whole[:SEGMENT_HEADER_BYTES]


@pytest.mark.parametrize("left", ["nothing", "half"])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_truncated_segment_is_damage(which: int, left: str) -> None:
    disk, log = new_log()
    kept = fill(log, 30)
    path = segment_paths(disk)[which]
    content = disk.content(path)
    disk.replace_content(path, content[: len(content) // 2] if left == "half" else b"")
    assert verified(disk).is_damaged
    log = reopened(disk)
    (damage,) = log.damage
    assert damage.path == path
    for frame in kept:
        index = frame.header.index
        if damage.covers(index):
            # An unknown end is outside the log, a known one is refused.
            with pytest.raises((Corrupt, BrokenInvariant)):
                log.read(index)
        else:
            assert log.read(index, bytes_max=1) == [frame]


def test_a_log_whose_last_segment_was_cut_by_others_takes_no_entries() -> None:
    disk, log = new_log()
    fill(log, 30)
    path = segment_paths(disk)[-1]
    disk.replace_content(path, disk.content(path)[: SEGMENT_HEADER_BYTES + 10])
    log = reopened(disk)
    assert log.damage[0].last_index is None
    with pytest.raises(Corrupt, match="takes no entries"):
        log.append([entry(log.edge)])


def test_a_missing_segment_in_the_middle_or_in_front_is_damage() -> None:
    for which in (0, 1, 2):
        disk, log = new_log()
        kept = fill(log, 40)
        starts = log.segment_starts
        disk.lose_file(segment_paths(disk)[which])
        assert verified(disk).is_damaged
        log = reopened(disk)
        (damage,) = log.damage
        assert damage.reason == "the segment file is missing"
        assert (damage.first_index, damage.last_index) == (starts[which], starts[which + 1] - 1)
        good = [f for f in kept if not damage.covers(f.header.index)]
        assert [log.read(f.header.index, bytes_max=1)[0] for f in good] == good


@pytest.mark.parametrize("name", ["state", "last segment", "every segment"])
def test_a_log_that_lost_its_end_or_its_vote_does_not_open(name: str) -> None:
    disk, log = new_log()
    fill(log, 30)
    lost = {
        "state": [f"{FOLDER}/state", f"{FOLDER}/state.copy"],
        "last segment": segment_paths(disk)[-1:],
        "every segment": segment_paths(disk),
    }[name]
    for path in lost:
        disk.lose_file(path)
    assert verified(disk).is_damaged
    with pytest.raises(Corrupt, match="missing"):
        reopened(disk)


def test_files_of_another_log_are_not_taken_for_ours() -> None:
    disk, log = new_log()
    fill(log, 30)
    other = Log.create(disk, "log/orders/1", b"another log's id", SMALL)
    fill(other, 30)
    for which in (0, 1, -1):
        path = segment_paths(disk)[:5][which]
        whole = disk.content(path)
        disk.replace_content(path, disk.content(path.replace("orders/0", "orders/1")))
        assert verified(disk).findings
        try:
            assert reopened(disk).damage
        except Corrupt as error:
            assert "another" in str(error) or "missing" in str(error)
        disk.replace_content(path, whole)


def test_bytes_in_a_message_that_look_like_a_mark_prove_nothing() -> None:
    disk, log = new_log()
    kept = fill(log, 2)
    (path,) = segment_paths(disk)
    marks = disk.content(path)[log._active.end - MARK_BYTES : log._active.end]
    at = log._active.end
    log.append([entry(log.edge, body=marks * 3)])
    disk.flip_bit(path, 8 * (at + 4))
    log = reopened(disk)
    assert (all_entries(log), log.damage) == (kept, [])


def test_an_unreadable_mark_between_good_entries_loses_nothing() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    (path,) = segment_paths(disk)
    third = log._active.index.positions[2]
    disk.flip_bit(path, 8 * (third - MARK_BYTES + 7))
    log = reopened(disk)
    assert (all_entries(log), log.damage) == (kept, [])
    assert "marks are unreadable" in log.notes[0]


def test_a_tail_that_reads_as_zeros_with_its_marks_is_damage() -> None:
    """Nothing in the file tells that anything was there: it looks like a log that ended earlier."""
    disk, log = new_log()
    kept = fill(log, 4)
    (path,) = segment_paths(disk)
    content = disk.content(path)
    for keep in (0, 2):
        at = content.index(kept[keep].packed_header)
        disk.replace_content(path, content[:at] + bytes(len(content) - at))
        assert verified(disk).is_damaged
        log = reopened(disk)
        (damage,) = log.damage
        assert (damage.first_index, damage.last_index) == (kept[keep].header.index, len(kept))
        assert log.edge.next_index == len(kept) + 1
        log.repair(kept[keep:])
        assert (all_entries(log), log.damage) == (kept, [])
        assert all_entries(reopened(disk)) == kept
        disk.replace_content(path, content)


def test_entries_that_were_cut_are_not_missed() -> None:
    disk, log = new_log()
    kept = entries(log.edge, 6)
    log.append(kept)
    log.sync()
    log.cut(Index(4))
    assert (all_entries(reopened(disk)), reopened(disk).damage) == (kept[:3], [])


@pytest.mark.parametrize("content", [None, b"", b"something else"])
def test_how_far_it_was_synced_is_told_again_where_that_was_lost(content: bytes | None) -> None:
    disk, log = new_log()
    kept = fill(log, 4)
    path = f"{FOLDER}/synced"
    whole = disk.content(path)
    if content is None:
        disk.lose_file(path)
    else:
        disk.replace_content(path, content)
    assert [finding.path for finding in verified(disk).findings] == [path]
    log = reopened(disk)
    assert (all_entries(log), log.damage) == (kept, [])
    assert disk.content(path)[: len(whole)] == whole


@pytest.mark.parametrize("suffix", ["", ".copy"])
def test_the_first_checkpoint_survives_the_loss_of_either_file(suffix: str) -> None:
    disk, log = new_log()
    fill(log, 30)
    first = log.segment_starts[2]
    log.save_checkpoint(first, b"state" * 20)
    log.drop_before(first)
    path = f"{FOLDER}/{first:020}.ckpt{suffix}"
    whole = disk.content(path)
    for content in (whole[:-1] + b"x", b"", disk.content(f"{FOLDER}/state"), None):
        if content is None:
            disk.lose_file(path)
        else:
            disk.replace_content(path, content)
            assert verified(disk).findings
        assert not verified(disk).is_damaged
        log = reopened(disk)
        assert log.checkpoints() == [first]
        assert log.load_checkpoint(first).data == b"state" * 20
        assert disk.content(path) == whole
        assert path in log.notes[0]
