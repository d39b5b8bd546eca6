"""The branches for systems that these tests do not run on: a real disk, on a description of macOS.

What stands in for something is the system's own call alone: `F_FULLFSYNC` is an fsync here.
"""

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import quivermq
from quivermq.errors import StorageFailed
from quivermq.log import Disk, Log, RealDisk, SystemCalls, Verification, system_calls
from quivermq.node import Machine
from quivermq.settings import BrokerSettings
from quivermq.transports import Server
from tests.log.entries import LOG_ID
from tests.log.logs import SMALL, all_entries, fill

FOLDER = "log/orders/0"
FULL_SYNC = 51  # its number on macOS


class Mac:
    """The modules `os` and `fcntl` of a Mac, as far as the log uses them."""

    def __init__(self, error: int = 0, **also: Any) -> None:
        self.synced: list[str] = []
        self.plain: list[str] = []
        self._error = error
        self.os = SimpleNamespace(
            fsync=self._fsync,
            pwrite=os.pwrite,
            ftruncate=os.ftruncate,
            SEEK_DATA=os.SEEK_DATA,
            **also,
        )
        self.fcntl = SimpleNamespace(F_FULLFSYNC=FULL_SYNC, fcntl=self._full_sync)

    @property
    def calls(self) -> SystemCalls:
        return system_calls(self.os, self.fcntl, "darwin")

    def _full_sync(self, descriptor: int, operation: int) -> None:
        assert operation == FULL_SYNC
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        os.fsync(descriptor)
        self.synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def _fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)
        self.plain.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))


def test_files_and_folders_are_synced_to_the_medium(tmp_path: Path) -> None:
    mac = Mac()
    disk = RealDisk(tmp_path, mac.calls)
    disk.create("f").sync()
    disk.sync_folder("")
    assert mac.synced == [str(tmp_path / "f"), str(tmp_path)]
    assert mac.plain == []


@pytest.mark.parametrize("error", [errno.ENOTSUP, errno.ENOTTY, errno.EINVAL])
def test_a_file_system_without_a_full_sync_is_asked_for_a_plain_one(
    tmp_path: Path, error: int
) -> None:
    mac = Mac(error)
    RealDisk(tmp_path, mac.calls).create("f").sync()
    assert mac.plain == [str(tmp_path / "f")]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_full_sync_that_failed_is_not_tried_another_way(tmp_path: Path, error: int) -> None:
    mac = Mac(error)
    disk = RealDisk(tmp_path, mac.calls)
    with pytest.raises(StorageFailed):
        disk.create("f").sync()
    with pytest.raises(StorageFailed):
        disk.sync_folder("")
    assert mac.plain == []


@pytest.mark.parametrize("has_pwritev", [False, True])
def test_buffers_are_written_one_after_the_other(tmp_path: Path, has_pwritev: bool) -> None:
    mac = Mac(**({"pwritev": os.pwritev} if has_pwritev else {}))
    file = RealDisk(tmp_path, mac.calls).create("f")
    buffers = [bytes([number % 256]) * number for number in range(1500)]
    file.write(3, buffers)
    assert file.read(0, 2_000_000) == bytes(3) + b"".join(buffers)


def test_a_file_grows_by_zeros_and_never_shrinks(tmp_path: Path) -> None:
    file = RealDisk(tmp_path, Mac().calls).create("f")
    file.write(0, [b"abc"])
    file.allocate(100)
    file.allocate(50)
    assert file.size() == 100
    assert file.read(0, 200) == b"abc" + bytes(97)


def test_a_hole_is_not_believed(tmp_path: Path) -> None:
    file = RealDisk(tmp_path, Mac().calls).create("f")
    file.allocate(1 << 20)
    assert [file.data_from(at) for at in (0, 4096, (1 << 20) - 1, 1 << 20)] == [
        0,
        4096,
        (1 << 20) - 1,
        None,
    ]


def test_linux_gets_the_calls_that_it_alone_has() -> None:
    called: list[str] = []

    def note(name: str) -> Any:
        return lambda *_: called.append(name)

    names = ("fsync", "fdatasync", "pwritev", "posix_fallocate")
    linux = SimpleNamespace(SEEK_DATA=3, **{name: note(name) for name in names})
    calls = system_calls(linux, SimpleNamespace(), "linux")
    calls.sync(1)
    calls.sync_folder(1)
    calls.write(1, [b""], 0)
    calls.allocate(1, 0, 1)
    assert called == ["fdatasync", "fsync", "pwritev", "posix_fallocate"]
    assert calls.seek_data == 3


def test_a_log_lives_on_such_a_disk(tmp_path: Path) -> None:
    mac = Mac()
    disk = RealDisk(tmp_path, mac.calls)
    log = Log.create(disk, FOLDER, LOG_ID, SMALL)
    kept = fill(log, 12)
    log.save_vote(4, 2)
    at = log.segment_starts[1]
    log.save_checkpoint(at, b"state")
    log.drop_before(at)
    log = Log.open(disk, FOLDER, SMALL)
    assert all_entries(log) == kept[at - 1 :]
    assert (log.term, log.vote, log.notes, log.damage) == (4, 2, [], [])
    report = Verification(disk, FOLDER, SMALL).run()
    assert (report.findings, report.entries) == ([], len(kept) - at + 1)
    # It is the same log for Linux.
    assert all_entries(Log.open(RealDisk(tmp_path), FOLDER, SMALL)) == kept[at - 1 :]
    assert mac.synced
    assert not mac.plain


def test_a_broker_serves_from_such_a_disk_and_finds_everything_again(tmp_path: Path) -> None:
    mac = Mac()

    class MacMachine(Machine):
        def open_disk(self, data_dir: str) -> Disk:
            return RealDisk(data_dir, mac.calls)

    settings = BrokerSettings(
        data_dir=str(tmp_path), listen="127.0.0.1:0", peer_listen="127.0.0.1:0", http="", grpc=""
    )

    async def main() -> None:
        for life in range(2):
            server = Server(settings, MacMachine())
            await server.start()
            async with quivermq.aio.connect(server.listen) as client:
                if life == 0:
                    await client.create_topic("orders")
                    await client.produce_many("orders", [b"%d" % n for n in range(1000)])
                found = [message.value async for message in client.read("orders")]
                assert found == [b"%d" % n for n in range(1000)]
                (message,) = await client.poll("orders", group="g", max_messages=1, wait=10)
                assert message.value == b"%d" % life
                await message.ack()
            await server.stop()

    asyncio.run(main())
    assert any(path.endswith(".seg") for path in mac.synced)
    assert not mac.plain
