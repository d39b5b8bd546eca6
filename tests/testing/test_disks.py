"""Disks that fail and lose power: the model of what is durable, and both ways to reach it."""

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random

import pytest

from quivermq.errors import StorageFailed, StorageFull
from quivermq.log import Disk, RealDisk, Unreadable
from quivermq.testing.disks import (
    FAULTS,
    DiskControl,
    DiskFault,
    Disks,
    FaultyDisk,
    RemoteDisk,
    why_no_fuse,
)
from quivermq.testing.simulated_disk import SimulatedDisk

NEW = os.O_RDWR | os.O_CREAT
_numbers = count(1)


class NoLuck(Random):
    """Of what chance decides, the worst."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return a


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def faulty_disk(folder: Path) -> FaultyDisk:
    return FaultyDisk(folder / "disk", folder / "removed")


def put(disk: FaultyDisk, path: str, data: bytes, *, at: int = 0, sync: bool = True) -> None:
    file = disk.open(path, NEW)
    disk.write(file, at, data)
    if sync:
        disk.sync(file)
    disk.close(file)


class BothDisks:
    """The same random changes of a simulated disk and of a real folder."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = Random(seed)
        self.simulated = SimulatedDisk(NoLuck())
        self.faulty = faulty_disk(folder)
        for name in ("a", "b"):
            self.simulated.make_folder(name)
            self.faulty.make_folder(name)

    def step(self) -> None:
        dice = self.dice
        paths = self.simulated.paths()
        path = f"{dice.choice('ab')}/{dice.randrange(4)}"
        kind = dice.choice(("write", "write", "write", "sync", "sync", "fail", "folder", "names"))
        if kind == "folder":
            self.simulated.sync_folder(path[0])
            self.faulty.sync_folder(path[0])
        elif kind == "names" or path not in paths:
            self.change_names(path, paths)
        else:
            self.change_content(path, kind)

    def change_names(self, path: str, paths: list[str]) -> None:
        if path not in paths:
            self.simulated.create(path)
            self.faulty.close(self.faulty.open(path, NEW))
        elif self.dice.random() < 0.5:
            self.simulated.remove(path)
            self.faulty.remove_file(path)
        else:
            new = f"{path[0]}/{self.dice.randrange(4)}"
            if new != path:
                self.simulated.rename(path, new)
                self.faulty.rename(path, new)

    def change_content(self, path: str, kind: str) -> None:
        simulated, faulty = self.simulated.open(path), self.faulty.open(path, os.O_RDWR)
        size = simulated.size()
        if kind == "write":
            at, data = self.dice.randrange(size + 20), self.dice.randbytes(self.dice.randint(1, 30))
            match self.dice.randrange(5):
                case 0:
                    simulated.truncate(at)
                    self.faulty.truncate(faulty, at)
                case 1:
                    simulated.allocate(at)
                    self.faulty.allocate(faulty, at)
                case _:
                    simulated.write(at, [data])
                    self.faulty.write(faulty, at, data)
        elif kind == "sync":
            simulated.sync()
            self.faulty.sync(faulty)
        else:
            self.simulated.faults.fail_operation = self.simulated.operations
            self.faulty.fault = DiskFault("sync_errors")
            with suppress(StorageFailed):
                simulated.sync()
            with suppress(OSError):
                self.faulty.sync(faulty)
            self.simulated.faults.fail_operation = self.faulty.fault = None
        self.faulty.close(faulty)

    def compare(self) -> None:
        seen = {path: self.simulated.content(path) for path in self.simulated.paths()}
        assert contents(self.faulty.root) == seen


@pytest.mark.parametrize("seed", range(40))
def test_a_power_loss_leaves_what_the_simulated_disk_says(tmp_path: Path, seed: int) -> None:
    both = BothDisks(tmp_path, seed)
    for _ in range(3):
        for _ in range(40):
            both.step()
            both.compare()
        both.simulated.lose_power()
        both.faulty.lose_power()
        both.compare()
        for name in ("a", "b"):
            # Which folders are there without files is not modelled.
            both.simulated.make_folder(name)
            if not (both.faulty.root / name).exists():
                both.faulty.make_folder(name)


def test_with_a_seed_a_part_survives(tmp_path: Path) -> None:
    kept = set()
    for seed in range(60):
        disk = faulty_disk(tmp_path / str(seed))
        put(disk, "f", bytes(2000))
        disk.sync_folder("")
        put(disk, "f", b"a" * 1500, sync=False)
        disk.lose_power(seed)
        kept.add((disk.root / "f").read_bytes().count(b"a"))
    assert {0, 1500} < kept
    assert len(kept) > 5


def test_a_file_that_is_never_synced_and_written_for_ever_is_kept_once(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    put(disk, "f", b"first.second")
    disk.sync_folder("")
    for number in range(100):
        put(disk, "f", b"%05d" % number, sync=False)
        put(disk, "f", b"%06d" % number, at=6, sync=False)
    assert (disk.root / "f").read_bytes() == b"00099.000099"
    assert disk.lose_power() == 2
    assert (disk.root / "f").read_bytes() == b"first.second"


def test_descriptors_are_closed_with_the_files(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir())) if descriptors.exists() else 0
    for number in range(50):
        put(disk, str(number), b"x", sync=number % 2 == 0)
        disk.remove_file(str(number))
    disk.sync_folder("")
    assert not list((tmp_path / "removed").iterdir())
    if before:
        assert len(list(descriptors.iterdir())) == before


