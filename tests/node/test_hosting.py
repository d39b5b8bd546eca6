"""Which logs live on a broker: made, opened, removed, and what a crash in between leaves."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from quivermq.cluster import (
    METADATA_PARTITION,
    Edit,
    Move,
    View,
    create_topic,
    delete_topic,
    partition_id,
    set_targets,
)
from quivermq.errors import QuiverError
from quivermq.log import Log, RealDisk, RealFile, Unreadable
from quivermq.node.data_dir import DataDirectory, PartitionName
from quivermq.node.disk_thread import DiskThread
from quivermq.node.hosting import Hosting, WantedReplica
from quivermq.node.replica_scheduler import ReplicaScheduler
from quivermq.replica import ReplicaSettings
from tests.cluster.catalogs import broker, edited, view_of, with_topic
from tests.node.replica_stage import SMALL
from tests.transports.stage import PATIENCE_S, on_loop, until


class Crash(BaseException):
    """The process ends here."""


class CrashingDisk(RealDisk):
    """Ends the process at one of its operations."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self.left = left

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def create(self, path: str) -> Any:
        self._count()
        return super().create(path)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def make_folder(self, path: str) -> None:
        self._count()
        super().make_folder(path)

    def sync_folder(self, path: str) -> None:
        self._count()
        super().sync_folder(path)


def break_reads(patches: pytest.MonkeyPatch, folder: str) -> None:
    """The medium gives back nothing of what is in a folder."""
    read = RealFile.read

    def broken(file: RealFile, at: int, size: int) -> bytes:
        if folder in str(file.place):
            raise Unreadable(f"cannot read {file.place}: Input/output error")
        return read(file, at, size)

    patches.setattr(RealFile, "read", broken)


class StuckRemovals(RealDisk):
    """Removes nothing until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_removing, self.release = Event(), Event()

    def remove(self, path: str) -> None:
        self.is_removing.set()
        self.release.wait()
        super().remove(path)


class StuckCreations(RealDisk):
    """Creates nothing until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_creating, self.release = Event(), Event()

    def create(self, path: str) -> RealFile:
        self.is_creating.set()
        self.release.wait()
        return super().create(path)


class Host:
    """A broker as far as hosting is concerned."""

    def __init__(self, root: Path) -> None:
        self.directory = DataDirectory(str(root), 1)
        self.directory.tidy_up()
        self.thread = DiskThread(asyncio.get_running_loop(), "disk")
        self.thread.start()
        self.scheduler = ReplicaScheduler(
            disk=RealDisk(root),
            disk_thread=self.thread,
            replica_settings=ReplicaSettings(tick_ms=10, election_ticks=5),
            log_settings=SMALL,
            writes_inline=False,
            copy_bytes_per_second=1 << 30,
            on_leadership=lambda group: None,
        )
        self.hosting = Hosting(1, self.directory, self.thread, self.scheduler)

    def current(self, view: View) -> View:
        """The same catalog, with the registration of this very start in it."""
        identity = self.directory.identity
        mine = replace(view.brokers[1], directory_id=identity.directory_id, life=identity.lives[-1])
        return view.updated(view.version, {**view.values, mine.key: mine.to_json()})

    async def close(self) -> None:
        for group in list(self.scheduler.replicas.values()):
            self.scheduler.remove(group)
        await self.thread.close()
        self.directory.close()


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[Host]:
    it = Host(root)
    try:
        yield it
    finally:
        await it.close()


ALONE = view_of([broker(1)])
ORDERS = with_topic(ALONE, "orders", 2)


def recreated(view: View, name: str, partitions: int = 1) -> View:
    """The topic was deleted, and one of its name created, and another one beside it."""
    view = edited(view, delete_topic(view, name))
    for number, (topic, count) in enumerate((("other", 1), (name, partitions)), 100):
        fresh = create_topic(view, topic, topic_id=f"{number:024x}", partitions=count)
        view = edited(view, fresh)
    return view


def wanted_of(view: View) -> set[bytes]:
    return {partition_id(topic.id, partition) for topic, partition, _ in view.partitions()}


