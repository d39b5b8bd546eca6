"""All data directories of a cluster are deleted under load, and a backup is restored into another
one, of which a broker is missing at first."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import quivermq
from quivermq.backup import BackupFolder, restore_backup, take_backup, verify_backup
from quivermq.client import BackupAccess, Message
from quivermq.errors import QuiverError
from quivermq.testing import Cluster

FAST = {"tick_ms": 50, "fsync": "never"}
PARTITIONS = 4
PATIENCE_S = 30.0


class Load:
    """Produces, polls, acknowledges and rejects until it is told to stop, or the cluster ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self.stored: dict[tuple[int, int], bytes] = {}
        """By partition and offset, what was acknowledged to the producer."""
        self.done: set[tuple[int, int]] = set()
        """What was acknowledged by the group."""
        self.rejected: set[tuple[int, int]] = set()
        self._threads = [
            threading.Thread(target=self._run, args=(act,)) for act in (self._produce, self._work)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, act: Any) -> None:
        with self._cluster.connect(timeout=2.0) as client:
            turn = 0
            while not self._is_over.is_set():
                try:
                    act(client, turn)
                except QuiverError:
                    # Its outcome is unknown, and so is not counted.
                    continue
                turn += 1

    def _produce(self, client: quivermq.Client, turn: int) -> None:
        value = b"%d" % turn
        headers = {"turn": value}
        receipt = client.produce(
            "orders", value, key=b"k%d" % (turn % 50), headers=headers, priority=turn % 8
        )
        self.stored[receipt.partition, receipt.offset] = value

    def _work(self, client: quivermq.Client, turn: int) -> None:
        messages = client.poll("orders", "work", max_messages=10, wait=0.2, visibility=2.0)
        if messages and turn % 5 == 0:
            messages[0].reject("every so often")
            self.rejected.add((messages[0].partition, messages[0].offset))
            messages = messages[1:]
        client.ack(messages)
        self.done |= {(message.partition, message.offset) for message in messages}

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


def seen(client: quivermq.Client) -> dict[tuple[int, int], Message]:
    """All messages by partition and offset: each once, in order."""
    found = {}
    for partition in range(PARTITIONS):
        offsets = []
        for message in client.read("orders", partition=partition, start="earliest"):
            offsets.append(message.offset)
            found[partition, message.offset] = message
        assert offsets == list(range(len(offsets)))
    return found


def until_loaded(load: Load, messages: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while len(load.stored) < messages or len(load.done) < messages // 4 or not load.rejected:
        assert time.monotonic() < deadline, (len(load.stored), len(load.done))
        time.sleep(0.01)


def until_in_sync(client: quivermq.Client) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(len(one.in_sync) < 3 for one in client.topic("orders").partitions):
        assert time.monotonic() < deadline, client.topic("orders").partitions
        time.sleep(0.05)


def test_a_cluster_comes_back_from_a_backup_after_all_its_disks_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with Cluster(data_dir=tmp_path / "doomed", settings=FAST) as doomed:
        with doomed.connect() as client:
            client.create_topic("orders", partitions=PARTITIONS)
            client.commit("orders", "reader", partition=2, offset=0)
        load = Load(doomed)
        with doomed.connect() as client:
            until_loaded(load, 100)
            take_backup(BackupAccess(client), folder)
            until_loaded(load, 200)
            stored, done = dict(load.stored), set(load.done)
            rejected = set(load.rejected)
            second = take_backup(BackupAccess(client), folder)
        for node in doomed.nodes.values():
            node.kill()
        load.stop()
        shutil.rmtree(tmp_path / "doomed")
    assert 0 < second.messages_new < second.manifest.messages
    assert not verify_backup(BackupFolder(folder)).damages

    with Cluster(settings=FAST) as reborn, reborn.connect(timeout=30.0) as client:
        # It is away when the topics are created, and comes while they are filled.
        reborn.nodes[2].kill()
        starting = threading.Timer(0.5, reborn.nodes[2].start)
        starting.start()
        restore_backup(BackupAccess(client), folder)
        starting.join()
        until_in_sync(client)
        found = seen(client)
        assert {place: message.value for place, message in found.items() if place in stored} == (
            stored
        )
        assert all(
            message.headers == {"turn": message.value}
            and message.priority == int(message.value) % 8
            for message in found.values()
        )
        assert client.committed("orders", "reader") == {2: 0}
        again: set[tuple[int, int]] = set()
        # Also what was leased when the backup was taken, once its visibility is over.
        while not again | load.done | load.rejected >= set(found):
            some = client.poll("orders", "work", wait=PATIENCE_S)
            assert some
            client.ack(some)
            places = {(message.partition, message.offset) for message in some}
            assert not places & again
            again |= places
        assert not again & (done | rejected)
        letters = client.dead_letters("orders")
        places = [(letter.original_partition, letter.original_offset) for letter in letters]
        assert len(places) == len(set(places))
        assert rejected <= set(places)
