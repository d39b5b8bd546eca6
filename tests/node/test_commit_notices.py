"""Followers learn what is committed with the entries that follow, or a moment later."""

from pathlib import Path

import pytest

import quivermq.aio
from quivermq.cluster import METADATA_PARTITION
from quivermq.node import replica_scheduler
from quivermq.node.hosted_replica import HostedReplica
from quivermq.raft import Message, MessageKind
from quivermq.replica import Consensus, Mail
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import PATIENT, on_loop, until

TOPIC = "orders"


class Appends:
    """The appends that one replica gets from its leader."""

    def __init__(self, hosted: HostedReplica) -> None:
        self.hosted = hosted
        self.heard: list[Message] = []
        self._receive = hosted.receive
        hosted.receive = self.receive  # type: ignore[method-assign]

    def receive(self, sender: int, mail: Mail) -> None:
        if isinstance(mail, Consensus) and mail.message.kind is MessageKind.APPEND:
            self.heard.append(mail.message)
        self._receive(sender, mail)

    @property
    def notices(self) -> int:
        """How many said nothing but what is committed."""
        return sum(not message.entries for message in self.heard)

    @property
    def batches(self) -> int:
        return sum(len(message.entries) for message in self.heard)


def hosted_by(brokers: Brokers, node: int) -> HostedReplica:
    found = brokers.running[node].broker.partitions.local(TOPIC, b"", 0)
    assert found is not None
    return found


def watched(brokers: Brokers) -> list[Appends]:
    """Both followers of the topic."""
    hosted = [hosted_by(brokers, node) for node in brokers.running]
    return [Appends(each) for each in hosted if not each.replica.is_leader]


async def make_topic(brokers: Brokers, client: quivermq.aio.AsyncClient) -> None:
    await client.create_topic(TOPIC, replication=3)
    await client.produce(TOPIC, b"first")
    partitions = [server.broker.partitions for server in brokers.running.values()]

    def has_first(hosted: HostedReplica | None) -> bool:
        # A majority stores it: the last broker may not even have made its replica.
        return hosted is not None and hosted.readable_end >= 1

    await until(lambda: all(has_first(each.local(TOPIC, b"", 0)) for each in partitions))


@on_loop
async def test_lone_batches_in_a_row_need_no_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_scheduler, "_NOTICE_S", 60.0)
    async with cluster(tmp_path, **PATIENT) as brokers:
        async with quivermq.aio.connect(brokers.running[1].listen) as client:
            await make_topic(brokers, client)
            followers = watched(brokers)
            for number in range(20):
                await client.produce(TOPIC, b"%d" % number)
            # Heartbeats tell of the last one.
            await until(lambda: all(each.hosted.readable_end == 21 for each in followers))
        assert [each.notices for each in followers] == [0, 0]
        assert [each.batches for each in followers] == [20, 20]


@on_loop
async def test_a_batch_that_none_follows_is_told_to_be_committed_a_moment_later(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        async with quivermq.aio.connect(brokers.running[1].listen) as client:
            await make_topic(brokers, client)
            followers = watched(brokers)
            await client.produce(TOPIC, b"second")
            await until(lambda: all(each.notices for each in followers))
        assert all(each.heard[-1].commit == each.heard[-1].index for each in followers)


@on_loop
async def test_changes_of_the_catalog_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_scheduler, "_NOTICE_S", 60.0)
    async with cluster(tmp_path, **PATIENT) as brokers:
        hosted = [
            each.broker.scheduler.replicas[METADATA_PARTITION] for each in brokers.running.values()
        ]
        followers = [Appends(each) for each in hosted if not each.replica.is_leader]
        async with quivermq.aio.connect(brokers.running[1].listen) as client:
            await client.create_topic(TOPIC, replication=3)
            await until(lambda: all(each.notices for each in followers))
