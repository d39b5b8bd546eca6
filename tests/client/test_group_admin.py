"""Looking after groups, delayed messages and dead letters, on a real broker."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

import quivermq
import quivermq.aio
from quivermq.errors import InvalidRequest, TopicNotFound
from tests.client.brokers import BrokerThread


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def wide(real: quivermq.Client, topic: str) -> str:
    """A topic of three partitions, with ten messages in each."""
    real.alter_topic(topic, partitions=3)
    for partition in range(3):
        real.produce_many(topic, [b"%d" % n for n in range(10)], partition=partition)
    return topic


def test_every_message_of_a_group_is_counted_once(real: quivermq.Client, wide: str) -> None:
    found = real.poll(wide, group="g", max_messages=30)
    real.ack(found[:12])
    real.nack(found[12:15], delay=60)
    real.release(found[15:])
    held = real.poll(wide, group="g", max_messages=4)
    info = real.group(wide, "g")
    assert (info.name, info.topic, info.mode) == ("g", wide, "shared")
    assert (info.done, info.delayed, info.in_flight, info.lag) == (12, 3, 4, 11)
    assert (info.dead, info.lost) == (0, 0)
    assert [each.partition for each in info.partitions] == [0, 1, 2]
    assert [each.end_offset for each in info.partitions] == [10, 10, 10]
    (member,) = info.members
    assert member.in_flight == 4
    assert "pytest" in member.name or member.name
    assert "lag 11" in repr(info)
    real.ack(held)


def test_what_is_in_flight_is_listed_the_longest_held_first(
    real: quivermq.Client, wide: str
) -> None:
    with pytest.raises(InvalidRequest, match="no group 'g'"):
        real.in_flight(wide, "g")
    first = real.poll(wide, group="g", max_messages=4, visibility=60)
    time.sleep(0.05)
    real.extend(first, 90)
    real.nack(real.poll(wide, group="g", max_messages=2), delay=0)
    second = real.poll(wide, group="g", max_messages=30, visibility=60)
    found = real.in_flight(wide, "g")
    held = {
        (each.partition, offset)
        for each in found
        for offset in range(each.offset, each.offset + each.count)
    }
    assert held == {(message.partition, message.offset) for message in [*first, *second]}
    assert {(each.partition, each.offset) for each in found[:1]} == {
        (first[0].partition, first[0].offset)
    }
    assert found[0].held >= 0.05
    assert 60 < found[0].left <= 90
    assert found[0].member == real.group(wide, "g").members[0].id
    assert found[0].program == real.group(wide, "g").members[0].name
    assert sorted({each.deliveries for each in found}) == [1, 2]
    assert sum(each.count for each in found if each.deliveries == 2) == 2
    (only,) = real.in_flight(wide, "g", limit=1)
    assert (only.partition, only.offset) == (found[0].partition, found[0].offset)
    with pytest.raises(InvalidRequest, match="limit"):
        real.in_flight(wide, "g", limit=0)


def test_groups_are_listed_by_name_with_those_that_only_commit(
    real: quivermq.Client, wide: str
) -> None:
    assert real.groups(wide) == []
    real.ack(real.poll(wide, group="shared"))
    real.commit(wide, group="reader", partition=1, offset=4)
    reader, shared = real.groups(wide)
    assert (reader.name, reader.mode) == ("reader", "single")
    assert [(each.partition, each.committed) for each in reader.partitions] == [(1, 4)]
    assert reader.lag == 6
    assert (shared.name, shared.mode) == ("shared", "shared")


def test_a_group_that_is_not_there_is_refused(real: quivermq.Client, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="no group 'nobody'"):
        real.group(topic, "nobody")
    with pytest.raises(InvalidRequest, match="begin with _"):
        real.group(topic, "_dlq")
    with pytest.raises(TopicNotFound):
        real.groups("nowhere")


def test_a_group_seeks_to_offsets_ends_and_times(real: quivermq.Client, wide: str) -> None:
    real.ack(real.poll(wide, group="g", max_messages=30))
    assert real.seek(wide, group="g", to=7, partition=1) == {1: 7}
    found = real.poll(wide, group="g")
    assert [(message.partition, message.offset) for message in found] == [(1, 7), (1, 8), (1, 9)]
    assert real.seek(wide, group="g", to="earliest") == {0: 0, 1: 0, 2: 0}
    assert real.group(wide, "g").lag == 30
    assert real.seek(wide, group="g", to="latest") == {0: 10, 1: 10, 2: 10}
    assert real.poll(wide, group="g", wait=0) == []
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert real.seek(wide, group="g", to=soon) == {0: 10, 1: 10, 2: 10}
    assert real.seek(wide, group="g", to="2001-01-01T00:00:00+00:00") == {0: 0, 1: 0, 2: 0}
    with pytest.raises(InvalidRequest, match="partition="):
        real.seek(wide, group="g", to=3)
    with pytest.raises(InvalidRequest, match="to must be"):
        real.seek(wide, group="g", to="somewhere")


def test_a_deleted_group_begins_anew(real: quivermq.Client, wide: str) -> None:
    real.ack(real.poll(wide, group="g", max_messages=30))
    real.delete_group(wide, "g")
    assert real.groups(wide) == []
    assert len(real.poll(wide, group="g", max_messages=30)) == 30


def test_a_group_may_start_at_the_end(real: quivermq.Client, topic: str) -> None:
    real.produce(topic, b"before")
    assert real.poll(topic, group="g", start="latest", wait=0) == []
    real.produce(topic, b"behind")
    assert [message.value for message in real.poll(topic, group="g")] == [b"behind"]


def test_delayed_messages_are_listed_and_cancelled(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"late"] * 3, delay=120)
    real.produce(topic, b"soon", delay=60, priority=2)
    first, second = real.delayed(topic)
    assert (first.partition, first.offset, first.count, first.priority) == (0, 3, 1, 2)
    assert (second.offset, second.count) == (0, 3)
    assert timedelta(seconds=50) < first.due - datetime.now(UTC) < timedelta(seconds=61)
    assert len(real.delayed(topic, limit=1)) == 1
    assert real.cancel_delayed(topic, 0, [0, 2]) == 2
    assert real.cancel_delayed(topic, 0, 3) == 1
    assert real.cancel_delayed(topic, 0, []) == 0
    assert [(each.offset, each.count) for each in real.delayed(topic)] == [(1, 1)]


def test_delayed_messages_of_all_partitions_are_cancelled_as_they_are_listed(
    real: quivermq.Client, topic: str
) -> None:
    real.alter_topic(topic, partitions=2)
    for partition in range(2):
        real.produce_many(topic, [b"late"] * 3, delay=120, partition=partition)
    listed = real.delayed(topic)
    assert {each.partition for each in listed} == {0, 1}
    assert real.cancel_delayed(topic, None, listed[0]) == 3
    assert real.cancel_delayed(topic, None, listed) == 3
    assert real.delayed(topic) == []


def test_dead_letters_tell_their_story(real: quivermq.Client, topic: str) -> None:
    assert real.dead_letters(topic) == []
    real.produce(topic, b"v", key=b"k", headers={"own": b"1"})
    (message,) = real.poll(topic, group="g")
    message.reject("no stock")
    until(lambda: real.dead_letters(topic))
    (letter,) = real.dead_letters(topic)
    assert (letter.topic, letter.group, letter.reason) == (topic, "g", "no stock")
    assert (letter.original_partition, letter.original_offset) == (0, 0)
    assert (letter.key, letter.value, letter.headers) == (b"k", b"v", {"own": b"1"})
    assert letter.deliveries == 1
    assert "no stock" in repr(letter)


def test_dead_letters_are_redriven_and_purged(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"%d" % n for n in range(5)])
    real.reject(real.poll(topic, group="g"), "no good")
    until(lambda: len(real.dead_letters(topic)) == 5)
    assert len(real.dead_letters(topic, limit=2)) == 2
    letters = {letter.value: letter for letter in real.dead_letters(topic)}
    assert real.redrive(topic, [letters[b"1"]]) == 1
    (again,) = real.poll(topic, group="g", wait=10)
    assert again.value == b"1"
    again.ack()
    assert real.purge_dead_letters(topic, letters[b"0"].offset) == 1
    assert real.redrive(topic) == 3
    found: list[bytes] = []
    while len(found) < 3:
        messages = real.poll(topic, group="g", wait=10)
        found += [message.value for message in messages]
        real.ack(messages)
    assert sorted(found) == [b"2", b"3", b"4"]
    until(lambda: real.dead_letters(topic) == [])


def test_a_place_for_dead_letters_may_be_shared(real: quivermq.Client, topic: str) -> None:
    place, other = f"{topic}.graves", f"{topic}.other"
    real.create_topic(other, dead_letter=place)
    real.alter_topic(topic, dead_letter=place)
    for name in (topic, other):
        real.produce(name, name.encode())
        real.reject(real.poll(name, group="g"), "bad")
    until(lambda: real.dead_letters(topic) and real.dead_letters(other))
    assert [letter.value for letter in real.dead_letters(topic)] == [topic.encode()]
    assert real.purge_dead_letters(topic) == 1
    assert real.dead_letters(topic) == []
    assert [letter.value for letter in real.dead_letters(other)] == [other.encode()]


def test_how_long_failures_wait_can_be_set(real: quivermq.Client, topic: str) -> None:
    assert real.topic(topic).retry == quivermq.Retry()
    chosen = quivermq.Retry(first=60.0, base=0.5, longest=10.0)
    assert real.alter_topic(topic, retry=chosen).retry == chosen
    assert real.alter_topic(topic, max_deliveries=3).retry == chosen
    real.produce(topic, b"v")
    until(lambda: real.topic(topic).retry == chosen)
    real.nack(real.poll(topic, group="g"))
    assert real.group(topic, "g").delayed == 1
    assert real.alter_topic(topic, retry=None).retry == quivermq.Retry()


@pytest.mark.parametrize("wrong", [{"first": -1}, {"base": 0}, {"longest": 1e9}])
def test_retries_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        quivermq.Retry(**wrong)


def test_an_acknowledged_message_never_comes_again(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"v"] * 10)
    first, *others = real.poll(topic, group="g", visibility=0.1)
    first.ack()
    again: list[int] = []
    while len(again) < 9:
        messages = real.poll(topic, group="g", wait=10)
        again += [message.offset for message in messages]
        real.ack(messages)
    assert sorted(again) == list(range(1, 10))
    with pytest.raises(quivermq.LeaseLost, match=f"{topic}/0 offsets 1 to 9") as caught:
        real.ack(others)
    assert caught.value.lost == ((topic, 0, 1, 10),)


def test_closing_gives_leases_back_uncounted(broker: BrokerThread, topic: str) -> None:
    with quivermq.connect(broker.address) as client:
        client.produce_many(topic, [b"v"] * 3)
        assert len(client.poll(topic, group="g")) == 3
    with quivermq.connect(broker.address) as client:
        found = client.poll(topic, group="g")
        assert [message.delivery_count for message in found] == [1, 1, 1]


def test_the_same_on_an_event_loop(broker: BrokerThread, wide: str) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            batch = await client.poll_arrow(wide, group="g")
            assert batch.table.num_rows == 30
            await batch.ack()
            assert [info.done for info in await client.groups(wide)] == [30]
            assert (await client.group(wide, "g")).lag == 0
            assert await client.seek(wide, group="g", to="earliest") == {0: 0, 1: 0, 2: 0}
            await client.delete_group(wide, "g")
            assert await client.delayed(wide) == []
            assert await client.cancel_delayed(wide, 0, 0) == 0
            assert await client.dead_letters(wide) == []
            assert await client.redrive(wide) == 0
            assert await client.purge_dead_letters(wide) == 0

    asyncio.run(work())


def test_a_poll_that_is_cancelled_takes_nothing(broker: BrokerThread, topic: str) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(broker.address) as client:
            await client.poll(topic, group="g", wait=0)
            waiting = asyncio.create_task(client.poll(topic, group="g", wait=30))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await client.produce(topic, b"v")
            (message,) = await client.poll(topic, group="g", wait=10)
            assert message.delivery_count == 1
            await message.ack()

    asyncio.run(work())


def test_a_rate_limit_is_waited_for_not_failed_at(real: quivermq.Client, topic: str) -> None:
    real.alter_topic(topic, rate_limit=quivermq.RateLimit(per_second=20, burst=1))
    real.produce_many(topic, [b"v"] * 6)
    found: list[int] = []
    began = time.monotonic()
    while len(found) < 6:
        messages = real.poll(topic, group="g", wait=10)
        assert messages
        found += [message.offset for message in messages]
        real.ack(messages)
    assert time.monotonic() - began >= 0.2
    assert found == list(range(6))


@pytest.mark.parametrize(
    "act",
    [
        lambda client, topic: client.seek(topic, "g", to="@99999999999999999999999"),
        lambda client, topic: client.cancel_delayed(topic, 0, None),
        lambda client, topic: client.cancel_delayed(topic, None, [1]),
        lambda client, topic: client.redrive(topic, 1.5),
        lambda client, topic: client.commit(topic, "_own", 0, 1),
    ],
)
def test_nonsense_about_groups_is_refused(
    real: quivermq.Client, topic: str, act: Callable[[quivermq.Client, str], object]
) -> None:
    with pytest.raises(InvalidRequest):
        act(real, topic)


def test_what_was_leased_of_a_topic_is_gone_with_it_however_few_partitions_the_next_has(
    real: quivermq.Client, topic: str
) -> None:
    real.alter_topic(topic, partitions=3)
    real.produce(topic, b"v", partition=2)
    (message,) = real.poll(topic, group="g", wait=10)
    real.delete_topic(topic)
    real.create_topic(topic)
    real.produce(topic, b"v")
    with pytest.raises(TopicNotFound, match="created again"):
        message.ack()
