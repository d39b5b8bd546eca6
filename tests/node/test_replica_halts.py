"""Groups whose log or replica cannot go on: somebody else leads, and what can be read is read."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quivermq.batches import Frame, FrameKind, Index, Offset, encode_batch
from quivermq.errors import Corrupt, QuiverError, StorageFailed, UnsupportedFormat
from quivermq.log import Checkpoint, Owner
from quivermq.log.checkpoints import Checkpoints
from quivermq.node import hosted_replica
from quivermq.node.disk_work import read_state
from quivermq.node.handlers.fetch import read_batches
from quivermq.node.hosted_replica import HostedReplica
from quivermq.queue import Partition
from quivermq.replica import found_log
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.node.replica_stage import SMALL, Stage, begin_produce, produced, stage
from tests.transports.stage import Talker, on_loop, serving, until

COUNT = 60
"""Batches that fill more than two segments."""
UNKNOWN = Frame.of(FrameKind.COMMAND, b"\x09something new")


def admit(group: HostedReplica, frame: Frame) -> None:
    """An entry that no leader of this release proposes."""
    live = group.replica._live
    assert live is not None
    live._proposal_queue().admit_command(999, frame, group.now_ms())
    group.schedule()


def read_from(group: HostedReplica, offset: int) -> list[Frame]:
    end = Index(group.replica.applied_index + 1)
    return read_batches(group.log, Offset(offset), end, 1 << 20).frames


# Entries of a later release.


@pytest.mark.parametrize(
    "frame",
    [UNKNOWN, Frame.of(FrameKind.COMMAND, b'\x03[[1,1,"g"],[99,1]]')],
    ids=["command", "operation"],
)
@on_loop
async def test_an_entry_of_a_later_release_stops_its_group_once(
    frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_replica, "_REOPEN_S", 0.01)
    async with stage() as it:
        other = await it.serving_group(2)
        group = await it.serving_group(1)
        await produced(group)
        entry = group.log.edge.next_index
        admit(group, frame)
        await until(lambda: group.trouble)
        assert f"entry {entry} cannot be applied" in group.trouble
        assert "newer release" in group.trouble
        assert not group.was_serving
        operations, began = it.disk.operations, time.process_time()
        await asyncio.sleep(0.3)
        assert it.disk.operations == operations
        assert time.process_time() - began < 0.2
        assert isinstance(group.refusal, UnsupportedFormat)
        assert group.is_readable
        assert len(read_from(group, 0)) == 1
        assert group.replica.groups is not None
        assert not group.replica.groups.by_name, "a part of the entry was carried out"
        await produced(other)


@on_loop
async def test_a_later_release_goes_on_with_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stage() as it:
        group = await it.serving_group()
        await produced(group)
        admit(group, UNKNOWN)
        await until(lambda: group.trouble)
        it.scheduler.remove(group)
        log = await it.disk_thread.run(
            lambda: hosted_replica.open_log(
                it.disk, group.name.folder, SMALL, Owner(group.id, group.member)
            )
        )
        monkeypatch.setattr(Partition, "_command", lambda *_: True)
        group = HostedReplica(group.id, group.name, group.member, read_state(log), it.scheduler)
        it.scheduler.add(group)
        await until(lambda: group.was_serving)
        assert (await produced(group)).base_offset == 1


def test_an_unknown_operation_leaves_the_state_as_it_was() -> None:
    partition = Partition()
    body = b'\x03[[1,1,"g"],[99]]'
    frame = Frame.of(FrameKind.COMMAND, body).stamped(
        term=1, index=Index(1), base_offset=Offset(0), timestamp_ms=1
    )
    before = partition.checkpoint()
    with pytest.raises(UnsupportedFormat, match="operation 99"):
        partition.apply(frame)
    assert partition.checkpoint() == before


# Disks that take no writes.


@on_loop
async def test_a_replica_that_is_alone_is_read_from_a_disk_that_takes_no_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosted_replica, "_REOPEN_S", 0.05)
    async with stage() as it:
        group = await it.serving_group()
        for _ in range(60):
            await produced(group, 1000)
        assert len(group.log.sealed) > 2
        it.disk.faults.read_only = True
        begin_produce(group)
        await until(lambda: group.refusal is not None)
        assert isinstance(group.refusal, StorageFailed)
        assert "read-only" in str(group.refusal)
        assert group.is_readable
        found = [frame for offset in range(60) for frame in read_from(group, offset)[:1]]
        assert [frame.header.base_offset for frame in found] == list(range(60))
        it.disk.faults.read_only = False
        await until(lambda: group.was_serving)
        assert group.refusal is None
        await produced(group)


@on_loop
async def test_a_write_to_a_read_only_disk_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await topic(talker)
        await store(talker, 3)
        monkeypatch.setattr(os, "pwritev", refused)
        monkeypatch.setattr(hosted_replica, "open_log", refused_opening)
        group = group_of(server)
        codes = set()
        while group.refusal is None:
            answer = await talker.ask(produce(50), encode_batch([b"more"]))
            codes.add(answer.error.code)
            await asyncio.sleep(0.02)
        answer = await talker.ask(produce(51), encode_batch([b"more"]))
        assert answer.error.code == "StorageFailed"
        assert "takes no writes" in answer.error.message
        answer = await talker.ask(fetch(52))
        assert answer.fetched.next_offset >= 3
        monkeypatch.setattr(os, "pwritev", real)


def refused(*_: object) -> int:
    raise OSError(errno.EROFS, "Read-only file system")


def refused_opening(*_: object) -> None:
    raise StorageFailed("cannot open state: Read-only file system")


# Sectors that cannot be read.


@contextmanager
def bad_sector(path: Path, at: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Until the file is replaced, its byte `at` cannot be read."""
    inode, pread = path.stat().st_ino, os.pread

    def failing(descriptor: int, size: int, start: int) -> bytes:
        if start <= at < start + size and os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, size, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", failing)
        yield


