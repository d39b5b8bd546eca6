"""Brokers whose limits differ: what one has accepted, all can hold."""

from pathlib import Path

from quivermq.batches import encode_batch
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers
from tests.transports.stage import Talker, on_loop, until


@on_loop
async def test_a_broker_with_smaller_limits_follows_all_the_same(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, 3)
    small = Brokers(tmp_path, 3, batch_bytes_max=10_000, message_bytes_max=5_000)
    small.addresses = brokers.addresses
    try:
        await brokers.start(1, 2)
        await small.start(3)
        servers = [*brokers.running.values(), *small.running.values()]
        await until(lambda: all(server.broker.is_ready for server in servers))
        talker = await Talker.by_socket(servers[0])
        creation = proto.CreateTopic(name="orders", partitions=1, replication=3)
        await talker.ask(proto.Request(id=5, create_topic=creation))
        transfer = proto.Transfer(topic="orders", partition=0, to=1)
        await talker.ask(proto.Request(id=6, transfer=transfer))
        body = proto.Produce(topic="orders", partition=0)
        large = encode_batch([b"x" * 100_000])
        answer = await talker.ask(proto.Request(id=7, produce=body), large)
        assert answer.WhichOneof("body") == "produced", answer
        group = servers[0].broker.partitions.partition_id("orders", b"", 0)
        await until(
            lambda: all(
                (hosted := server.broker.scheduler.replicas.get(group)) is not None
                and hosted.readable_end == 1
                for server in servers
            )
        )
        talker.close()
    finally:
        await brokers.stop(*brokers.running)
        await small.stop(*small.running)
