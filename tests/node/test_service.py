"""One cluster, any broker: requests find who can answer them, once, and always get an answer."""

import asyncio
from pathlib import Path

import pytest

from quivermq.batches import Origin, encode_batch
from quivermq.errors import QuiverError, Timeout
from quivermq.node.hosted_replica import HostedReplica
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import Brokers, cluster
from tests.node.consumer_stage import Consumer, led, move_leader, refusal
from tests.node.replica_stage import stuck
from tests.transports.stage import (
    PATIENT,
    Talker,
    make_topic,
    on_loop,
    serving,
    store,
    until,
    waiting_fetch,
)


def orders(server: Server) -> HostedReplica:
    broker = server.broker
    return broker.scheduler.replicas[broker.partitions.partition_id("orders", b"", 0)]


def leader_of_orders(brokers: Brokers) -> int:
    """0 if nobody leads. Some may not have heard of the topic yet."""
    return next(
        (
            node
            for node, server in brokers.running.items()
            for group in server.broker.scheduler.replicas.values()
            if group.name.topic == "orders" and group.was_serving
        ),
        0,
    )


BUSY = {"NotEnoughReplicas", "Timeout"}
"""What is said if an election takes longer than it should, as on a machine with a busy disk."""


async def insist(talker: Talker, request: proto.Request) -> proto.Response:
    """Ask again while it is said that this may help."""
    answer = await talker.ask(request)
    while answer.error.code in BUSY:
        answer = await talker.ask(request)
    assert answer.WhichOneof("body") != "error", answer
    return answer


def produce(number: int, **changes: object) -> proto.Request:
    body = proto.Produce(topic="orders", partition=0)
    request = proto.Request(id=number, produce=body)
    request.MergeFrom(proto.Request(**changes))  # type: ignore[arg-type]
    return request