# Both ways to reach such a disk, in a process of its own.


@pytest.fixture(scope="module", params=["fuse", "shim"])
def disks(request: pytest.FixtureRequest) -> Iterator[Disks]:
    if request.param == "fuse" and (reason := why_no_fuse()):
        pytest.skip(reason)
    disks = Disks(request.param)
    yield disks
    disks.close()


@pytest.fixture
def control(disks: Disks, tmp_path: Path) -> DiskControl:
    return disks.add(next(_numbers), tmp_path)


def open_disk(control: DiskControl) -> Disk:
    disk = RemoteDisk(control.socket) if control.socket else RealDisk(control.data_dir)
    disk.make_folder("")
    return disk


def test_a_program_sees_a_file_system(control: DiskControl) -> None:
    disk = open_disk(control)
    disk.make_folder("deep/er")
    file = disk.create("deep/er/new")
    large = Random(1).randbytes(3_000_000)
    file.write(0, [b"0123", b"45", large])
    assert file.read(2, 4) == b"2345"
    assert file.read(6, 4_000_000) == large
    file.truncate(6)
    file.allocate(20_000)
    assert (file.size(), file.read(4, 4)) == (20_000, b"45\0\0")
    assert file.data_from(0) == 0
    file.sync()
    disk.rename("deep/er/new", "deep/er/old")
    assert file.read(0, 6) == b"012345"
    assert disk.open_to_read("deep/er/old").read(0, 2) == b"01"
    for number in range(300):
        disk.create(f"deep/many-{number:03}")
    assert disk.names("deep") == ["er", *(f"many-{number:03}" for number in range(300))]
    assert (disk.is_folder("deep"), disk.is_folder("deep/er/old")) == (True, False)
    assert disk.names("nowhere") == []
    with pytest.raises(StorageFailed, match="No such file"):
        disk.open("deep/er/new")
    disk.remove("deep/er/old")
    assert file.read(0, 6) == b"012345"
    disk.remove("deep")
    disk.remove("deep")
    assert disk.names("") == []


def test_a_program_that_is_killed_loses_nothing_and_one_without_power_what_it_did_not_sync(
    control: DiskControl,
) -> None:
    disk = open_disk(control)
    disk.make_folder("d")
    file = disk.create("d/f")
    file.write(0, [b"kept"])
    file.sync()
    disk.sync_folder("d")
    if not control.socket:
        disk.sync_folder("")
        RealDisk(control.data_dir.parent).sync_folder("")
    file.write(4, [b" unsynced"])
    disk.create("d/unsynced")
    del disk, file
    again = open_disk(control)
    assert again.open("d/f").read(0, 100) == b"kept unsynced"
    assert again.names("d") == ["f", "unsynced"]
    del again
    assert control.lose_power() == 2
    last = open_disk(control)
    assert last.open("d/f").read(0, 100) == b"kept"
    assert last.names("d") == ["f"]


def test_each_fault_strikes_what_it_should_and_ends(control: DiskControl) -> None:
    disk = open_disk(control)
    file = disk.create("f")
    file.write(0, [b"content"])
    file.sync()
    calls = {
        "read": (Unreadable, lambda: file.read(0, 4)),
        "overwrite": (StorageFailed, lambda: file.write(0, [b"C"])),
        "grow": (StorageFull, lambda: file.write(7, [b" that grows"])),
        "allocate": (StorageFull, lambda: file.allocate(5_000)),
        "sync": (StorageFailed, file.sync),
        "create": (StorageFailed, lambda: disk.create("g")),
        "remove": (StorageFailed, lambda: disk.remove("f")),
        "sync_folder": (StorageFailed, lambda: disk.sync_folder("")),
    }
    strikes = {
        "full": {"grow", "allocate"},
        "read_only": calls.keys() - {"read"},
        "read_errors": {"read"},
        "write_errors": {"overwrite", "grow", "allocate"},
        "sync_errors": {"sync", "sync_folder"},
    }
    assert set(FAULTS) == {*strikes, "slow"}
    for kind, expected in strikes.items():
        before = control.struck
        control.fail(kind)
        for name in expected:
            error, call = calls[name]
            with pytest.raises(error if kind in {"full", "read_errors"} else StorageFailed):
                call()
        assert control.struck == before + len(expected)
        control.fail(None)
        assert file.read(0, 7) == b"content"
    control.fail("full")
    for name in calls.keys() - strikes["full"] - {"create", "remove"}:
        calls[name][1]()
    control.fail(None)
    for _, call in calls.values():
        call()


def test_a_fault_that_does_not_exist_is_refused(control: DiskControl) -> None:
    with pytest.raises(OSError, match="no disk fault 'rust'"):
        control.fail("rust")


def test_a_file_of_the_life_before_is_dead(control: DiskControl) -> None:
    file = open_disk(control).create("f")
    control.lose_power()
    with pytest.raises((StorageFailed, EOFError, OSError)):
        file.write(0, [b"from the grave"])
    assert open_disk(control).names("") == []


def test_the_errors_are_the_systems() -> None:
    assert DiskFault("full").error_of("write", 1) == errno.ENOSPC
    assert DiskFault("full").error_of("write", 0) == 0
    assert DiskFault("read_only").error_of("change", 0) == errno.EROFS
