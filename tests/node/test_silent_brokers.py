"""A broker is silent: who wakes, who stands for election, and who sleeps on."""

from pathlib import Path

import pytest

from quivermq.node import replica_scheduler
from quivermq.node.hosted_replica import HostedReplica
from quivermq.raft import Message, MessageKind, Role
from quivermq.replica import Consensus
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.node.replica_stage import stage
from tests.transports.stage import Talker, on_loop, store, until

FOUNDERS = (1, 2, 3)
PARTITIONS = 12


async def make(server: Server) -> Talker:
    talker = await Talker.by_socket(server)
    body = proto.CreateTopic(name="orders", partitions=PARTITIONS, replication=3)
    answer = await talker.ask(proto.Request(create_topic=body))
    assert not answer.error.code, answer.error
    return talker


def awake(brokers: Brokers) -> int:
    return sum(server.broker.scheduler.awake for server in brokers.running.values())


def replicas(server: Server) -> list[HostedReplica]:
    return [h for h in server.broker.scheduler.replicas.values() if h.name.topic == "orders"]


@on_loop
async def test_partitions_sleep_while_a_broker_is_down_and_bring_it_up_to_date_later(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        talker = await make(brokers.running[1])
        await brokers.stop(3)
        await store(talker, b"while it is down")
        await until(lambda: awake(brokers) == 0)
        assert all(h.replica.leader for s in brokers.running.values() for h in replicas(s))
        await brokers.start(3)
        ends = {h.id: h.readable_end for h in replicas(brokers.running[1])}
        assert max(ends.values()) == 1
        await until(lambda: {h.id: h.readable_end for h in replicas(brokers.running[3])} == ends)
        await until(lambda: awake(brokers) == 0)
        talker.close()


@pytest.mark.parametrize(("preferred", "heirs"), [(3, [2, 1, 2, 1]), (1, [1, 1, 1, 1])])
@pytest.mark.parametrize("member", [1, 2])
@on_loop
async def test_of_those_left_one_stands_for_each_partition_of_a_silent_broker(
    member: int, preferred: int, heirs: list[int]
) -> None:
    """The one that is preferred, or else one after the other."""
    async with stage() as it:
        it.scheduler.stop_ticking()
        for number in range(1, 5):
            group = it.group(number, FOUNDERS, member)
            group.preferred = preferred
            group.receive(3, heartbeat_of(3, member))
            assert group.replica.leader == 3
        groups = list(it.scheduler.replicas.values())
        it.scheduler.wake_who_misses(2 if member == 1 else 1)
        assert all(group.replica.leader == 3 for group in groups), "it leads on"
        it.scheduler.wake_who_misses(3)
        assert not any(group.replica.leader for group in groups)
        stand = [group.replica.role is Role.PRE_CANDIDATE for group in groups]
        assert stand == [heir == member for heir in heirs]
        groups[0].receive(3, heartbeat_of(3, member))
        groups[0].tick()
        assert not groups[0].is_heir, "there is a leader"


@on_loop
async def test_of_very_many_partitions_a_portion_stands_at_each_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_scheduler, "_HEIRS_A_TICK", 4)
    async with stage() as it:
        it.scheduler.stop_ticking()
        groups = [it.group(number, FOUNDERS) for number in range(1, 12)]
        for group in groups:
            group.preferred = 1 if groups.index(group) < 9 else 2
            group.receive(3, heartbeat_of(3, 1))
        it.scheduler.wake_who_misses(3)
        stood = []
        for _ in range(4):
            stood.append([group.replica.role is Role.PRE_CANDIDATE for group in groups].count(True))
            for group in groups:
                group.tick()
        assert stood == [4, 8, 9, 9]
        # Two wait for heirs elsewhere. They wait longest, and have their timeouts then.
        assert {group.patience_ticks for group in groups} == {0}
        assert [group.leaderless_ticks for group in groups[9:]] == [2, 2]


@on_loop
async def test_who_waits_for_its_turn_has_nothing_to_wait_for_once_there_is_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_scheduler, "_HEIRS_A_TICK", 1)
    async with stage() as it:
        it.scheduler.stop_ticking()
        groups = [it.group(number, FOUNDERS) for number in (1, 2, 3)]
        for group in groups:
            group.preferred = 1
            group.receive(3, heartbeat_of(3, 1))
        it.scheduler.wake_who_misses(3)
        last = groups[2]
        last.receive(2, heartbeat_of(2, 1))
        for _ in range(4):
            last.tick()
        assert (last.patience_ticks, last.is_heir) == (0, False)
        assert last.replica.leader == 2


def heartbeat_of(leader: int, to: int) -> Consensus:
    return Consensus(Message(MessageKind.HEARTBEAT, to, leader, 9))