def produce(number: int) -> proto.Request:
    body = proto.Produce(topic="orders", partition=0)
    return proto.Request(id=number, timeout_ms=5000, produce=body)


def fetch(number: int, offset: int = 0, **options: bool) -> proto.Request:
    body = proto.Fetch(topic="orders", partition=0, offset=offset, bytes_max=1 << 20, **options)
    return proto.Request(id=number, timeout_ms=5000, fetch=body)


async def topic(talker: Talker, replication: int = 1) -> None:
    body = proto.CreateTopic(name="orders", partitions=1, replication=replication)
    answer = await talker.ask(proto.Request(id=2, create_topic=body))
    assert answer.WhichOneof("body") != "error", answer


async def store(talker: Talker, count: int, size: int = 3000) -> None:
    for number in range(count):
        answer = await talker.ask(produce(1000 + number), encode_batch([bytes(size)]))
        assert answer.WhichOneof("body") != "error", answer


def group_of(server: Server) -> HostedReplica:
    groups = server.broker.scheduler.replicas.values()
    return next(group for group in groups if group.name.topic == "orders")


def first_segment(server: Server, group: HostedReplica) -> Path:
    folder = server.broker.directory.root / group.name.folder
    return min(folder.glob("*.seg"))


def leader_of(brokers: Brokers) -> int:
    led = [node for node, server in brokers.running.items() if group_of(server).was_serving]
    return led[0] if len(led) == 1 else 0


@on_loop
async def test_a_leader_that_cannot_read_a_sector_leaves_its_office_and_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = set()
    load = Checkpoints.load

    def loading(checkpoints: Checkpoints, index: Index, suffix: str = "") -> Checkpoint:
        loaders.add(threading.current_thread())
        return load(checkpoints, index, suffix)

    monkeypatch.setattr(Checkpoints, "load", loading)
    # Nobody would miss the leader for twenty seconds: it hands its leadership over.
    slow = {"election_ticks": 400, "tick_ms": 50}
    async with cluster(tmp_path, segment_bytes=64 << 10, **slow) as brokers:
        talker = await Talker.in_memory(brokers.running[1])
        await topic(talker, replication=3)
        await store(talker, COUNT)
        await until(lambda: leader_of(brokers))
        old = leader_of(brokers)
        server = brokers.running[old]
        group = group_of(server)
        assert len(group.log.sealed) > 1
        path = first_segment(server, group)
        began = time.monotonic()
        with bad_sector(path, 20_000, monkeypatch):
            offset = 0
            while offset < COUNT:
                answer = await talker.ask(fetch(5000 + offset, offset))
                if answer.WhichOneof("body") == "error":
                    assert answer.error.retriable, answer.error
                    await asyncio.sleep(0.02)
                else:
                    offset = answer.fetched.next_offset
            assert leader_of(brokers) != old
            assert time.monotonic() - began < 15
            await until(lambda: not group.replica.is_repairing and not group.trouble)
            assert group.log.damage == []
        assert threading.main_thread() not in loaders, "the event loop waited for a file"
        assert [f.header.base_offset for f in group.log.frames(Index(2)) if f.header.count] == [
            *range(COUNT)
        ]


