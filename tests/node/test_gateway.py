"""The parts of a gateway: which broker a request goes to, by which connection, and what is kept."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quivermq.batches import DEFAULT_LIMITS, encode_batch
from quivermq.client import Router
from quivermq.errors import (
    ConnectionFailed,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    TopicNotFound,
)
from quivermq.node.counters import Counters
from quivermq.node.gateway import broker_pool
from quivermq.node.gateway.broker_pool import ORDERED_LANES, BrokerPool, Unsent
from quivermq.node.gateway.broker_routes import BrokerRoutes, place_of
from quivermq.node.gateway.gateway_service import QUESTIONS, GatewayService
from quivermq.node.permissions import AUDITED, NEEDS, UNCHECKED
from quivermq.wire import error_to_proto, proto
from tests.client.stand_in import DROP, STORE_AND_DROP, StandIn
from tests.transports.stage import on_loop

SOON_S = 5.0


def test_a_request_goes_to_the_leader_of_its_first_partition() -> None:
    settlement = proto.Settlement(partition=4)
    position = proto.Position(partition=5)
    for request, place in (
        (proto.Request(produce=proto.Produce(topic="t", partition=2)), ("t", 2)),
        (proto.Request(poll=proto.Poll(topic="t", partitions=[3, 1])), ("t", 3)),
        (proto.Request(settle=proto.Settle(topic="t", settlements=[settlement])), ("t", 4)),
        (proto.Request(list_offsets=proto.ListOffsets(topic="t", positions=[position])), ("t", 5)),
        (proto.Request(describe_groups=proto.DescribeGroups(topic="t")), None),
        (proto.Request(transfer=proto.Transfer(metadata=True)), None),
        (proto.Request(create_topic=proto.CreateTopic(name="t", partitions=3)), None),
        (proto.Request(sticky_beat=proto.StickyBeat(topic="t", group="g")), None),
    ):
        assert place_of(request) == place, request


def test_nothing_that_changes_anything_is_asked_twice() -> None:
    changing = {"produce", "poll", "settle", "commit_offset", "claim", "sticky_beat", "seek_group"}
    assert not QUESTIONS & (AUDITED | changing | UNCHECKED)
    assert NEEDS.keys() >= QUESTIONS


# Lanes.


@asynccontextmanager
async def pool() -> AsyncIterator[BrokerPool]:
    found = BrokerPool("gateway", DEFAULT_LIMITS, lambda: None, None)
    try:
        yield found
    finally:
        await found.close()


def lane_of(found: BrokerPool, request: proto.Request) -> Any:
    return found._lane_for("a:1", request)


def produce(partition: int, topic: str = "t") -> proto.Request:
    return proto.Request(produce=proto.Produce(topic=topic, partition=partition))


@on_loop
async def test_batches_of_a_partition_take_one_lane_whatever_the_load() -> None:
    async with pool() as found:
        lane = lane_of(found, produce(0))
        lane.loads["a:1"].requests = 10_000
        assert lane_of(found, produce(0)) is lane
        lanes = {id(lane_of(found, produce(n, topic))) for n in range(50) for topic in "abc"}
        assert len(lanes) == ORDERED_LANES


@on_loop
async def test_a_full_lane_is_followed_by_another_up_to_a_limit() -> None:
    poll = proto.Request(poll=proto.Poll(topic="t", partitions=[0]))
    async with pool() as found:
        lanes = []
        for _ in range(broker_pool.LANES_MAX):
            lanes.append(lane_of(found, poll))
            lanes[-1].loads["a:1"].requests = broker_pool.LANE_REQUESTS_MAX
        assert len(set(map(id, lanes))) == broker_pool.LANES_MAX
        with pytest.raises(Overloaded, match="a:1"):
            lane_of(found, poll)
        # To another broker there is room; and here, once a request is answered.
        assert found._lane_for("b:2", poll) is lanes[0]
        lanes[3].loads["a:1"].requests -= 1
        assert lane_of(found, poll) is lanes[3]
        lanes[3].loads["a:1"].bytes = broker_pool.LANE_BYTES_MAX
        with pytest.raises(Overloaded):
            lane_of(found, poll)


@on_loop
async def test_what_did_not_leave_is_told_from_what_was_lost() -> None:
    deadline = asyncio.get_running_loop().time() + SOON_S
    ask = proto.Request(describe_topics=proto.DescribeTopics())
    async with pool() as found:
        with pytest.raises(Unsent):
            await found.send("127.0.0.1:1", ask, (), deadline)
        with StandIn() as broker:
            broker.script("describe_topics", DROP)
            with pytest.raises(ConnectionFailed):
                await found.send(broker.address, ask, (), deadline)
        assert found.open_requests == 0


# Leaders.


class Brokers:
    """Two stand-ins; the first answers maps, in which the second leads."""

    def __init__(self, first: StandIn, second: StandIn) -> None:
        self.first, self.second = first, second
        self.addresses = [first.address, second.address]
        self.asked = 0
        self.is_cut_off = False

    def answer(self, _: proto.Request) -> proto.Response:
        self.asked += 1
        if self.is_cut_off:
            return proto.Response(error=error_to_proto(NotEnoughReplicas("there is no quorum")))
        found = proto.ClusterMap(version=1, leader=1, node=1)
        for node, address in enumerate(self.addresses, 1):
            found.brokers.add(id=node, address=address, alive=True)
        topic = found.topics.add(name="t", id=b"x")
        topic.partitions.add(partition=0, leader=2, replicas=[1, 2])
        return proto.Response(map=found)


@asynccontextmanager
async def routed() -> AsyncIterator[tuple[Brokers, BrokerRoutes]]:
    with StandIn() as first, StandIn() as second:
        brokers = Brokers(first, second)
        first.script("map", *[brokers.answer] * 50)
        second.script("map", *[brokers.answer] * 50)
        async with pool() as found:
            router = Router(found.transport, [first.address], SOON_S)
            routes = BrokerRoutes(router)
            yield brokers, routes
            await routes.close()


@on_loop
async def test_many_requests_ask_for_a_map_once() -> None:
    async with routed() as (brokers, routes):
        deadline = asyncio.get_running_loop().time() + SOON_S
        targets = await asyncio.gather(*(routes.target(produce(0), deadline) for _ in range(50)))
        assert {target.address for target in targets} == {brokers.second.address}
        assert all(target.direct for target in targets)
        assert brokers.asked == 1
        assert (routes.partition_count("t"), routes.leader_in("t", 0)) == (1, 2)
        with pytest.raises(TopicNotFound):
            routes.partition_count("unknown")


@on_loop
async def test_a_broker_that_does_not_lead_is_not_asked_again() -> None:
    async with routed() as (brokers, routes):
        deadline = asyncio.get_running_loop().time() + SOON_S
        target = await routes.target(produce(0), deadline)
        # It names the leader: no map is needed.
        routes.learn(produce(0), target, NotLeader("node 1 leads", leader=1))
        assert (await routes.target(produce(0), deadline)).address == brokers.first.address
        assert brokers.asked == 1
        # It does not: another map is.
        routes.learn(produce(0), target, NotLeader("not any more"))
        assert (await routes.target(produce(0), deadline)).address == brokers.second.address
        assert brokers.asked == 2


@on_loop
async def test_a_leader_that_cannot_be_reached_is_asked_through_others() -> None:
    async with routed() as (brokers, routes):
        deadline = asyncio.get_running_loop().time() + SOON_S
        target = await routes.target(produce(0), deadline)
        routes.learn(produce(0), target, ConnectionFailed("gone"))
        other = await routes.target(produce(0), deadline)
        assert (other.address, other.direct) == (brokers.first.address, False)
        routes.answered(target)
        assert (await routes.target(produce(0), deadline)).direct


@on_loop
async def test_what_was_known_is_used_while_no_broker_answers() -> None:
    async with routed() as (brokers, routes):
        loop = asyncio.get_running_loop()
        await routes.target(produce(0), loop.time() + SOON_S)
        brokers.is_cut_off = True
        routes._router.map.doubt("t")
        target = await routes.target(produce(0), loop.time() + 0.2)
        assert target.address == brokers.second.address
        with pytest.raises(NotLeader):
            await routes.target(produce(0, "other"), loop.time() + 0.2)


# Requests that are lost.


@asynccontextmanager
async def gateway_service() -> AsyncIterator[tuple[Brokers, GatewayService]]:
    with StandIn() as first, StandIn(node=2) as second:
        brokers = Brokers(first, second)
        for broker in (first, second):
            broker.script("map", *[brokers.answer] * 50)
        async with pool() as found:
            routes = BrokerRoutes(Router(found.transport, [first.address], SOON_S))
            service = GatewayService(found, routes, Counters(), SOON_S, SOON_S, 1 << 16, dict)
            yield brokers, service
            await service.close()
            await routes.close()


@on_loop
async def test_what_may_have_been_stored_is_not_sent_again() -> None:
    async with gateway_service() as (brokers, service):
        brokers.second.script("produce", STORE_AND_DROP)
        with pytest.raises(ConnectionFailed):
            await service.call(produce(0), [encode_batch([b"once"])])
        assert (brokers.first.count("produce"), brokers.second.count("produce")) == (0, 1)


@on_loop
async def test_what_did_not_leave_is_sent_to_another() -> None:
    async with gateway_service() as (brokers, service):
        brokers.addresses[1] = "127.0.0.1:1"
        response, _ = await service.call(produce(0), [encode_batch([b"x"])])
        assert response.WhichOneof("body") == "produced", response
        assert brokers.first.count("produce") == 1


@on_loop
async def test_what_only_asks_is_sent_to_another() -> None:
    async with gateway_service() as (brokers, service):
        brokers.second.script("fetch", DROP)
        fetch = proto.Request(fetch=proto.Fetch(topic="t", partition=0))
        response, _ = await service.call(fetch)
        assert response.WhichOneof("body") == "fetched", response
        assert (brokers.first.count("fetch"), brokers.second.count("fetch")) == (1, 1)


@on_loop
async def test_a_broker_that_leads_no_more_is_followed_by_the_one_that_does() -> None:
    async with gateway_service() as (brokers, service):
        brokers.second.script("produce", NotLeader("node 1 leads", leader=1))
        response, _ = await service.call(produce(0), [encode_batch([b"x"])])
        assert response.WhichOneof("body") == "produced", response
        assert (brokers.second.count("produce"), brokers.first.count("produce")) == (1, 1)


@on_loop
async def test_what_was_asked_is_answered_before_a_gateway_ends() -> None:
    async with gateway_service() as (brokers, service):
        is_asked, may_answer = threading.Event(), threading.Event()

        def answer(_: proto.Request) -> proto.Response:
            is_asked.set()
            assert may_answer.wait(SOON_S)
            return proto.Response(done=proto.Done())

        brokers.second.script("commit_offset", answer)
        commit = proto.CommitOffset(topic="t", partition=0, group="g", offset=1)
        replies: list[proto.Response] = []
        task = service.submit(
            proto.Request(id=7, commit_offset=commit),
            [],
            lambda response, _: replies.append(response),
        )
        assert task is not None
        await asyncio.to_thread(is_asked.wait, SOON_S)
        closing = asyncio.create_task(service.close())
        late: list[proto.Response] = []
        await asyncio.sleep(0)
        service.submit(proto.Request(id=8, commit_offset=commit), [], lambda r, _: late.append(r))
        assert late[0].error.code == "ConnectionFailed"
        may_answer.set()
        await closing
        assert [each.WhichOneof("body") for each in replies] == ["done"]
