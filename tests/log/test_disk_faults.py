"""A disk that fails: full, read-only, broken in fsync, stale, at every single operation."""

from collections.abc import Callable
from random import Random

import pytest

from quivermq.batches import Index
from quivermq.errors import Corrupt, StorageFailed, StorageFull
from quivermq.log import Checkpoint, Edge, Log
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk
from tests.log.entries import LOG_ID, entries, entry
from tests.log.logs import (
    FOLDER,
    SMALL,
    all_entries,
    fill,
    new_log,
    reopened,
    segment_paths,
)
from tests.log.storm import Model


def test_a_full_disk_refuses_cleanly_and_works_again_with_space() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    disk.faults.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths())
    refusals = 0
    for _ in range(40):
        try:
            kept += fill(log, 1)
        except StorageFull:
            refusals += 1
            assert all_entries(log) == kept
    assert refusals > 10
    log.save_vote(2, 1)
    disk.faults = Faults()
    kept += fill(log, 20)
    assert all_entries(reopened(disk)) == kept


def test_a_write_that_a_full_disk_stops_half_way_leaves_nothing_behind() -> None:
    disk, log = new_log()
    kept = fill(log, 1)
    refused = entries(log.edge, 3, body=b"r" * 50)
    disk.faults.fail_operation, disk.faults.failure = disk.operations, StorageFull
    with pytest.raises(StorageFull):
        log.append(refused)
    disk.faults = Faults()
    # Of the same size as the first that was refused: its followers would fit right behind it.
    kept += fill(log, 1, of=1, body=b"n" * 50)
    assert all_entries(reopened(disk)) == kept


def test_a_failed_fsync_fences_the_log_for_good() -> None:
    disk, log = new_log()
    kept = fill(log, 2)
    log.append(entries(log.edge, 2))
    disk.faults.fail_operation = disk.operations
    with pytest.raises(StorageFailed, match="fenced"):
        log.sync()
    disk.faults = Faults()
    for write in (
        log.sync,
        lambda: log.append([entry(log.edge)]),
        lambda: log.save_vote(9, 9),
        lambda: log.cut(Index(5)),
        lambda: log.save_checkpoint(Index(1), b""),
    ):
        with pytest.raises(StorageFailed, match="takes no more writes"):
            write()
    disk.lose_power()
    log = Log.open(disk, FOLDER, SMALL)
    assert all_entries(log)[:4] == kept


def test_what_a_failed_fsync_lost_is_not_taken_for_durable_after_a_restart() -> None:
    """The system shows the lost pages from memory: they must be written again, not trusted."""
    for seed in range(20):
        disk, log = new_log(seed=seed)
        kept = fill(log, 2)
        lost = entries(log.edge, 2)
        log.append(lost)
        disk.faults.fail_operation = disk.operations
        with pytest.raises(StorageFailed):
            log.sync()
        disk.faults = Faults()
        log = reopened(disk)
        assert all_entries(log) == kept + lost
        disk.lose_power()
        assert all_entries(Log.open(disk, FOLDER, SMALL)) == kept + lost


def test_a_read_only_file_system_refuses_every_write_and_still_reads() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    disk.faults.read_only = True
    with pytest.raises(StorageFailed, match="read-only"):
        log.append([entry(log.edge)])
    assert all_entries(log) == kept
    disk.faults = Faults()
    assert all_entries(reopened(disk)) == kept


def test_a_stale_read_is_recognised_and_not_served() -> None:
    disk, log = new_log()
    (path,) = segment_paths(disk)
    fill(log, 2)
    log.commit_index = Index(0)
    log.cut(Index(3))
    log.append([entry(log.edge, term=2, body=b"x" * 60)])
    log.sync()
    # Before the last sync another entry of the same size stood in this place, and was intact.
    disk.faults.stale_reads.add(path)
    with pytest.raises(Corrupt):
        log.read(Index(3))


def test_a_slow_disk_is_accounted_for() -> None:
    disk, log = new_log()
    disk.faults.latency_ms = lambda name: 200.0 if name == "sync" else 0.0
    log.append([entry(log.edge)])
    assert disk.busy_ms == 0
    log.sync()
    assert disk.busy_ms == 200


