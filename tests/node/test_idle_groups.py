"""Groups that nobody uses are forgotten: by counted time, by who leads, at the right level."""

import asyncio
from pathlib import Path
from typing import Any

from quivermq.node.delivery.idle_groups import USED_MAX, CountedTime, IdleGroups
from quivermq.transports import Server
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import Consumer, led, move_leader, refusal
from tests.transports.stage import on_loop, serving, until

STEP = 1_000
ARCHIVE = "_archive.3f2b8c1e-0d4a-4f6b-9c7e-1a2b3c4d5e6f"


def passed(time: CountedTime, until_ms: int, begin_ms: int = 0) -> None:
    for now_ms in range(begin_ms, until_ms + 1, time.step_ms):
        time.count(now_ms)


def test_only_time_in_which_the_broker_went_on_is_counted() -> None:
    time = CountedTime(STEP)
    passed(time, 10_000)
    assert time.ms == 10_000
    time.count(10_000 + 8 * 24 * 3600 * 1000)
    assert time.ms == 12_000
    time.count(5)
    assert time.ms == 12_000


def test_a_group_is_idle_when_it_was_not_used_for_so_long_and_not_before() -> None:
    time = CountedTime(STEP)
    idle = IdleGroups(time)
    passed(time, 3_000)
    idle.use("used")
    passed(time, 6_000, 4_000)
    assert idle.idle(["used", "never used"], 5_000) == ["never used"]
    idle.use("never used")
    assert idle.idle(["used", "never used"], 5_000) == []
    assert not idle.is_time_to_look(5_000)
    passed(time, 8_000, 7_000)
    assert not idle.is_time_to_look(5_000)
    assert idle.is_time_to_look(4_000), "another setting"
    assert idle.idle(["used", "never used"], 5_000) == []
    passed(time, 9_000, 9_000)
    assert idle.is_time_to_look(5_000)
    assert idle.idle(["used", "never used"], 5_000) == ["used"]


def test_remembered_names_are_bounded_and_no_group_is_forgotten_for_it() -> None:
    time = CountedTime(STEP)
    idle = IdleGroups(time)
    passed(time, 50_000)
    for number in range(USED_MAX + 1):
        idle.use(f"{number}")
    assert len(idle._used) <= USED_MAX
    assert idle.idle(["0", "another"], 49_000) == []


def names(server: Server, topic: str = "orders") -> set[str]:
    group = server.broker.partitions.local(topic, b"", 0)
    assert group is not None
    assert group.replica.groups is not None
    return set(group.replica.groups.by_name)


async def use(consumer: Consumer, group: str) -> None:
    if got := await consumer.poll(group=group):
        await consumer.ack(got, group=group)


@on_loop
async def test_an_unused_group_is_forgotten_and_others_are_not(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(group_idle_ms=1_000)
        await consumer.store(b"a", b"b")
        for group in ("idle", "polling", "waiting", "holding"):
            await use(consumer, group)
        await consumer.store(b"c")
        await consumer.poll(group="holding")
        for group in (ARCHIVE, "reader"):
            body = proto.CommitOffset(topic="orders", group=group, offset=1)
            await consumer.ask(commit_offset=body)
        await use(consumer, "waiting")
        other = Consumer(server, 2)
        poll = asyncio.create_task(other.poll(group="waiting", wait_ms=20_000))

        async def keep_polling() -> None:
            while "idle" in names(server):
                await use(consumer, "polling")
                await asyncio.sleep(0.05)

        async with asyncio.timeout(20):
            await keep_polling()
        await asyncio.sleep(1.2)
        await use(consumer, "polling")
        assert names(server) >= {"polling", "waiting", "holding", ARCHIVE, "reader"}
        await consumer.store(b"d")
        assert await poll
        await consumer.close()
        await other.close()


KEPT: dict[str, dict[str, Any]] = {
    "never": {"group_idle_ms": 0},
    "by-default": {},
    # Where messages go when all groups have done them, a group is what keeps them.
    "acked": {"delete_acked": True, "group_idle_ms": 1_000},
}


@on_loop
async def test_nothing_is_forgotten_at_a_lower_level_or_where_the_topic_says_so(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        consumers = [Consumer(server), *(Consumer(server, topic=topic) for topic in KEPT)]
        for consumer in consumers:
            await consumer.make_topic(**KEPT.get(consumer.topic, {"group_idle_ms": 1_000}))
            await use(consumer, "idle")
        server.broker.metadata.level = 1
        await asyncio.sleep(3.5)
        assert names(server) == {"idle"}
        server.broker.metadata.level = 2
        await until(lambda: not names(server))
        for consumer in consumers:
            assert (names(server, consumer.topic) == {"idle"}) == (consumer.topic in KEPT)
            await consumer.close()


@on_loop
async def test_another_leader_counts_anew_and_all_replicas_forget(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic(group_idle_ms=3_000)
        await use(consumer, "idle")
        first = led(brokers)[0]
        await asyncio.sleep(2.0)
        await move_leader(brokers, first % 3 + 1)
        await asyncio.sleep(2.0)
        assert all(names(server) == {"idle"} for server in brokers.running.values())
        await until(lambda: not any(map(names, brokers.running.values())))
        await consumer.close()


@on_loop
async def test_the_setting_needs_its_level(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        found = (await consumer.ask(map=proto.MapQuery())).map
        assert found.topics[0].settings.group_idle_ms == 7 * 24 * 3600 * 1000
        alter = proto.AlterTopic(name="orders", settings=proto.TopicSettings(group_idle_ms=5_000))
        await consumer.ask(alter_topic=alter)
        # A client that does not know the setting leaves it alone.
        alter = proto.AlterTopic(name="orders", settings=proto.TopicSettings(max_deliveries=9))
        await consumer.ask(alter_topic=alter)
        topic = server.broker.metadata.view.topic("orders")
        assert (topic.group_idle_ms, topic.topic_settings.max_deliveries) == (5_000, 9)
        again = consumer.make_topic(max_deliveries=9, group_idle_ms=6_000)
        assert await refusal(again) == "TopicExists"
        await consumer.close()