@on_loop
async def test_every_broker_answers_for_all_and_names_the_leader_when_asked_directly(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        talkers = {n: await Talker.by_socket(server) for n, server in brokers.running.items()}
        await make_topic(talkers[2])
        await until(lambda: all(server.broker.is_ready for server in brokers.running.values()))
        for talker in talkers.values():
            await store(talker, b"x")
        leader = leader_of_orders(brokers)
        for node, talker in talkers.items():
            answer = await talker.ask(produce(9, direct=True), encode_batch([b"y"]))
            if node == leader:
                assert answer.produced.batches[0].first_offset == 3
            else:
                assert (answer.error.code, answer.error.leader) == ("NotLeader", leader)
                assert answer.error.leader_address == brokers.running[leader].listen
        for talker in talkers.values():
            talker.close()


@on_loop
async def test_what_was_passed_on_is_not_passed_on_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        talker = await Talker.by_socket(brokers.running[1])
        await make_topic(talker)
        await until(lambda: leader_of_orders(brokers))
        leader = leader_of_orders(brokers)
        follower = next(node for node in brokers.running if node != leader)
        other = await Talker.by_socket(brokers.running[follower])
        counters = brokers.running[follower].broker.counters
        before = counters.forwarded
        answer = await other.ask(produce(9, forwarded=True), encode_batch([b"x"]))
        assert answer.error.code == "NotLeader"
        assert counters.forwarded == before
        talker.close()
        other.close()


@on_loop
async def test_a_broker_that_is_taken_for_the_leader_by_mistake_passes_nothing_on(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as brokers:
        talker = await Talker.by_socket(brokers.running[1])
        await make_topic(talker)
        await until(lambda: all(server.broker.is_ready for server in brokers.running.values()))
        await until(lambda: leader_of_orders(brokers))
        leader = leader_of_orders(brokers)
        asker, mistaken = (s.broker for node, s in brokers.running.items() if node != leader)
        node, before = mistaken.settings.node_id, mistaken.counters.forwarded
        frames = [encode_batch([b"x"])]
        assert await asker.service._forward(node, produce(9), frames, 5.0, None) is None
        assert mistaken.counters.forwarded == before
        talker.close()


@on_loop
async def test_a_leader_that_was_replaced_unnoticed_tells_nothing(tmp_path: Path) -> None:  # F5
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        await until(lambda: led(brokers))
        await move_leader(brokers, 1)
        await consumer.store(b"a")
        # Cut off from the others, it believes that it leads; for a while it says so, too.
        old = brokers.running[1].broker
        old.scheduler.links = None
        place = proto.Position(partition=0)
        asking = [
            asyncio.create_task(old.service.call(proto.Request(direct=True, **body), []))
            for body in (
                {"fetch": proto.Fetch(topic="orders")},
                {"find_offset": proto.FindOffset(topic="orders", latest=True)},
                {"list_offsets": proto.ListOffsets(topic="orders", positions=[place])},
                {"committed_offsets": proto.CommittedOffsets(topic="orders", group="readers")},
            )
        ]
        await until(lambda: led(brokers).get(0) in {2, 3} or all(one.done() for one in asking))
        for one in asking:
            assert await refusal(one) in {"NotLeader", "Timeout", "NotEnoughReplicas"}
        old.scheduler.links = old.links
        await consumer.close()


@on_loop
async def test_a_poll_that_waits_at_a_deposed_leader_is_answered_by_the_next(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        talker = await Talker.by_socket(brokers.running[1])
        await make_topic(talker)
        await until(lambda: leader_of_orders(brokers))
        leader = leader_of_orders(brokers)
        waiting = await Talker.by_socket(brokers.running[leader])
        waiting.say(waiting_fetch(11))
        await until(lambda: orders(brokers.running[leader])._readers)
        to = next(node for node in brokers.running if node != leader)
        move = proto.Transfer(topic="orders", partition=0, to=to)
        await insist(talker, proto.Request(id=12, transfer=move))
        await store(talker, b"x")
        answer = await waiting.hear(11)
        if answer.error.code in BUSY:
            answer = await insist(waiting, waiting_fetch(13))
        assert answer.fetched.next_offset == 1, answer
        talker.close()
        waiting.close()


@on_loop
async def test_a_topic_made_anew_has_nothing_of_the_old_one(tmp_path: Path) -> None:  # F37
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        for generation in range(5):
            await make_topic(talker)
            topic_id = bytes.fromhex(server.broker.metadata.view.topics["orders"].id)
            assert (await store(talker, b"x")).produced.batches[0].first_offset == 0
            talker.say(
                proto.Request(id=20, fetch=proto.Fetch(topic="orders", offset=1, wait_ms=60_000))
            )
            await until(lambda: orders(server)._readers)
            # Produces that are under way while the topic goes: each gets one answer.
            for number in range(30, 60):
                talker.say(produce(number), encode_batch([bytes(1_000)]))
            talker.say(proto.Request(id=21, delete_topic=proto.DeleteTopic(name="orders")))
            assert (await talker.hear(21)).WhichOneof("body") == "done"
            for number in range(30, 60):
                answer = await talker.hear(number)
                assert answer.WhichOneof("body") == "produced" or answer.error.code in {
                    "Timeout",
                    "TopicNotFound",
                }, answer
            await talker.hear(20)
            await make_topic(talker)
            stale = proto.Produce(topic="orders", topic_id=topic_id)
            answer = await talker.ask(proto.Request(id=22, produce=stale), encode_batch([b"y"]))
            assert answer.error.code == "TopicNotFound"
            assert (await store(talker, b"z")).produced.batches[0].first_offset == 0, generation
            gone = proto.Request(id=23, delete_topic=proto.DeleteTopic(name="orders"))
            assert (await talker.ask(gone)).WhichOneof("body") == "done"
        await until(lambda: not (tmp_path / "log/orders").exists())
        assert talker.heard == []
        talker.close()


@on_loop
async def test_without_a_majority_writes_are_refused_and_come_back_with_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        talker = await Talker.by_socket(brokers.running[1])
        await make_topic(talker)
        await store(talker, b"x")
        await brokers.stop(2, 3)

        codes: set[str] = set()
        async with asyncio.timeout(20):
            while "NotEnoughReplicas" not in codes:
                answer = await talker.ask(produce(9, direct=True), encode_batch([b"y"]))
                codes.add(answer.error.code)
                await asyncio.sleep(0.02)
        assert codes <= {"NotEnoughReplicas", "NotLeader", "Timeout"}
        await brokers.start(2, 3)
        await brokers.until_ready(1, 2, 3)
        await store(talker, b"z")
        talker.close()


@pytest.mark.parametrize("direct", [True, False])
@on_loop
async def test_a_produce_is_answered_in_its_time_whatever_the_disk_does_and_may_be_stored_later(
    tmp_path: Path, direct: bool
) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        with stuck(server.broker.disk_thread):
            talker.say(produce(7, direct=direct, timeout_ms=60_000), encode_batch([b"patient"]))
            began = asyncio.get_running_loop().time()
            hasty = produce(8, direct=direct, timeout_ms=200)
            answer = await talker.ask(hasty, encode_batch([b"hasty"]))
            assert answer.error.code == "Timeout"
            assert asyncio.get_running_loop().time() - began >= 0.2
        answer = await talker.hear(7)
        assert answer.produced.batches[0].first_offset == 0
        await until(lambda: orders(server).readable_end == 2)
        await until(lambda: server.broker.counters.traffic["orders", 0].messages_in == 2)
        assert not [response for response in talker.heard if response.id == 8]
        talker.close()


@on_loop
async def test_a_produce_that_timed_out_is_answered_no_second_time(tmp_path: Path) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        answers: list[proto.Response | QuiverError] = []
        with stuck(server.broker.disk_thread):
            server.broker.service._producing.produce(
                proto.Produce(topic="orders"), [encode_batch([b"x"])], answers.append, 0.02
            )
            await until(lambda: answers)
        await until(lambda: server.broker.counters.traffic["orders", 0].messages_in == 1)
        assert [type(answer) for answer in answers] == [Timeout]
        talker.close()


@on_loop
async def test_one_refused_batch_is_told_though_others_are_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        stored, refused = (
            encode_batch([b"x"], origin=Origin(producer_id=7, sequence=sequence))
            for sequence in (0, 5)
        )
        answer = await talker.ask(produce(9), stored, refused)
        assert answer.error.code == "OutOfSequence"
        assert orders(server).readable_end == 1
        talker.close()


@on_loop
async def test_a_produce_of_another_broker_that_was_given_up_harms_no_replica(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        with stuck(server.broker.disk_thread):
            request = produce(9, forwarded=True)
            asking = asyncio.create_task(
                server.broker.service.call(request, [encode_batch([b"x"])])
            )
            await until(lambda: orders(server).is_writing)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: orders(server).readable_end == 1)
        assert (await store(talker, b"y")).produced.batches[0].first_offset == 1
        assert orders(server).trouble == ""
        talker.close()


@on_loop
async def test_only_a_broker_that_knows_the_catalog_denies_that_there_is_a_topic(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        metadata = server.broker.metadata
        before = metadata.view
        await make_topic(talker)
        # As of a broker that has not applied the last change yet.
        metadata.view = before
        await store(talker, b"x")
        answer = await talker.ask(proto.Request(id=9, fetch=proto.Fetch(topic="nowhere")))
        assert answer.error.code == "TopicNotFound"
        talker.close()
