"""Files of a data directory: checkpoints, segments, marks, the records of a log, lists of logs."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from random import Random
from unittest.mock import patch

from quivermq.batches import Frame, FrameKind, Index, Offset
from quivermq.errors import QuiverError
from quivermq.log import Checkpoint, Edge, Log, LogSettings, Verification, checkpoints, layout
from quivermq.log import state as log_state
from quivermq.log import synced as log_synced
from quivermq.log.records import Record
from quivermq.node.data_dir import DataDirectory, ListedLog, damaged_files
from quivermq.node.machine import Machine
from quivermq.node.mirrored_file import _encoded
from quivermq.queue import Partition, catalog_command
from quivermq.raft import Configuration
from quivermq.replica import ReplicaState
from quivermq.testing.simulated_disk import SimulatedDisk
from tests.fuzz.seals import seal_record, seal_segment
from tests.fuzz.target import Target
from tests.log.entries import LOG_ID, entries
from tests.queue.lease_stage import DeskStage
from tests.queue.storm import ACTS
from tests.replica.group import Group, batch

FOLDER = "log/orders/0"
SETTINGS = LogSettings(segment_bytes=1 << 10, allocation_bytes_min=512, allocation_bytes_step=512)
SECRET = b"a secret of fuzz"
"""The same in every process, so that kept inputs stay inputs of this log."""
Files = dict[str, bytes]


# The state of a replica.


def _states() -> list[bytes]:
    """Of partitions that are new, that have producers, groups with leases, a catalog."""
    group = Group(1)
    leader = group.leader()
    for number in range(20):
        group.produce(leader, batch(b"x", producer=7, epoch=1, sequence=number))
    catalog = Partition()
    command = Frame.of(FrameKind.COMMAND, catalog_command(0, {"a": {"b": [1, None]}}))
    catalog.apply(command.stamped(term=1, index=Index(1), base_offset=Offset(0), timestamp_ms=5))
    assert leader.replica._live is not None
    producers = leader.replica._live.partition
    partitions = [Partition(), producers, catalog, _used_partition(3)]
    members = Configuration(voters=(1, 2), outgoing=(2, 3), learners_next=(3,))
    return [ReplicaState(members, partition).pack() for partition in partitions]


def _used_partition(seed: int) -> Partition:
    """One of which groups have made every use."""
    dice, stage = Random(seed), DeskStage()
    for _ in range(150):
        dice.choice(ACTS)(stage, dice)
    stage.commit(100)
    return stage.partition


def _read_state(data: bytes) -> None:
    state = ReplicaState.unpack(data)
    # What was understood can be written, and is understood again.
    ReplicaState.unpack(state.pack())


# A log: each input takes the place of one of its files.


@cache
def _log_files() -> Files:
    """The files of a log of four segments with checkpoints, the first of which was dropped."""
    disk = SimulatedDisk(Random(1))
    founding = Checkpoint(Edge(), b"founding")
    with patch("quivermq.log.creation.token_bytes", return_value=SECRET):
        log = Log.create(disk, FOLDER, LOG_ID, SETTINGS, founding, member=1)
    for _ in range(10):
        log.append(entries(log.edge, 2, body=b"body" * 6, at_ms=log.edge.next_index))
        log.sync(Index(log.edge.next_index - 1))
    for start in log.segment_starts:
        log.save_checkpoint(start, b"state before %d" % start)
    log.drop_before(log.segment_starts[1])
    log.save_vote(1, 1)
    return {path: disk.content(path) for path in disk.paths()}


@cache
def _intact_entries() -> list[Frame]:
    log = Log.open(_disk(_log_files()), FOLDER, SETTINGS)
    return list(log.frames(log.first_index))


def _disk(files: Files) -> SimulatedDisk:
    disk = SimulatedDisk(Random(1))
    disk.make_folder(FOLDER)
    for path, content in files.items():
        disk.create(path)
        disk.replace_content(path, content)
    return disk


def _paths(*suffixes: str) -> list[str]:
    return [path for path in _log_files() if path.endswith(suffixes)]


_RECORDS = ("state", "state.copy", "synced", ".ckpt", ".ckpt.copy")


def _samples_of(suffixes: tuple[str, ...]) -> list[bytes]:
    """Which file, and its content."""
    return [
        bytes([number]) + _used(_log_files()[path]) for number, path in enumerate(_paths(*suffixes))
    ]


def _used(content: bytes) -> bytes:
    """A file without what is only reserved at its end; numbers may end with zeros."""
    return content[: len(content.rstrip(b"\0")) + 8]


def _read_file(suffixes: tuple[str, ...], data: bytes) -> None:
    """The first byte says which of these files the others stand for."""
    paths = _paths(*suffixes)
    path = paths[data[0] % len(paths)] if data else paths[0]
    before, content = _log_files()[path], data[1:]
    if before.endswith(b"\0"):
        # Of a file that was allocated before it was filled the samples lack the rest.
        content = content.ljust(len(before), b"\0")
    _read_log({**_log_files(), path: content})


def _read_marks(data: bytes) -> None:
    """Entries and marks behind the header of the last segment, which all else follows."""
    path = _paths(".seg")[-1]
    whole = _log_files()[path]
    head = whole[: layout.SEGMENT_HEADER_BYTES]
    _read_log({**_log_files(), path: (head + data).ljust(len(whole), b"\0")})


def _read_log(files: Files) -> None:
    """Verify, open, read, repair, append, and open again."""
    with suppress(QuiverError):
        Verification(_disk(files), FOLDER, SETTINGS, deep=True).run()
    disk = _disk(files)
    log = Log.open(disk, FOLDER, SETTINGS)
    _look_around(log)
    for path in {damage.path for damage in log.damage}:
        with suppress(QuiverError):
            _repair(log, path)
    if not log.damage:
        log.append(entries(log.edge, 2))
        log.sync(log.commit_index)
        disk.kill()
        again = Log.open(disk, FOLDER, SETTINGS)
        assert again.edge == log.edge, f"{log.edge} became {again.edge}"


def _repair(log: Log, path: str) -> None:
    """Give back all that one damaged file has lost, as another replica would."""
    lost = [damage for damage in log.damage if damage.path == path]
    frames = [f for f in _intact_entries() if any(d.covers(f.header.index) for d in lost)]
    if frames and all(damage.last_index is not None for damage in lost):
        log.repair(frames)


def _look_around(log: Log) -> None:
    end = log.edge.next_index
    middle = Index((log.first_index + end) // 2)
    with suppress(QuiverError):
        list(log.frames(log.first_index))
    for index in log.checkpoints():
        with suppress(QuiverError):
            log.load_checkpoint(index)
    for look in (
        lambda: log.index_of_offset(Offset(14)),
        lambda: log.index_of_time(14),
        lambda: log.edge_before(middle),
        lambda: log.term_at(min(middle, Index(end - 1))),
    ):
        with suppress(QuiverError):
            look()


def _seal_segment_file(data: bytes) -> bytes:
    sealed = seal_segment(data[1:], layout._HEADER, layout._FOOTER, SECRET)
    return data[:1] + sealed


def _seal_marks(data: bytes) -> bytes:
    head = bytes(layout.SEGMENT_HEADER_BYTES)
    return seal_segment(head + data, layout._HEADER, layout._FOOTER, SECRET)[len(head) :]


_BY_MAGIC = {
    record.magic: record
    for record in (log_state._RECORD, log_state._FORMER, log_synced._RECORD, checkpoints._HEADER)
}


def _seal_record_file(data: bytes) -> bytes:
    record: Record | None = _BY_MAGIC.get(data[1:9])
    if record is None:
        return data
    return data[:1] + seal_record(data[1:].ljust(record.size, b"\0"), record)


def _marks() -> list[bytes]:
    return [_used(_log_files()[_paths(".seg")[-1]])[layout.SEGMENT_HEADER_BYTES :]]


def _file_target(suffixes: tuple[str, ...], seal: Callable[[bytes], bytes]) -> Target:
    return Target(partial(_samples_of, suffixes), partial(_read_file, suffixes), seal)


# The lists of a data directory.

_LISTS = ("identity", "logs")
_NODE = 1


class _MachineInMemory(Machine):
    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def open_disk(self, data_dir: str) -> SimulatedDisk:
        return self._disk

    def lock(self, data_dir: str) -> Callable[[], None]:
        return lambda: None


def _directory(disk: SimulatedDisk) -> DataDirectory:
    return DataDirectory("data", _NODE, _MachineInMemory(disk))


@cache
def _directory_files() -> Files:
    disk = _disk(_log_files())
    for name, content in _list_contents():
        for path in (f"{name}.json", f"{name}.copy.json"):
            disk.create(path)
            disk.replace_content(path, _encoded(name, 1, 5, content))
    return {path: disk.content(path) for path in disk.paths()}


def _list_contents() -> Iterator[tuple[str, dict[str, object]]]:
    yield (
        "identity",
        {
            "node_id": _NODE,
            "directory_id": "5f" * 16,
            "boot": 3,
            "lives": ["a1", "b2"],
            "cluster_id": "c3",
            "member": 1,
            "level": 1,
            "release": "0.2.0",
        },
    )
    yield "logs", {LOG_ID.hex(): {"folder": FOLDER, "member": 1}}


def _lists() -> list[bytes]:
    """Which list, and whether both of its copies are replaced; then the content."""
    files = _directory_files()
    return [
        bytes([number + 2 * is_both]) + files[f"{name}.json"]
        for number, name in enumerate(_LISTS)
        for is_both in (False, True)
    ]


def _read_list(data: bytes) -> None:
    choice, content = (data[0], data[1:]) if data else (0, b"")
    name = _LISTS[choice % 2]
    files = {**_directory_files(), f"{name}.json": content}
    if choice & 2:
        files[f"{name}.copy.json"] = content
    disk = _disk(files)
    list(damaged_files(disk))
    directory = _directory(disk)
    directory.tidy_up()
    directory.settle("another", 2)
    listed: list[ListedLog] = list(directory.logs.values())
    assert all(log.is_metadata in {True, False} for log in listed)
    for partition in list(directory.logs):
        directory.folder_of(partition, 1)
    directory.take_out(list(directory.logs))
    directory.close()
    _directory(disk).close()


def _seal_list(data: bytes) -> bytes:
    try:
        found = json.loads(data[1:])
        kind, version, serial = (found.get(key) for key in ("kind", "version", "serial"))
        return data[:1] + _encoded(kind, version, serial, found.get("content"))
    except (ValueError, AttributeError, RecursionError):
        return data


FILE_TARGETS = {
    "checkpoint": Target(_states, _read_state),
    "segment": _file_target((".seg",), _seal_segment_file),
    "marks": Target(_marks, _read_marks, _seal_marks),
    "records": _file_target(_RECORDS, _seal_record_file),
    "lists": Target(_lists, _read_list, _seal_list),
}
