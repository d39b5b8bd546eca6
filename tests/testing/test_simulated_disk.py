"""The simulated disk itself: a test that relies on it is worth what it is worth."""

from random import Random

import pytest

from quivermq.errors import StorageFailed, StorageFull
from quivermq.testing.simulated_disk import Faults, Killed, SimulatedDisk


def disk_with_file(seed: int = 0) -> SimulatedDisk:
    disk = SimulatedDisk(Random(seed))
    disk.make_folder("d")
    disk.create("d/f")
    disk.sync_folder("d")
    return disk


def test_what_was_synced_survives_a_power_loss() -> None:
    for seed in range(50):
        disk = disk_with_file(seed)
        file = disk.open("d/f")
        file.write(0, [b"kept", b" for good"])
        file.sync()
        file.write(4, [b"lost?"])
        disk.lose_power()
        content = disk.content("d/f")
        assert content[:4] == b"kept"
        assert len(content) == 13


def test_what_was_not_synced_may_survive_whole_in_part_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(300):
        disk = disk_with_file(seed)
        file = disk.open("d/f")
        file.allocate(2000)
        file.sync()
        file.write(0, [b"a" * 1500])
        disk.lose_power()
        outcomes.add(disk.content("d/f").count(b"a"))
    assert {0, 1500} < outcomes
    assert len(outcomes) > 5


def test_later_sectors_may_survive_where_earlier_ones_do_not() -> None:
    def out_of_order(seed: int) -> bool:
        disk = disk_with_file(seed)
        disk.open("d/f").write(0, [b"a" * 2048])
        disk.lose_power()
        content = disk.content("d/f")
        return content[:512].count(b"a") == 0 and b"a" in content

    assert any(out_of_order(seed) for seed in range(100))


def test_a_killed_process_loses_nothing_and_its_files_are_dead() -> None:
    disk = disk_with_file()
    file = disk.open("d/f")
    file.write(0, [b"unsynced"])
    disk.kill()
    assert disk.content("d/f") == b"unsynced"
    with pytest.raises(Killed):
        file.write(0, [b"more"])


def test_a_name_that_was_not_synced_may_be_lost_and_names_keep_their_order() -> None:
    seen = set()
    for seed in range(60):
        disk = disk_with_file(seed)
        disk.create("d/g")
        disk.rename("d/f", "d/h")
        disk.remove("d/g")
        disk.lose_power()
        seen.add(tuple(disk.names("d")))
    assert seen == {("f",), ("f", "g"), ("g", "h"), ("h",)}


def test_syncing_a_folder_keeps_the_names_in_it_and_all_that_changed_before() -> None:
    for seed in range(20):
        disk = disk_with_file(seed)
        disk.create("e/first")
        disk.create("d/g")
        disk.sync_folder("d")
        disk.create("e/last")
        disk.lose_power()
        assert disk.names("d") == ["f", "g"]
        assert "first" in disk.names("e")


def test_after_a_failed_sync_reads_show_what_will_be_lost() -> None:
    disk = disk_with_file(seed=4)
    file = disk.open("d/f")
    file.write(0, [b"doomed"])
    disk.faults.fail_operation = disk.operations
    with pytest.raises(StorageFailed):
        file.sync()
    disk.faults = Faults()
    assert file.read(0, 6) == b"doomed"
    file.sync()
    disk.lose_power()
    assert disk.content("d/f") != b"doomed"


def test_the_named_operation_fails_and_no_other() -> None:
    disk = disk_with_file()
    file = disk.open("d/f")
    disk.faults.fail_operation = disk.operations + 1
    file.write(0, [b"one"])
    with pytest.raises(StorageFailed):
        file.write(0, [b"two"])
    file.write(0, [b"three"])


def test_a_full_disk_refuses_growth_only() -> None:
    disk = disk_with_file()
    file = disk.open("d/f")
    file.allocate(100)
    disk.faults.capacity_bytes = 120
    file.write(0, [b"x" * 100])
    with pytest.raises(StorageFull):
        file.allocate(121)
    with pytest.raises(StorageFull):
        file.write(50, [b"x" * 100])
    file.allocate(120)


def test_a_seed_replays_exactly() -> None:
    def run(seed: int) -> bytes:
        disk = disk_with_file(seed)
        file = disk.open("d/f")
        for number in range(20):
            file.write(number * 300, [bytes([number + 1]) * 900])
            if number % 7 == 0:
                file.sync()
        disk.lose_power()
        return disk.content("d/f")

    assert run(5) == run(5)
    assert len({run(seed) for seed in range(10)}) > 1


@pytest.mark.parametrize("seed", range(20))
def test_a_stale_read_shows_what_was_durable_before_the_last_sync(seed: int) -> None:
    dice = Random(seed)
    disk = disk_with_file()
    file = disk.open("d/f")
    durable, seen = b"", b""
    for _ in range(10):
        before, durable = durable, seen
        file.sync()
        if dice.random() < 0.3:
            durable = seen = bytes([dice.randrange(256)]) * dice.randint(0, 30)
            disk.replace_content("d/f", seen)
        disk.faults.stale_reads.add("d/f")
        assert file.read(0, 100) == before[: len(seen)].ljust(len(seen), b"\0")
        assert file.read(0, 100) == seen
        for _ in range(dice.randint(0, 3)):
            at, size = dice.randint(0, 40), dice.randint(0, 20)
            if dice.random() < 0.3:
                file.truncate(at)
                seen = seen[:at].ljust(at, b"\0")
            elif size:
                data = dice.randbytes(size)
                file.write(at, [data])
                seen = seen.ljust(at, b"\0")
                seen = seen[:at] + data + seen[at + size :]
