"""Which logs a broker makes, opens and removes, by what it knows of the catalog."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quivermq.cluster import View, group_id
from quivermq.log import LogSettings, RealDisk
from quivermq.node.directory import Directory
from quivermq.node.disk_thread import DiskThread
from quivermq.node.hosting import Hosting
from quivermq.node.runner import GroupRunner
from quivermq.replica import ReplicaSettings
from tests.cluster.catalogs import broker, view_of, with_topic


class Stage:
    """The hosting of node 1 over a real directory, which can be started again."""

    def __init__(self, root: Path) -> None:
        loop = asyncio.get_running_loop()
        self.directory = Directory(str(root), 1)
        self.disk_thread = DiskThread(loop, "test-disk")
        self.runner = GroupRunner(
            disk=RealDisk(root),
            disk_thread=self.disk_thread,
            replica_settings=ReplicaSettings(),
            log_settings=LogSettings(),
            writes_inline=False,
            copy_bytes_per_second=1 << 30,
            on_office=lambda _: None,
        )
        self.hosting = Hosting(1, self.directory, self.disk_thread, self.runner)

    def view(self, *topics: str, is_registered: bool) -> View:
        """A catalog with these topics, before or after this start was registered."""
        identity = self.directory.identity
        life = identity.lives[-1] if is_registered else "00"
        known = replace(broker(1), directory_id=identity.directory_id, life=life)
        view = view_of([known])
        for topic in topics:
            view = with_topic(view, topic)
        return view

    @property
    def running(self) -> set[str]:
        return {group.name.topic for group in self.runner.groups.values()}

    async def close(self) -> None:
        for group in list(self.runner.groups.values()):
            self.runner.remove(group)
        await self.disk_thread.close()
        self.directory.close()


def play(root: Path, act: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        stage = Stage(root)
        try:
            await act(stage)
        finally:
            await stage.close()

    asyncio.run(run())


@pytest.fixture
def with_log(tmp_path: Path) -> bytes:
    """A directory that holds the log of topic `a`; returns the log's first bytes."""

    async def make(stage: Stage) -> None:
        await stage.hosting.reconcile(stage.view("a", is_registered=True))
        assert stage.running == {"a"}

    play(tmp_path, make)
    return content(tmp_path)


def content(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "log" / "a" / "0").iterdir()))


def test_a_catalog_older_than_the_start_removes_no_log(tmp_path: Path, with_log: bytes) -> None:
    async def start(stage: Stage) -> None:
        await stage.hosting.reconcile(stage.view(is_registered=False))
        assert stage.running == set()
        assert content(tmp_path) == with_log
        await stage.hosting.reconcile(stage.view("a", is_registered=True))
        assert stage.running == {"a"}
        assert content(tmp_path) == with_log

    play(tmp_path, start)


def test_a_catalog_older_than_the_start_opens_what_is_there_and_makes_nothing(
    tmp_path: Path, with_log: bytes
) -> None:
    async def start(stage: Stage) -> None:
        await stage.hosting.reconcile(stage.view("a", "b", is_registered=False))
        assert stage.running == {"a"}
        assert content(tmp_path) == with_log
        await stage.hosting.reconcile(stage.view("a", "b", is_registered=True))
        assert stage.running == {"a", "b"}

    play(tmp_path, start)


def test_a_catalog_younger_than_the_start_removes_what_is_not_in_it(
    tmp_path: Path, with_log: bytes
) -> None:
    assert with_log

    async def start(stage: Stage) -> None:
        await stage.hosting.reconcile(stage.view(is_registered=True))
        assert stage.running == set()
        assert not (tmp_path / "log" / "a").exists()

    play(tmp_path, start)


def test_a_listed_log_that_is_gone_is_not_made_anew(tmp_path: Path, with_log: bytes) -> None:
    assert with_log
    for path in (tmp_path / "log" / "a" / "0").iterdir():
        path.unlink()
    (tmp_path / "log" / "a" / "0").rmdir()

    async def start(stage: Stage) -> None:
        view = stage.view("a", is_registered=True)
        await stage.hosting.reconcile(view)
        assert stage.running == set()
        assert set(stage.hosting.lost) == {group_id(view.topics["a"].id, 0)}

    play(tmp_path, start)
