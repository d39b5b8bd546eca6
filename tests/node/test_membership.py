"""Who is let in, who is not, and what a broker that is not let in keeps."""

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from quivermq.cluster import CLUSTER_KEY, METADATA_PARTITION, OWN_LEVELS, Edit, View
from quivermq.errors import Corrupt, InvalidRequest, NotEnoughReplicas, Timeout
from quivermq.node import membership as membership_module
from quivermq.node.broker import Broker
from quivermq.node.data_dir import DataDirectory
from quivermq.node.handlers.cluster import transfer
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, proto
from tests.cluster.catalogs import broker as record_of
from tests.cluster.catalogs import only_copy
from tests.node.cluster_stage import cluster, free_addresses
from tests.transports.stage import Talker, make_topic, on_loop, serving, settings, store, until


def stranger(node: int = 2, **changes: object) -> proto.PeerHello:
    hello = proto.PeerHello(
        protocol=PROTOCOL,
        node=node,
        directory_id=bytes(range(16)),
        boot=1,
        level_min=OWN_LEVELS.low,
        level_max=OWN_LEVELS.high,
        address="127.0.0.1:1",
        peer_address="127.0.0.1:2",
    )
    hello.MergeFrom(proto.PeerHello(**changes))  # type: ignore[arg-type]
    return hello


@on_loop
async def test_nothing_that_an_unwelcome_broker_says_is_remembered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        membership = server.broker.membership
        assert "not a member" in membership.welcome(stranger())
        assert "not a member" in membership.recognise(2, stranger())
        assert membership.heard_addresses == {}
        assert membership.heard_boots == {}


@on_loop
async def test_a_broker_whose_doors_are_not_open_yet_is_asked_where_the_catalog_says(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        membership = brokers.running[1].broker.membership
        view = membership.metadata.view
        there = view.brokers[2]
        early = stranger(2, directory_id=bytes.fromhex(there.directory_id), boot=there.boot + 1)
        early.address = ""
        early.cluster_id = membership.cluster_id
        early.lives.extend(map(bytes.fromhex, brokers.running[2].broker.directory.identity.lives))
        assert membership.welcome(early) == ""
        assert membership.recognise(2, early) == ""
        assert membership.heard_addresses.get(2, there.address) == there.address


@on_loop
async def test_a_zone_that_an_earlier_release_left_out_is_told_again(tmp_path: Path) -> None:
    async with serving(tmp_path, zone="eu-1a") as server:
        metadata = server.broker.metadata
        await until(lambda: server.broker.membership.is_registered)
        known = metadata.view.broker(1)
        assert known.zone == "eu-1a"
        without = {key: value for key, value in known.to_json().items() if key != "zone"}
        await metadata.edit(lambda _: Edit({known.key: without}))
        await until(lambda: metadata.view.broker(1) == known)


@pytest.mark.parametrize("node", [0, 1, 65_536, 2**32 - 1])
@on_loop
async def test_a_number_that_cannot_be_another_brokers_is_refused(
    tmp_path: Path, node: int
) -> None:
    """Even where nobody is known yet, and everybody is let in."""
    server = Server(settings(tmp_path, join=free_addresses(1)[0]))
    await server.start()
    membership = server.broker.membership
    assert membership.welcome(stranger(3)) == ""
    # Whoever writes to a broker that joins may be the only one it hears of.
    assert list(server.broker.links.peers) == [3]
    assert "cannot be node" in membership.welcome(stranger(node))
    await server.stop()


@on_loop
async def test_a_broker_that_finds_nobody_to_join_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "_AGAIN_S", 0.001)
    nobody = free_addresses(1)[0]
    server = Server(settings(tmp_path, join=nobody))
    await server.start()
    await until(lambda: "is not registered with its cluster, and tries again" in caplog.text)
    assert nobody in caplog.text
    await server.stop()


@on_loop
async def test_a_starting_member_accepts_no_peer_before_it_knows_the_cluster(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker, "one")
        await make_topic(talker, "two")
        talker.close()
    broker = Broker(settings(tmp_path))
    await broker.start()
    assert "just starting" in broker.membership.welcome(stranger())
    assert "just starting" in broker.membership.recognise(2, stranger())
    await broker.membership.begin()
    # At once, by what its log holds, though nothing has run yet.
    assert broker.metadata.view.brokers
    assert "not a member" in broker.membership.welcome(stranger())
    await broker.stop()


