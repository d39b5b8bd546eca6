"""Backups of which something is damaged, cut short or missing: found, named, and not restored."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import quivermq
from quivermq.backup import (
    BackupFolder,
    Manifest,
    RestoreOptions,
    restore_backup,
    take_backup,
    verify_backup,
)
from quivermq.client import BackupAccess
from quivermq.errors import Corrupt, InvalidRequest, UnsupportedFormat
from tests.client.brokers import BrokerThread


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    started = BrokerThread(tmp_path_factory.mktemp("damage"), events=False)
    with quivermq.connect(started.address) as client:
        for name in ("orders", "other"):
            client.create_topic(name)
            for n in range(20):
                client.produce(name, b"%d" % n)
            client.ack(client.poll(name, "work", max_messages=7))
    yield started
    started.stop()


@pytest.fixture
def taken(broker: BrokerThread, folder: Path) -> Manifest:
    with quivermq.connect(broker.address) as client:
        return take_backup(BackupAccess(client), folder).manifest


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (lambda path: path.write_bytes(flip(path.read_bytes(), 300)), "checksum does not hold"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "bytes instead of"),
        (lambda path: path.write_bytes(b""), "0 bytes instead of"),
        (lambda path: path.unlink(), "it is missing"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_of_its_topic_is_restored(
    taken: Manifest, folder: Path, empty: quivermq.Client,
    spoil: Callable[[Path], object], what: str,
) -> None:  # fmt: skip
    orders = taken.topic("orders")
    assert orders is not None
    spoil(folder / orders.partitions[0].files[0].name)

    report = verify_backup(BackupFolder(folder))

    (damage,) = report.damages
    assert (damage.topic, damage.partition) == ("orders", 0)
    assert what in damage.what
    assert report.usable == ["other"]
    with pytest.raises(Corrupt, match=r"orders/0: .* can be restored with --topic: other"):
        restore_backup(BackupAccess(empty), folder)
    assert empty.topics() == []
    restore_backup(BackupAccess(empty), folder, RestoreOptions(topic="other"))
    assert [topic.name for topic in empty.topics()] == ["other"]


def test_how_far_a_damaged_file_can_be_read_is_said(taken: Manifest, folder: Path) -> None:
    orders = taken.topic("orders")
    assert orders is not None
    path = folder / orders.partitions[0].files[0].name
    path.write_bytes(path.read_bytes()[:-1])
    (damage,) = verify_backup(BackupFolder(folder)).damages
    assert "behind offset 19: " in damage.what


def test_a_damaged_state_spoils_only_the_partitions_that_it_is_of(
    taken: Manifest, folder: Path
) -> None:
    orders = taken.topic("orders")
    assert orders is not None
    path, section = folder / taken.groups.name, orders.partitions[0].groups
    path.write_bytes(flip(path.read_bytes(), section.at + section.bytes - 1))
    report = verify_backup(BackupFolder(folder))
    assert [(damage.topic, damage.file) for damage in report.damages] == [
        ("orders", taken.groups.name)
    ]
    assert report.usable == ["other"]


def test_one_copy_of_the_manifest_is_enough_and_none_is_not(taken: Manifest, folder: Path) -> None:
    first, second = folder / "backup.json", folder / "backup.copy.json"
    first.write_bytes(flip(first.read_bytes(), 400))
    assert BackupFolder(folder).loaded() == taken
    second.write_bytes(second.read_bytes()[:-20])
    with pytest.raises(Corrupt, match="damaged in both copies"):
        verify_backup(BackupFolder(folder))
    first.unlink()
    second.unlink()
    with pytest.raises(InvalidRequest, match="no finished backup"):
        verify_backup(BackupFolder(folder))


def test_a_backup_of_a_later_release_is_refused(taken: Manifest, folder: Path) -> None:
    document = json.loads(taken.encode())
    (folder / "backup.json").write_text(json.dumps({**document, "version": 2}))
    with pytest.raises(UnsupportedFormat, match="format 2"):
        BackupFolder(folder).loaded()


def test_two_backups_into_one_folder_at_a_time_are_refused(
    taken: Manifest, broker: BrokerThread, folder: Path
) -> None:
    place = BackupFolder(folder)
    with (
        quivermq.connect(broker.address) as client,
        place.locked(),
        pytest.raises(InvalidRequest, match="under way"),
    ):
        take_backup(BackupAccess(client), folder)
    assert place.loaded() == taken


def test_files_that_are_gone_or_were_cut_are_copied_again(
    taken: Manifest, broker: BrokerThread, folder: Path
) -> None:
    files = {topic.name: folder / topic.partitions[0].files[0].name for topic in taken.topics}
    files["orders"].unlink()
    files["other"].write_bytes(files["other"].read_bytes()[:-1])
    with quivermq.connect(broker.address) as client:
        assert take_backup(BackupAccess(client), folder).messages_new == 40
    assert not verify_backup(BackupFolder(folder)).damages


def test_a_cluster_that_lost_messages_does_not_replace_a_backup_that_has_them(
    broker: BrokerThread, folder: Path
) -> None:
    class Shorter(BackupAccess):
        """A partition that ends earlier than it did."""

        def export_producers(self, topic: str, topic_id: str, partition: int):  # type: ignore[no-untyped-def]
            state = super().export_producers(topic, topic_id, partition)
            return state._replace(end=state.end - 1)

    with quivermq.connect(broker.address) as client:
        take_backup(BackupAccess(client), folder)
        with pytest.raises(InvalidRequest, match="the cluster has lost messages"):
            take_backup(Shorter(client), folder)
    assert not verify_backup(BackupFolder(folder)).damages
