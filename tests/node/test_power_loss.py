"""With `fsync = never` the power takes what was not written yet: that broker is then behind."""

import shutil
from pathlib import Path

from quivermq.node.hosted_replica import HostedReplica
from tests.node.cluster_stage import Brokers, cluster
from tests.transports.stage import PATIENT, Talker, make_topic, on_loop, store, until


def orders(brokers: Brokers, node: int) -> HostedReplica | None:
    """The partition's replica on a broker, once it runs there."""
    groups = brokers.running[node].broker.scheduler.replicas.values()
    return next((group for group in groups if group.name.topic == "orders"), None)


def end(brokers: Brokers, node: int) -> int:
    group = orders(brokers, node)
    return group.readable_end if group else 0


@on_loop
async def test_a_follower_that_lost_its_tail_is_behind_and_does_not_stop(tmp_path: Path) -> None:
    async with cluster(tmp_path, fsync="never", **PATIENT) as brokers:
        talker = await Talker.in_memory(brokers.running[1])
        await make_topic(talker)
        await store(talker, b"early")
        await until(lambda: all(end(brokers, node) == 1 for node in (1, 2, 3)))
        groups = filter(None, (orders(brokers, node) for node in (1, 2, 3)))
        leader = next(group for group in groups if group.replica.is_serving)
        follower = 2 if leader.member != 2 else 3
        segments = brokers.folder(follower) / leader.name.folder
        shutil.copytree(segments, tmp_path / "on the platter")
        for _ in range(5):
            await store(talker, b"late")

        await brokers.stop(follower)
        shutil.rmtree(segments)
        shutil.copytree(tmp_path / "on the platter", segments)
        await brokers.start(follower)
        await until(lambda: end(brokers, follower) == 6)
        talker.close()