@on_loop
async def test_a_follower_that_cannot_read_a_sector_sends_readers_away_and_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, segment_bytes=64 << 10) as brokers:
        talker = await Talker.in_memory(brokers.running[1])
        await topic(talker, replication=3)
        await store(talker, COUNT)
        await until(lambda: leader_of(brokers))
        node = next(node for node in brokers.running if node != leader_of(brokers))
        group = group_of(brokers.running[node])
        await until(lambda: group.readable_end == COUNT)
        reader = await Talker.in_memory(brokers.running[node])
        with bad_sector(first_segment(brokers.running[node], group), 20_000, monkeypatch):
            offset = 0
            while offset < COUNT:
                answer = await reader.ask(fetch(5000 + offset, offset, follower_ok=True))
                if answer.WhichOneof("body") == "error":
                    assert answer.error.retriable, answer.error
                    await asyncio.sleep(0.02)
                else:
                    offset = answer.fetched.next_offset
            await until(lambda: not group.replica.is_repairing and not group.trouble)
        assert leader_of(brokers) != node


@on_loop
async def test_a_replica_that_is_alone_serves_all_that_it_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, segment_bytes=64 << 10) as server:
        talker = await Talker.in_memory(server)
        await topic(talker)
        await store(talker, COUNT)
        group = group_of(server)
        with bad_sector(first_segment(server, group), 20_000, monkeypatch):
            refusals, offset = [], 0
            while offset < COUNT:
                answer = await talker.ask(fetch(5000 + offset, offset))
                if answer.WhichOneof("body") == "error":
                    refusals.append(answer.error)
                    offset += 1
                else:
                    offset = answer.fetched.next_offset
            assert [refusal.code for refusal in refusals] == ["Corrupt"]
            assert "no other replica" in refusals[0].message
            assert "Input/output error" in refusals[0].message
            assert group.was_serving
            await store(talker, 1)


@on_loop
async def test_a_replica_that_is_alone_says_what_it_lost() -> None:
    async with stage() as it:
        group = await it.serving_group()
        for _ in range(5):
            await produced(group, 1000)
        it.scheduler.remove(group)
        path = f"{group.name.folder}/{2:020d}.seg"
        it.disk.flip_bit(path, 8 * 2500)
        again = await reopened(it, group)
        assert again.replica.mends_alone
        assert isinstance(again.refusal, Corrupt)
        assert "No other broker has a copy" in str(again.refusal)


@on_loop
async def test_a_replica_that_is_alone_runs_without_what_a_checkpoint_replaces() -> None:
    async with stage() as it:
        group = await it.serving_group()
        for _ in range(60):
            await produced(group, 1000)
        await until(lambda: len(group.log.checkpoints()) > 2 and not group.is_writing)
        it.scheduler.remove(group)
        path = f"{group.name.folder}/{group.log.segment_starts[1]:020d}.seg"
        # Without its footer the segment is walked, and found damaged.
        size = len(it.disk.content(path))
        it.disk.flip_bit(path, 8 * 2500)
        it.disk.flip_bit(path, 8 * (size - 20))
        again = await reopened(it, group)
        await until(lambda: again.was_serving)
        assert again.log.damage
        assert (await produced(again)).base_offset == 60
        assert read_from(again, 59)
        with pytest.raises(Corrupt):
            again.log.read(again.log.damage[0].first_index)


async def reopened(it: Stage, group: HostedReplica) -> HostedReplica:
    log = await it.disk_thread.run(
        lambda: hosted_replica.open_log(
            it.disk, group.name.folder, SMALL, Owner(group.id, group.member)
        )
    )
    again = HostedReplica(group.id, group.name, group.member, read_state(log), it.scheduler)
    it.scheduler.add(again)
    return again


@on_loop
async def test_what_only_another_replica_can_answer_is_left_to_it() -> None:
    """A group of three: damage ends the leadership, and the asker is sent elsewhere."""
    async with stage() as it:
        group = it.group(founders=(1, 2, 3))
        log = found_log(it.disk, "log/else/0", bytes(16), (1, 2, 3), SMALL)
        assert log.damage == []
        told: QuiverError = group.report_unreadable(StorageFailed("cannot open it"))
        assert told.retriable
        await until(lambda: not group.trouble)