@on_loop
async def test_a_broker_that_is_behind_accepts_members_that_may_be_new(tmp_path: Path) -> None:
    async with cluster(tmp_path, fsync="always") as brokers:
        membership = brokers.running[1].broker.membership
        cluster_id = membership.cluster_id
        known = brokers.running[2].broker.membership.hello()
        joined = stranger(4, cluster_id=cluster_id)
        replaced = stranger(2, cluster_id=cluster_id)
        old_copy = stranger(2, cluster_id=cluster_id)
        old_copy.directory_id = known.directory_id
        assert membership.is_current
        assert "not a member" in membership.objection(joined)
        assert "another data directory" in membership.objection(replaced)
        assert "old copy" in membership.objection(old_copy)
        view = membership.metadata.view
        await brokers.stop(1, 2, 3)
        await brokers.start(1)
        membership = brokers.running[1].broker.membership
        # The last entries of the log may not be known to be committed.
        membership.metadata.view = view
        assert not membership.is_current
        assert membership.objection(joined) == membership.objection(replaced) == ""
        assert "old copy" in membership.objection(old_copy)
        assert "not a member" in membership.objection(stranger(4))
        assert "another data directory" in membership.objection(stranger(2))
        assert "belongs to cluster" in membership.objection(stranger(4, cluster_id="other"))


@on_loop
async def test_a_member_without_its_metadata_log_does_not_begin_anew(tmp_path: Path) -> None:
    async with serving(tmp_path):
        pass
    directory = DataDirectory(str(tmp_path), 1)
    directory.list_logs({})
    directory.close()
    async with serving(tmp_path) as server:
        # The log says itself whose it is.
        assert METADATA_PARTITION.hex() in server.broker.directory.logs
        server.broker.directory.list_logs({})
    shutil.rmtree(tmp_path / "log/_quiver")
    server = Server(settings(tmp_path))
    with pytest.raises(Corrupt, match="cluster replace 1"):
        await server.start()


@on_loop
async def test_a_member_that_is_refused_keeps_what_it_has(tmp_path: Path) -> None:
    """It may be asking the wrong cluster, with a log that is damaged for now."""
    async with serving(tmp_path) as server:
        broker = server.broker
        view, broker.metadata.view = broker.metadata.view, View()
        await broker.membership._refused("go away")
        assert broker.directory.identity.member == 1
        assert METADATA_PARTITION.hex() in broker.directory.logs
        broker.metadata.view = view


@on_loop
async def test_an_emptied_broker_does_not_take_part_and_comes_back_when_replaced(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, fsync="always") as brokers:
        talker = await Talker.by_socket(brokers.running[1])
        await make_topic(talker)
        for _ in range(5):
            await store(talker, b"x")
        talker.close()
        await brokers.stop(1, 2, 3)
        brokers.empty(3)
        # It is there before the others know whom they should not trust.
        await brokers.start(3)
        await brokers.start(1, 2)
        emptied = brokers.running[3].broker
        await brokers.until_ready(1, 2)
        await until(lambda: "another data directory" in emptied.membership.refusal)
        assert emptied.metadata.view.version == 0
        for node in (1, 2):
            other = brokers.running[node].broker
            await until(lambda other=other: not other.is_alive(3))
            assert not any(i.hello and i.hello.node == 3 for i in other.links._incoming)
        talker = await Talker.by_socket(brokers.running[1])
        replace = proto.Request(id=9, replace_broker=proto.ReplaceBroker(id=3))
        assert (await talker.ask(replace)).WhichOneof("body") == "done"
        await until(lambda: emptied.is_ready)
        assert emptied.directory.identity.member == 1 << 16 | 3
        partition = emptied.partitions.partition_id("orders", b"", 0)
        await until(lambda: partition in emptied.scheduler.replicas)
        await until(lambda: emptied.scheduler.replicas[partition].readable_end == 5)
        talker.close()


