"""What `Verification` reports; that it reports every flipped bit is shown in test_recovery."""

from random import Random

import pytest

from quivermq.batches import Frame, FrameKind, Index, encode_batch
from quivermq.log import Checkpoint, Log, Verification, find_logs, log_bytes
from quivermq.log.checkpoints import RESET
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk
from tests.log.entries import LOG_ID, entries, entry
from tests.log.logs import FOLDER, SMALL, fill, new_log, reopened, segment_paths, verified


def test_an_intact_log_is_described() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.save_vote(7, 3)
    log.save_checkpoint(log.segment_starts[1], b"state")
    report = verified(disk)
    assert report.findings == []
    assert (report.entries, report.messages) == (60, 60)
    assert (report.segments, report.checkpoints) == (len(log.segment_starts), 1)
    assert (report.term, report.vote) == (7, 3)
    assert (report.start, report.end) == (log.start, log.edge)
    assert not report.is_damaged


def test_progress_adds_up_to_everything_there_is() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.save_checkpoint(log.segment_starts[1], b"state")
    done: list[int] = []
    Verification(disk, FOLDER, SMALL, progress=done.append).run()
    assert sum(done) == log_bytes(disk, FOLDER)


def test_verifying_changes_nothing() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.append([entry(log.edge, body=b"torn" * 50)])
    path = segment_paths(disk)[-1]
    content = disk.content(path)
    disk.replace_content(path, content[: log._active.end - 30] + bytes(len(content)))
    before = {path: disk.content(path) for path in disk.paths()}
    disk.faults.read_only = True
    report = verified(disk)
    assert [finding.severity for finding in report.findings] == ["torn"]
    assert {path: disk.content(path) for path in disk.paths()} == before


def test_damage_names_file_position_and_entries() -> None:
    disk, log = new_log()
    fill(log, 30)
    first = log.segment_starts[1]
    segment, _ = log._segment_holding(first)
    position = segment.index.positions[2]
    path = segment_paths(disk)[1]
    disk.flip_bit(path, 8 * position + 3)
    (finding,) = verified(disk).findings
    assert (finding.severity, finding.path, finding.position) == ("damage", path, position)
    assert finding.text.startswith(f"entries {first + 2} to {first + 3} are damaged")


def test_a_checkpoint_that_is_damaged_is_damage() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.save_checkpoint(log.segment_starts[1], b"state")
    path = next(path for path in disk.paths() if path.endswith(".ckpt"))
    disk.flip_bit(path, 8 * (len(disk.content(path)) - 1))
    assert [(f.severity, f.path) for f in verified(disk).findings] == [("damage", path)]


def test_a_deep_check_decodes_what_a_checksum_cannot_judge() -> None:
    disk, log = new_log()
    good = encode_batch([b"a", b"b"])
    liar = entry(log.edge, body=b"this is no Arrow message")
    log.append([liar])
    edge = log.edge
    log.append(
        [good.stamped(term=1, index=edge.next_index, base_offset=edge.next_offset, timestamp_ms=0)]
    )
    log.sync()
    assert verified(disk).findings == []
    (finding,) = Verification(disk, FOLDER, SMALL, deep=True).run().findings
    assert finding.severity == "damage"
    assert "entry 1" in finding.path
    assert "cannot be decoded" in finding.text


def test_an_unfinished_cut_is_noted() -> None:
    disk, log = new_log()
    fill(log, 3)
    log._state_file.save(log._state_file.state._replace(cut_index=Index(4)))
    assert [finding.severity for finding in verified(disk).findings] == ["note"]


@pytest.mark.parametrize("name", ["cut", "reset", "drop", "roll"])
def test_work_that_a_crash_interrupted_is_no_damage(name: str) -> None:
    for stop in range(100):
        disk, log = new_log()
        fill_uncommitted(log, 30)
        for start in log.segment_starts:
            log.save_checkpoint(start, b"state")
        disk.faults = Faults(fail_operation=disk.operations + stop, failure=Killed)
        try:
            if name == "cut":
                log.cut(Index(5))
            elif name == "reset":
                log.reset(Checkpoint(log.edge, b"other"))
            elif name == "drop":
                log.drop_before(log.edge.next_index)
            else:
                fill(log, 5)
        except Killed:
            disk.faults = Faults()
            assert not verified(disk).is_damaged
            assert reopened(disk).damage == []
        else:
            return
    pytest.fail("it took more than 100 operations")


def test_a_log_whose_creation_was_interrupted_is_not_there() -> None:
    for stop in range(100):
        disk = SimulatedDisk(Random(stop))
        disk.faults = Faults(fail_operation=stop, failure=Killed)
        try:
            Log.create(disk, FOLDER, LOG_ID, SMALL)
        except Killed:
            disk.faults = Faults()
            for folder in find_logs(disk):
                assert not Verification(disk, folder, SMALL).run().is_damaged
        else:
            return


def test_a_lost_checkpoint_that_the_log_starts_from_is_damage() -> None:
    disk, log = new_log()
    fill(log, 30)
    log.save_checkpoint(log.segment_starts[2], b"state")
    log.drop_before(log.segment_starts[2])
    (path,) = (path for path in disk.paths() if path.endswith(".ckpt"))
    disk.lose_file(path)
    assert [(f.severity, f.path) for f in verified(disk).findings] == [("note", path)]
    disk.lose_file(f"{path}.copy")
    assert [(f.severity, f.path) for f in verified(disk).findings] == [("damage", path)]


def test_a_damaged_checkpoint_that_was_about_to_replace_the_log_is_damage() -> None:
    disk, log = new_log()
    fill(log, 3)
    log._checkpoints.save(Checkpoint(log.edge, b"other"), RESET)
    log._state_file.save(log._state_file.state._replace(reset_index=log.edge.next_index))
    assert not verified(disk).is_damaged
    (path,) = (path for path in disk.paths() if path.endswith(RESET))
    disk.flip_bit(path, 8 * 30)
    assert verified(disk).is_damaged


def fill_uncommitted(log: Log, groups: int) -> None:
    for _ in range(groups):
        log.append(entries(log.edge, 2, body=b"x" * 60))
        log.sync()


def test_logs_are_found_wherever_one_points() -> None:
    disk, log = new_log()
    log.append(
        [
            Frame.of(FrameKind.NOOP).stamped(
                term=1, index=Index(1), base_offset=log.edge.next_offset, timestamp_ms=0
            )
        ]
    )
    assert list(find_logs(disk)) == [FOLDER]
    assert list(find_logs(disk, "log/orders")) == [FOLDER]
    assert list(find_logs(disk, FOLDER)) == [FOLDER]
    assert list(find_logs(SimulatedDisk(disk.random))) == []
