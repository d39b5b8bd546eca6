"""What topics hold, asked of real brokers; waiting for more; ranges that are known to exist."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import quivermq
from quivermq.client import Held, TopicOffsets
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.testing import Cluster


@pytest.fixture(scope="module")
def trio() -> Iterator[Cluster]:
    with Cluster(nodes=3, settings={"tick_ms": 50}, proxied=True) as cluster:
        yield cluster


@pytest.fixture
def client(trio: Cluster) -> Iterator[quivermq.Client]:
    with trio.connect(timeout=20.0) as client:
        yield client


def test_offsets_are_those_of_all_partitions_wherever_they_are_led(
    client: quivermq.Client,
) -> None:
    client.create_topic("all", partitions=5, replication=3)
    client.produce_many("all", [b"x"] * 3, partition=4)
    found = client.offsets("all")
    assert found.partitions == {number: Held(0, 3 if number == 4 else 0) for number in range(5)}
    assert found.id == client.topic("all").id
    assert "all" in client.topic_names()
    client.alter_topic("all", partitions=6)
    assert len(client.offsets("all").partitions) == 6
    assert client.offsets("all", [4, 5]).partitions == {4: Held(0, 3), 5: Held(0, 0)}
    assert client.offsets("all", []) == TopicOffsets("all", found.id, {}, count=6)
    with pytest.raises(InvalidRequest, match="partitions 0 to 5"):
        client.offsets("all", [6])
    with pytest.raises(TopicNotFound):
        client.offsets("nobody")
    with pytest.raises(TopicNotFound):
        client.offsets("nobody", [])


def test_a_waiting_call_returns_the_topics_with_new_messages_only(client: quivermq.Client) -> None:
    client.create_topic("wait", partitions=4, replication=3)
    client.create_topic("other", replication=3)
    client.produce_many("wait", [b"x"] * 3, partition=1)
    positions = {"wait": {0: 0, 1: 3, 2: 0, 3: 0}, "other": {0: 0}}
    began = time.monotonic()
    assert client.await_offsets(positions, wait=0.3) == {}
    assert 0.25 < time.monotonic() - began < 5
    timer = threading.Timer(0.1, lambda: client.produce("wait", b"x", partition=1))
    timer.start()
    found = client.await_offsets(positions, wait=20.0)
    timer.join()
    assert found["wait"].partitions == {1: Held(0, 4)}
    assert time.monotonic() - began < 10
    # What is there already is told at once.
    assert client.await_offsets({"wait": {1: 0}}, wait=20.0)["wait"].partitions == {1: Held(0, 4)}


def test_a_waiting_read_hears_of_messages_under_another_leader(
    trio: Cluster, client: quivermq.Client
) -> None:
    client.create_topic("moved", replication=3)
    client.produce("moved", b"x")
    leader = trio.leader("moved")
    assert client.await_offsets({"moved": {0: 1}}, wait=0.05) == {}
    trio.nodes[leader].kill()
    try:
        with trio.connect(timeout=20.0) as other:
            other.produce("moved", b"y")
        found: dict[str, object] = {}
        deadline = time.monotonic() + 20
        while not found and time.monotonic() < deadline:
            found = dict(client.await_offsets({"moved": {0: 1}}, wait=0.5))
        assert client.offsets("moved").partitions == {0: Held(0, 2)}
        assert found
    finally:
        trio.nodes[leader].start()
        trio.wait_ready()


def test_more_topics_than_a_broker_hears_of_at_a_time_have_their_turns() -> None:
    settings = {"tick_ms": 50, "requests_max": 8}
    with Cluster(nodes=1, settings=settings) as cluster, cluster.connect() as client:
        topics = [f"t{number}" for number in range(12)]
        for topic in topics:
            client.create_topic(topic)
        positions = {topic: {0: 0} for topic in topics}
        for _ in range(3):
            began = time.monotonic()
            assert client.await_offsets(positions, wait=0.2) == {}
            assert time.monotonic() - began >= 0.19
        for topic in ("t0", "t11"):
            client.produce(topic, b"x")
        heard: set[str] = set()
        deadline = time.monotonic() + 20
        while heard != {"t0", "t11"}:
            assert time.monotonic() < deadline
            heard |= set(client.await_offsets(positions, wait=0.01))


def test_a_range_is_whole_though_a_follower_is_cut_off_or_hangs(
    trio: Cluster, client: quivermq.Client
) -> None:
    client.create_topic("lag", replication=3)
    client.produce_many("lag", [b"%d" % number for number in range(100)])
    leader = trio.leader("lag")
    lagging, hanging = (node for node in trio.nodes if node != leader)
    assert trio.wiring is not None
    trio.wiring.isolate(lagging)
    try:
        client.produce_many("lag", [b"%d" % number for number in range(100, 200)])
        for _ in range(6):  # each reader chooses its follower by chance
            found = client.read_range("lag", 0, 50, 200, follower_ok=True)
            assert [int(message.value) for message in found] == list(range(50, 200))
    finally:
        trio.wiring.heal()
    trio.wait_ready()
    with trio.paused(hanging):
        for _ in range(2):
            found = client.read_range("lag", 0, 50, 200, follower_ok=True)
            assert [int(message.value) for message in found] == list(range(50, 200))
    with pytest.raises(OffsetOutOfRange):
        list(client.read_range("lag", 0, 300, 301, follower_ok=True))


def test_a_range_of_a_topic_that_is_gone_is_refused(client: quivermq.Client) -> None:
    client.create_topic("again", replication=3)
    client.produce("again", b"x")
    topic_id = client.offsets("again").id
    assert len(list(client.read_range("again", 0, 0, 1, topic_id=topic_id))) == 1
    client.delete_topic("again")
    client.create_topic("again", replication=3)
    client.produce("again", b"y")
    with pytest.raises(TopicNotFound, match="deleted and created again"):
        list(client.read_range("again", 0, 0, 1, topic_id=topic_id))


def test_the_asyncio_client_asks_and_waits_too(trio: Cluster, client: quivermq.Client) -> None:
    client.create_topic("aio", partitions=2, replication=3)
    client.produce_many("aio", [b"x"] * 3, partition=1)

    async def ask() -> None:
        async with quivermq.aio.connect(trio.servers) as client:
            found = await client.offsets("aio")
            assert found.partitions == {0: Held(0, 0), 1: Held(0, 3)}
            assert "aio" in await client.topic_names()
            assert await client.offset_at("aio", 1, 0) == 0
            assert [m.offset async for m in client.read_range("aio", 1, 1, 3)] == [1, 2]
            positions = {"aio": {0: 0, 1: 3}}
            assert await client.await_offsets(positions, wait=0.1) == {}
            waiting = asyncio.create_task(client.await_offsets(positions, wait=20.0))
            await asyncio.sleep(0.05)
            await client.produce("aio", b"y", partition=0)
            assert (await waiting)["aio"].partitions == {0: Held(0, 1)}

    asyncio.run(ask())