@on_loop
async def test_a_broker_that_is_alive_is_not_replaced(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        broker = server.broker
        members = broker.metadata.view.broker(1).member
        replace = proto.Request(replace_broker=proto.ReplaceBroker(id=1))
        with pytest.raises(InvalidRequest, match="broker 1 is alive"):
            await broker.service.call(replace, [])
        assert broker.metadata.view.broker(1).member == members


@on_loop
async def test_a_broker_that_is_down_with_the_only_copy_is_removed_by_force_alone(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        metadata, service = server.broker.metadata, server.broker.service
        await metadata.edit(lambda _: only_copy(record_of(4)))
        await until(lambda: not server.broker.is_alive(4))
        remove = proto.Request(remove_broker=proto.RemoveBroker(id=4))
        with pytest.raises(InvalidRequest, match="only broker 4, which is down, has orders/0"):
            await service.call(remove, [])
        assert metadata.view.broker(4).state == "serving"
        remove.remove_broker.force = True
        await service.call(remove, [])
        assert metadata.view.broker(4).state == "leaving"


@on_loop
async def test_leadership_is_offered_once_to_a_broker_that_does_not_take_it(
    tmp_path: Path,
) -> None:
    """While it is offered, the leader stores nothing."""
    async with cluster(tmp_path) as brokers:
        leader = next(s.broker for s in brokers.running.values() if s.broker.metadata.is_leader)
        gone = next(node for node in brokers.running if node != leader.settings.node_id)
        await brokers.stop(gone)
        hosted = leader.metadata.leading_replica()
        with pytest.raises(NotEnoughReplicas, match="away, or still being caught up"):
            await transfer(hosted, gone, lambda _: False)
        asked_at = asyncio.get_running_loop().time()
        with pytest.raises(Timeout, match="did not take"):
            await transfer(hosted, gone, lambda _: True)
        # As long as an election takes, not as long as a request may.
        assert asyncio.get_running_loop().time() - asked_at < 3.0
        assert hosted.replica.is_leader


@on_loop
async def test_a_founder_of_a_cluster_cannot_be_told_to_leave_it(tmp_path: Path) -> None:
    here, there = free_addresses(2)
    server = Server(settings(tmp_path, peer_listen=here, peers={2: there}))
    await server.start()
    talker = await Talker.by_socket(server)
    join = proto.Request(id=5, join_cluster=proto.JoinCluster(address="127.0.0.1:1"))
    answer = await talker.ask(join)
    assert answer.error.code == "InvalidRequest"
    assert server.broker.directory.identity.member == 1
    talker.close()
    await server.stop()


@on_loop
async def test_a_broker_that_left_goes_on_to_join_after_the_request_ended(
    tmp_path: Path,
) -> None:
    (elsewhere,) = free_addresses(1)
    async with serving(tmp_path / "2", node_id=2) as joining:
        talker = await Talker.by_socket(joining)
        talker.say(proto.Request(id=5, join_cluster=proto.JoinCluster(address=elsewhere)))
        await until(lambda: not joining.broker.membership.is_registered)
        talker.close()
        await talker.until_lost()
        await asyncio.sleep(0.02)
        async with serving(tmp_path / "1", listen=elsewhere):
            await until(lambda: joining.broker.is_ready)
            await until(lambda: set(joining.broker.metadata.view.brokers) == {1, 2})


@on_loop
async def test_who_raised_the_level_is_told_the_new_one_at_once_however_slow_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn_level = DataDirectory.learn_level

    def learn_slowly(directory: DataDirectory, level: int, release: str) -> None:
        time.sleep(0.05)
        learn_level(directory, level, release)

    async with serving(tmp_path) as server:
        broker = server.broker
        await until(lambda: broker.membership.is_registered)
        learn_level(broker.directory, OWN_LEVELS.low, "")
        lowered = {**broker.metadata.view.values[CLUSTER_KEY], "level": OWN_LEVELS.low}
        await broker.metadata.edit(lambda _: Edit({CLUSTER_KEY: lowered}))
        monkeypatch.setattr(DataDirectory, "learn_level", learn_slowly)
        talker = await Talker.by_socket(server)
        brokers = proto.Request(map=proto.MapQuery(brokers_only=True))
        assert (await talker.ask(brokers)).map.level == OWN_LEVELS.low
        raised = await talker.ask(proto.Request(upgrade_cluster=proto.UpgradeCluster()))
        assert raised.cluster_upgraded.level == OWN_LEVELS.high
        assert (await talker.ask(brokers)).map.level == OWN_LEVELS.high
        talker.close()
