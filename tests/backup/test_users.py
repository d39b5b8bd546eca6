"""Backups of clusters with users: who may take them, and who can sign in after a restore."""

import json
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.backup import RestoreOptions, restore_backup, take_backup
from quivermq.client import BackupAccess
from quivermq.cluster import AUDIT_TOPIC
from quivermq.errors import Forbidden, Unauthenticated
from tests.backup.conftest import running
from tests.backup.test_take_and_restore import until


def test_users_come_back_with_their_tokens_and_grants(tmp_path: Path, folder: Path) -> None:
    with running(tmp_path / "a", users=True) as broker:
        with quivermq.connect(broker.address) as client:
            root = client.users.add("root")
            billing = client.users.add("billing")
            client.users.grant("billing", "consume", topic="orders", group="billing")
            client.users.grant("root", "admin")
        with quivermq.connect(broker.address, token=root) as client:
            client.create_topic("orders")
            client.produce("orders", b"for billing")
            users = client.users.all()
            take_backup(BackupAccess(client), folder)
        with quivermq.connect(broker.address, token=billing) as client, pytest.raises(Forbidden):
            take_backup(BackupAccess(client), folder)
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(secret.encode() in data for data in files for secret in (root, billing))

    with running(tmp_path / "b", users=True) as broker:
        with quivermq.connect(broker.address) as client:
            report = restore_backup(BackupAccess(client), folder)
        assert (report.users, report.users_left) == (["billing", "root"], [])
        assert "orders" in report.topics
        with quivermq.connect(broker.address, token=root) as client:
            assert client.users.all() == users
        with quivermq.connect(broker.address, token=billing) as client:
            (message,) = client.poll("orders", "billing", wait=20.0)
            assert message.value == b"for billing"
            message.ack()
            with pytest.raises(Forbidden):
                client.produce("orders", b"not mine to send")
        with pytest.raises((Unauthenticated, Forbidden)):
            quivermq.connect(broker.address).create_topic("anyone")


def test_a_restore_is_audited_without_what_it_brings(tmp_path: Path, folder: Path) -> None:
    with running(tmp_path / "a") as broker, quivermq.connect(broker.address) as client:
        client.users.add("ann")
        take_backup(BackupAccess(client), folder)
    with running(tmp_path / "b", users=True) as broker, quivermq.connect(broker.address) as client:
        restore_backup(BackupAccess(client), folder)

        def audited() -> list[Any]:
            records = [json.loads(message.value) for message in client.read("_audit")]
            return [one["detail"] for one in records if one["action"] == "restore_catalog"]

        until(lambda: AUDIT_TOPIC in client.topic_names() and len(audited()) == 2)
        assert audited() == [{}, {"users": True}]


def test_users_that_exist_stay_and_all_can_be_left_out(tmp_path: Path, folder: Path) -> None:
    with running(tmp_path / "a") as broker, quivermq.connect(broker.address) as client:
        client.users.add("ann")
        client.users.add("bob")
        take_backup(BackupAccess(client), folder)
    with running(tmp_path / "b") as broker, quivermq.connect(broker.address) as client:
        client.users.add("ann")
        (ann,) = client.users.all()
        restore_backup(BackupAccess(client), folder, RestoreOptions(users=False))
        assert client.users.all() == [ann]
        report = restore_backup(BackupAccess(client), folder)
        assert (report.users, report.users_left) == (["bob"], ["ann"])
        assert [user.name for user in client.users.all()] == ["ann", "bob"]
        assert client.users.all()[0] == ann
