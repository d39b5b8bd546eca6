"""`quiver backup` and `quiver restore`, as people and scripts call them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import quivermq
from tests.cli.commands import quiver
from tests.client.brokers import BrokerThread


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    started = BrokerThread(tmp_path_factory.mktemp("cli"), events=False)
    with quivermq.connect(started.address) as client:
        client.create_topic("orders", partitions=2)
        client.produce_many("orders", [b"x" * 100] * 50)
    yield started
    started.stop()


def test_a_backup_is_taken_verified_and_restored(broker: BrokerThread, tmp_path: Path) -> None:
    folder, servers = tmp_path / "b", ("--servers", broker.address)
    taken = quiver("backup", folder, *servers)
    assert taken.returncode == 0, taken.stderr
    assert "1 topic, 50 messages; copied 50 messages" in taken.stdout
    again = json.loads(quiver("backup", folder, *servers, "--json", "--rate", "100MB").stdout)
    assert (again["serial"], again["messages"], again["new_messages"]) == (2, 50, 0)
    assert sum(part["end"] for part in again["topics"]["orders"]) == 50
    assert "is intact: 50 messages" in quiver("backup", folder, "--verify").stdout

    refused = quiver("restore", folder, *servers)
    assert refused.returncode == 1
    assert "this cluster is in use" in refused.stderr
    # `--as` alone has nothing to name.
    assert quiver("restore", folder, *servers, "--as", "x").returncode == 1

    copied = quiver("restore", folder, *servers, "--topic", "orders", "--as", "copy", "--json")
    assert json.loads(copied.stdout)["topics"] == ["copy"]
    with quivermq.connect(broker.address) as client:
        assert client.topic("copy").message_count == 50
        client.delete_topic("copy")


def test_damage_is_shown_and_ends_with_exit_code_1(broker: BrokerThread, tmp_path: Path) -> None:
    folder = tmp_path / "b"
    quiver("backup", folder, "--servers", broker.address)
    spoiled = max(folder.rglob("*.frames"))
    spoiled.write_bytes(spoiled.read_bytes()[:-1])
    shown = quiver("backup", folder, "--verify")
    assert shown.returncode == 1
    assert "bytes instead of" in shown.stdout
    assert "can be restored with --topic: none" in shown.stderr
    told = quiver("backup", folder, "--verify", "--json")
    assert told.returncode == 1
    assert [damage["topic"] for damage in json.loads(told.stdout)["damages"]] == ["orders"]
    refused = quiver("restore", folder, "--servers", broker.address, "--topic", "orders")
    assert (refused.returncode, "the backup is damaged" in refused.stderr) == (1, True)
