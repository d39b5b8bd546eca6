"""Several topics in one poll or subscription, by name and by pattern, of a real broker."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import count

import pytest

import quivermq
import quivermq.aio
from quivermq.client import topic_choice
from quivermq.client.topic_choice import TOPICS_MAX, TopicChoice
from quivermq.errors import InvalidRequest, TopicNotFound
from tests.client.brokers import BrokerThread

_numbers = count()


@pytest.fixture
def prefix() -> str:
    return f"several-{next(_numbers)}"


@pytest.fixture(autouse=True)
def _patterns_are_looked_up_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_choice, "PATTERN_SECONDS", 0.1)


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders.*", ["orders", "orders-eu"]),
        ("orders", ["orders"]),
        ("rders", []),
        (".*", ["letters.dlq", "orders", "orders-eu"]),
    ],
)
def test_a_pattern_matches_whole_names_but_no_dead_letters(pattern: str, found: list[str]) -> None:
    there = ["orders", "orders-eu", "orders.dlq", "_events", "letters.dlq"]
    assert TopicChoice.of(pattern, pattern=True).matching(there) == found


@pytest.mark.parametrize("pattern", ["(", "", 7, ["a", "b"]])
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest, match=r"regular expression"):
        TopicChoice.of(pattern, pattern=True)


@pytest.mark.parametrize("topics", [[], [""], [7], 7, None, b"t", [f"t{n}" for n in range(300)]])
def test_what_are_no_topics_is_refused(topics: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        TopicChoice.of(topics)


def test_a_pattern_that_matches_too_much_is_refused() -> None:
    there = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    with pytest.raises(InvalidRequest, match="share them"):
        TopicChoice.of("t.*", pattern=True).matching(there)
    assert len(TopicChoice.of("t.*", pattern=True).matching(there[1:])) == TOPICS_MAX


def test_a_poll_of_several_topics_takes_from_each_in_turn(
    real: quivermq.Client, prefix: str
) -> None:
    names = [f"{prefix}-a", f"{prefix}-b", f"{prefix}-c"]
    for name in names:
        real.create_topic(name, partitions=2)
    real.produce_many(names[0], [b"x"] * 500)
    real.produce_many(names[1], [b"x"] * 20)
    seen: Counter[str] = Counter()
    for _ in range(9):
        messages = real.poll(names, group="g", max_messages=10, wait=0.0)
        real.ack(messages)
        seen.update(message.topic for message in messages)
    assert seen[names[1]] == 20
    assert seen[names[0]] >= 40


def test_a_poll_waits_for_the_first_of_several_topics(real: quivermq.Client, prefix: str) -> None:
    names = [f"{prefix}-{letter}" for letter in "abc"]
    for name in names:
        real.create_topic(name)
    assert real.poll(names, group="g", wait=0.0) == []
    later = threading.Timer(0.3, lambda: real.produce(names[2], b"late"))
    later.start()
    began = time.monotonic()
    (message,) = real.poll(names, group="g", wait=30.0)
    assert time.monotonic() - began < 20
    assert (message.topic, message.value) == (names[2], b"late")
    message.ack()
    later.join()
    assert real.poll(names, group="g", wait=0.2) == []


def test_a_rate_limit_of_one_topic_does_not_hold_up_another(
    real: quivermq.Client, prefix: str
) -> None:
    slow, fast = f"{prefix}-slow", f"{prefix}-fast"
    real.create_topic(slow, rate_limit=quivermq.RateLimit(per_second=0.01, burst=1))
    real.create_topic(fast)
    real.produce_many(slow, [b"slow"] * 5)
    real.produce(fast, b"fast")
    seen = []
    while len(seen) < 2:
        seen += [each.value for each in real.poll([slow, fast], group="g", wait=10.0)]
    assert sorted(seen) == [b"fast", b"slow"]
    assert real.poll([slow, fast], group="g", wait=0.3) == []


def test_a_topic_that_is_named_must_exist(real: quivermq.Client, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        real.poll([topic, "not-there"], group="g", wait=0.0)
    with pytest.raises(TopicNotFound):
        real.subscribe([topic, "not-there"], group="g")


def test_a_poll_by_pattern_finds_topics_that_come_while_it_waits(
    real: quivermq.Client, prefix: str
) -> None:
    assert real.poll(f"{prefix}-.*", group="g", wait=0.0, pattern=True) == []

    def create() -> None:
        real.create_topic(f"{prefix}-new")
        real.produce(f"{prefix}-new", b"first")

    later = threading.Timer(0.2, create)
    later.start()
    (message,) = real.poll(f"{prefix}-.*", group="g", wait=30.0, pattern=True)
    assert message.topic == f"{prefix}-new"
    message.ack()
    later.join()
    real.delete_topic(f"{prefix}-new")
    assert real.poll(f"{prefix}-.*", group="g", wait=0.3, pattern=True) == []


def test_a_subscription_to_several_topics_starves_none(real: quivermq.Client, prefix: str) -> None:
    busy, quiet = f"{prefix}-busy", f"{prefix}-quiet"
    for name in (busy, quiet):
        real.create_topic(name)
    real.produce_many(busy, [b"x"] * 20_000)
    with real.subscribe([busy, quiet], group="g", prefetch=8) as subscription:
        seen: Counter[str] = Counter()
        produced = False
        for message in subscription:
            subscription.ack([message])
            seen[message.topic] += 1
            if not produced and seen[busy] >= 50:
                produced = True
                real.produce(quiet, b"x")
            if seen[quiet] == 1:
                break
        assert seen[busy] < 20_000
    assert real.group(quiet, "g").done == 1


def test_topics_join_and_leave_a_subscription_by_pattern(
    real: quivermq.Client, prefix: str
) -> None:
    seen: Counter[str] = Counter()
    with real.subscribe(
        f"{prefix}-.*", group="g", pattern=True, handler=lambda m: seen.update([m.topic])
    ) as subscription:
        for letter in "ab":
            real.create_topic(f"{prefix}-{letter}")
            real.produce(f"{prefix}-{letter}", b"x")
        until(lambda: len(seen) == 2)
        real.delete_topic(f"{prefix}-a")
        real.produce(f"{prefix}-b", b"x")
        until(lambda: seen[f"{prefix}-b"] == 2)
        # The same name again is another topic.
        real.create_topic(f"{prefix}-a")
        real.produce(f"{prefix}-a", b"x")
        until(lambda: seen[f"{prefix}-a"] == 2)
        assert not subscription.wait(0.0)


def test_an_asyncio_client_takes_several_topics(
    real: quivermq.Client, prefix: str, broker: BrokerThread
) -> None:
    names = [f"{prefix}-{letter}" for letter in "abc"]
    for name in names:
        real.create_topic(name)

    async def run() -> Counter[str]:
        seen: Counter[str] = Counter()
        async with quivermq.aio.connect(broker.address) as client:
            polling = asyncio.create_task(client.poll(names, group="g", wait=30.0))
            for name in names:
                await client.produce(name, b"x")
            for message in await polling:
                seen[message.topic] += 1
                await message.ack()
            async with client.subscribe(f"{prefix}-.*", group="g", pattern=True) as subscription:
                async for message in subscription:
                    seen[message.topic] += 1
                    await message.ack()
                    if seen.total() == 3:
                        break
        return seen

    assert asyncio.run(run()) == Counter(names)