class Script:
    """A fixed run of every kind of operation, with the model beside it."""

    def __init__(self, seed: int) -> None:
        self.disk = SimulatedDisk(Random(seed))
        self.model = Model()
        self.allowed: list[Model] = []
        self.log: Log | None = None

    def run(self) -> None:
        log = self.log = Log.create(self.disk, FOLDER, LOG_ID, SMALL)
        self.vote(log, 1, 2)
        for _ in range(14):
            self.append(log)
            self.sync(log)
        self.append(log)
        starts = log.segment_starts
        self.checkpoint(log, starts[1])
        self.cut(log, self.model.last - 9)
        self.append(log)
        self.sync(log)
        self.drop(log, starts[1])
        self.vote(log, 2, 1)
        self.reset(log)
        self.append(log)
        self.sync(log)

    def do(self, act: Callable[[], object], follow: Callable[[Model], object]) -> None:
        before = Model(**vars(self.model))
        before.entries, before.checkpoints = list(before.entries), dict(before.checkpoints)
        follow(self.model)
        self.allowed = [before, self.model]
        act()
        self.allowed = [self.model]

    def append(self, log: Log) -> None:
        group = entries(log.edge, 3, body=b"k" * 50)
        self.do(lambda: log.append(group), lambda model: model.append(group))

    def sync(self, log: Log) -> None:
        self.do(log.sync, Model.sync)

    def vote(self, log: Log, term: int, vote: int) -> None:
        self.do(
            lambda: log.save_vote(term, vote),
            lambda model: model.__dict__.update(term=term, vote=vote),
        )

    def cut(self, log: Log, index: int) -> None:
        self.do(lambda: log.cut(Index(index)), lambda model: model.cut(index))

    def checkpoint(self, log: Log, at: Index) -> None:
        self.do(
            lambda: log.save_checkpoint(at, b"state"),
            lambda model: model.checkpoints.update({int(at): b"state"}),
        )

    def drop(self, log: Log, first: Index) -> None:
        self.do(lambda: log.drop_before(first), lambda model: model.drop(first))

    def reset(self, log: Log) -> None:
        edge = log.edge
        checkpoint = Checkpoint(Edge(Index(edge.next_index + 5), *edge[1:]), b"another state")
        self.do(lambda: log.reset(checkpoint), lambda model: model.reset(checkpoint))


def operations_of_the_script() -> int:
    script = Script(0)
    script.run()
    return script.disk.operations


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("failure", [Killed, StorageFailed, StorageFull])
def test_whichever_operation_fails_nothing_durable_is_lost(
    failure: type[BaseException], power: bool
) -> None:
    """The k-th operation fails, for every k (F3, F16, F17)."""
    total = operations_of_the_script()
    assert total > 150
    for k in range(total):
        script = Script(k)
        script.disk.faults.fail_operation, script.disk.faults.failure = k, failure
        try:
            script.run()
        except (Killed, StorageFailed):
            pass
        else:
            pytest.fail(f"operation {k} failed, and nobody was told")
        script.disk.faults = Faults()
        if power:
            script.disk.lose_power()
        else:
            script.disk.kill()
        if script.log is None and not script.disk.is_folder(FOLDER):
            continue
        log = Log.open(script.disk, FOLDER, SMALL)
        faults = [model.mismatch(log, lossless=False) for model in script.allowed or [Model()]]
        assert "" in faults, f"operation {k}: {' / '.join(faults)}"
        fill(log, 3)


def test_an_intact_entry_that_is_not_the_one_written_is_damage() -> None:
    disk, log = new_log()
    kept = fill(log, 3)
    segment, _ = log._segment_holding(Index(2))
    header = kept[1].header
    other = kept[1].stamped(
        term=header.term,
        index=header.index,
        base_offset=header.base_offset,
        timestamp_ms=header.timestamp_ms + 1,
    )
    content = bytearray(disk.content(segment.path))
    at = segment.index.positions[1]
    content[at : at + len(other)] = bytes(other)
    disk.replace_content(segment.path, bytes(content))
    with pytest.raises(Corrupt, match="another entry"):
        log.read(Index(2))


def test_a_vote_survives_a_failed_fsync_a_restart_and_a_torn_save() -> None:
    """Which copy of the state the disk surely has depends on which was written first: the next
    save must begin with the other one."""
    for seed in range(40):
        disk, log = new_log(seed=seed)
        log.save_vote(1, 1)
        # The second copy of the next vote is written, and its fsync fails.
        disk.faults.fail_operation = disk.operations + 5
        with pytest.raises(StorageFailed):
            log.save_vote(2, 1)
        disk.faults = Faults()
        log = reopened(disk)
        assert (log.term, log.vote) == (2, 1), "one copy is durable, so it may be acted on"
        # The first copy is being written.
        disk.faults.fail_operation, disk.faults.failure = disk.operations + 1, Killed
        with pytest.raises(Killed):
            log.save_vote(3, 1)
        disk.faults = Faults()
        disk.lose_power()
        log = Log.open(disk, FOLDER, SMALL)
        assert (log.term, log.vote) in {(2, 1), (3, 1)}, f"seed {seed}"