@on_loop
async def test_what_the_catalog_wants_runs_and_what_it_drops_is_removed(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        assert set(it.scheduler.replicas) == wanted_of(ORDERS)
        assert (tmp_path / "log/orders/1").is_dir()
        await it.hosting.reconcile(it.current(ALONE))
        assert it.scheduler.replicas == {}
        assert it.directory.logs == {}
        assert not (tmp_path / "log/orders").exists()


@on_loop
async def test_the_preferred_leader_follows_the_catalog(tmp_path: Path) -> None:
    view = with_topic(view_of([broker(1), broker(2)]), "orders", replication=2)
    async with host(tmp_path) as it:
        for members in ((1, 2), (2, 1), (1, 2)):
            view = edited(view, set_targets(view, [Move("orders", 0, members)]) or Edit())
            await it.hosting.reconcile(it.current(view))
            (group,) = it.scheduler.replicas.values()
            assert group.preferred == members[0]


@on_loop
async def test_writes_do_not_wait_while_a_large_topic_is_removed(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        it.directory.disk = disk = StuckRemovals(tmp_path)
        removal = asyncio.create_task(it.hosting.reconcile(it.current(ALONE)))
        try:
            await until(disk.is_removing.is_set)
            async with asyncio.timeout(PATIENCE_S):
                await it.thread.run(lambda: None)
            assert not removal.done()
        finally:
            disk.release.set()
        await removal
        assert not (tmp_path / "log/orders").exists()


@on_loop
async def test_an_older_catalog_neither_makes_nor_removes(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    async with host(tmp_path) as it:
        await it.hosting.reconcile(ALONE)
        assert len(it.directory.logs) == 2
        await it.hosting.reconcile(with_topic(ORDERS, "gone"))
        assert set(it.scheduler.replicas) == wanted_of(ORDERS)
        assert len(it.directory.logs) == 2


@on_loop
async def test_a_log_that_is_listed_and_gone_is_lost_and_the_others_run(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    shutil.rmtree(tmp_path / "log/orders/0")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        lost = partition_id(ORDERS.topics["orders"].id, 0)
        assert list(it.hosting.lost) == [lost]
        assert set(it.scheduler.replicas) == wanted_of(ORDERS) - {lost}
        assert not (tmp_path / "log/orders/0").exists()


@pytest.mark.parametrize("file", ["state*", "*.seg", "*.ckpt*"])
@on_loop
async def test_a_log_that_is_damaged_keeps_no_others_from_running(
    tmp_path: Path, file: str
) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    for path in (tmp_path / "log/orders/0").glob(file):
        path.write_bytes(b"")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        damaged, good = (partition_id(ORDERS.topics["orders"].id, number) for number in (0, 1))
        await until(lambda: it.scheduler.replicas[good].was_serving)
        group = it.scheduler.replicas.get(damaged)
        assert damaged in it.hosting.lost or (group is not None and not group.was_serving)


@on_loop
async def test_a_log_that_the_disk_did_not_give_back_is_opened_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    unread, good = (partition_id(ORDERS.topics["orders"].id, number) for number in (0, 1))
    async with host(tmp_path) as it:
        with monkeypatch.context() as patches:
            break_reads(patches, "log/orders/0")
            await it.hosting.reconcile(it.current(ORDERS))
            await it.hosting.reconcile(it.current(ORDERS))
            assert set(it.scheduler.replicas) == {good}
            assert it.hosting.lost.keys() == {unread}
        await it.hosting.reconcile(it.current(ORDERS))
        await until(lambda: it.scheduler.replicas[unread].was_serving)
        assert not it.hosting.lost


@on_loop
async def test_a_log_of_another_group_in_the_folder_counts_as_lost(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    shutil.rmtree(tmp_path / "log/orders/0")
    shutil.copytree(tmp_path / "log/orders/1", tmp_path / "log/orders/0")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        (reason,) = it.hosting.lost.values()
        assert "another log" in reason


@on_loop
async def test_a_folder_in_the_way_of_a_new_log_is_never_replaced(tmp_path: Path) -> None:
    """It cannot say whose it is, and no list knows it: it may be the log that is to be made."""
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        it.directory.list_logs({})
    for path in (tmp_path / "log/orders/0").glob("state*"):
        path.unlink()
    before = sorted(path.name for path in (tmp_path / "log/orders/0").iterdir())
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        (reason,) = it.hosting.lost.values()
        assert "move the folder out of the data directory" in reason
        # The other one says whose it is, and is listed again.
        (group,) = it.scheduler.replicas.values()
        assert group.name == PartitionName("orders", 1)
        assert [log.folder for log in it.directory.logs.values()] == ["log/orders/1"]
    assert sorted(path.name for path in (tmp_path / "log/orders/0").iterdir()) == before


@on_loop
async def test_a_log_of_another_member_does_not_vote_for_the_one_that_is_wanted(
    tmp_path: Path,
) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        logs = it.directory.logs
        it.directory.list_logs({group: replace(log, member=2) for group, log in logs.items()})
        lies = [
            WantedReplica(bytes.fromhex(g), PartitionName("orders", n), 2, ())
            for n, g in enumerate(logs)
        ]
    async with host(tmp_path) as it:
        for want in lies:
            with pytest.raises(QuiverError, match="log of member 1, not of 2"):
                await it.hosting.open_replica(want)


@on_loop
async def test_a_log_in_the_wrong_folder_is_found(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    (tmp_path / "log/orders/0").rename(tmp_path / "log/orders/7")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        (reason,) = it.hosting.lost.values()
        assert "Its log, or an old copy of it, is in log/orders/7. If the folder was" in reason
    (tmp_path / "log/orders/7").rename(tmp_path / "log/orders/0")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        assert set(it.scheduler.replicas) == wanted_of(ORDERS)


@on_loop
async def test_a_log_that_no_list_names_is_not_made_anew_because_its_folder_was_renamed(
    tmp_path: Path,
) -> None:
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        it.directory.list_logs({})
    (tmp_path / "log/orders/0").rename(tmp_path / "log/orders/7")
    async with host(tmp_path) as it:
        await it.hosting.reconcile(it.current(ORDERS))
        (reason,) = it.hosting.lost.values()
        assert "is in log/orders/7" in reason
        assert not (tmp_path / "log/orders/0").exists()


@on_loop
async def test_what_another_number_of_this_broker_knew_is_removed(tmp_path: Path) -> None:
    name = PartitionName("_quiver", 0)
    async with host(tmp_path) as it:
        await it.hosting.open_replica(WantedReplica(METADATA_PARTITION, name, 1, (1,)))
    async with host(tmp_path) as it:
        group = await it.hosting.open_replica(
            WantedReplica(METADATA_PARTITION, name, 1 << 16 | 1, ())
        )
        assert group.replica.configuration.members == ()
        assert it.hosting.is_made(METADATA_PARTITION, 1 << 16 | 1)
        await it.hosting.remove_replica(METADATA_PARTITION)
        assert it.directory.logs == {}


@on_loop
async def test_a_replica_of_a_lost_directory_is_not_made_anew(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        it.directory.identity = replace(it.directory.identity, member=1 << 16 | 1)
        await it.hosting.reconcile(it.current(ORDERS))
        assert it.scheduler.replicas == {}
        assert set(it.hosting.lost) == wanted_of(ORDERS)


@pytest.mark.parametrize(("partitions", "step"), [(1, 2), (9, 5)])
@on_loop
async def test_a_crash_at_any_moment_loses_no_log_and_mixes_none(
    tmp_path: Path, partitions: int, step: int
) -> None:  # F37
    """While a topic is deleted and created again; 9 are made at the same time."""
    before = tmp_path / "before"
    async with host(before) as it:
        await it.hosting.reconcile(it.current(ORDERS))
    after = recreated(ORDERS, "orders", partitions)
    crashes = 0
    for number in range(0, 10_000, step):
        root = tmp_path / str(number)
        shutil.copytree(before, root)
        async with host(root) as it:
            it.directory.disk = CrashingDisk(root, left=number)
            try:
                await it.hosting.reconcile(it.current(after))
            except Crash:
                crashes += 1
            else:
                break
        async with host(root) as it:
            await it.hosting.reconcile(it.current(after))
            assert it.hosting.lost == {}
            assert set(it.scheduler.replicas) == wanted_of(after)
            for group in it.scheduler.replicas.values():
                assert Log.open(it.scheduler.disk, group.name.folder, SMALL).log_id == group.id
        shutil.rmtree(root)
    assert crashes > 5


@on_loop
async def test_a_group_that_cannot_be_opened_alone_is_told(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        want = WantedReplica(METADATA_PARTITION, PartitionName("_quiver", 0), 1, (1,))
        await it.hosting.open_replica(want)
    shutil.rmtree(tmp_path / "log/_quiver/0")
    async with host(tmp_path) as it:
        with pytest.raises(QuiverError, match="state"):
            await it.hosting.open_replica(want)


@on_loop
async def test_no_other_partition_waits_while_logs_are_made(tmp_path: Path) -> None:
    async with host(tmp_path) as it:
        disk = it.directory.disk = StuckCreations(tmp_path)
        making = asyncio.ensure_future(it.hosting.reconcile(it.current(ORDERS)))
        try:
            await until(disk.is_creating.is_set)
            async with asyncio.timeout(PATIENCE_S):
                await it.thread.run(lambda: None)
            assert not making.done()
        finally:
            disk.release.set()
        await making
        assert set(it.scheduler.replicas) == wanted_of(ORDERS)


@on_loop
async def test_a_log_is_not_made_twice_at_a_time_because_the_first_was_cancelled(
    tmp_path: Path,
) -> None:
    async with host(tmp_path) as it:
        disk = it.directory.disk = StuckCreations(tmp_path)
        view = it.current(ORDERS)
        first = asyncio.ensure_future(it.hosting.reconcile(view))
        try:
            await until(disk.is_creating.is_set)
            first.cancel()
            second = asyncio.ensure_future(it.hosting.reconcile(view))
            for _ in range(20):
                await it.thread.run(lambda: None)
            assert not first.done()
        finally:
            disk.release.set()
        await second
        assert first.cancelled()
        assert set(it.scheduler.replicas) == wanted_of(ORDERS)
