"""A thousand consumers that come and go within seconds (F32)."""

import asyncio
import threading
from collections import Counter
from itertools import count

import quivermq
import quivermq.aio
from quivermq.testing import Cluster
from quivermq.testing.trials.consumer_trial import GROUP
from quivermq.wire import proto

CONSUMERS, AT_ONCE = 1_000, 50
Taken = tuple[int, int]


async def come_and_go(servers: str, topic: str, *, acks: bool) -> list[Taken]:
    """One consumer: what it acknowledged before it left, which may be nothing of what it took."""
    async with quivermq.aio.connect(servers, timeout=30.0) as client:
        found = await client.poll(topic, group=GROUP, max_messages=2, wait=0.0, visibility=600.0)
        if not acks:
            return []
        await client.ack(found)
        return [(message.partition, message.offset) for message in found]


async def crowd(servers: str, topic: str) -> list[Taken]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> list[Taken]:
        async with room:
            return await come_and_go(servers, topic, acks=number % 2 == 0)

    taken = await asyncio.gather(*map(one, range(CONSUMERS)))
    return [each for found in taken for each in found]


def test_a_thousand_shared_consumers_come_and_go_and_leave_nothing_behind(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic, partitions=3)
        for partition in range(3):
            client.produce_many(topic, [b"job"] * 1_000, partition=partition)
        acked = asyncio.run(crowd(cluster.servers, topic))
        assert len(acked) == len(set(acked)) == CONSUMERS
        # Who left holding something gave it back: nothing waits for its visibility, or failed.
        left = Counter(acked)
        while messages := client.poll(topic, group=GROUP, max_messages=1_000, wait=0.0):
            assert {message.delivery_count for message in messages} == {1}
            client.ack(messages)
            left.update((message.partition, message.offset) for message in messages)
        assert left == dict.fromkeys(((p, n) for p in range(3) for n in range(1_000)), 1)
        info = client.group(topic, GROUP)
        assert (info.done, info.in_flight, info.redelivered, info.members) == (3_000, 0, 0, [])


class Steady(threading.Thread):
    """A sticky consumer that stays, and notes what it is given."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._cluster, self._topic = cluster, topic
        self.seen: list[Taken] = []
        self.assignment: set[int] = set()
        self.over = threading.Event()
        self.broken: BaseException | None = None

    def run(self) -> None:
        try:
            with (
                self._cluster.connect() as client,
                client.consumer(self._topic, group=GROUP, mode="sticky") as consumer,
            ):
                while not self.over.is_set():
                    found = consumer.poll(wait=0.1)
                    self.seen += [(message.partition, message.offset) for message in found]
                    self.assignment = set(consumer.assignment)
                    if found:
                        consumer.commit()
        except BaseException as error:
            self.broken = error


def churn(cluster: Cluster, topic: str, members: list[int], node: int) -> None:
    """Members that join, some at a time, hold whatever they get, and leave."""
    with cluster.direct(node, timeout=30.0) as broker:
        for start in range(0, len(members), AT_ONCE // 2):
            for leaving in (False, True):
                for member in members[start : start + AT_ONCE // 2]:
                    beat = proto.StickyBeat(
                        topic=topic, group=GROUP, member=member, session_ms=10_000, leaving=leaving
                    )
                    request = proto.Request(sticky_beat=beat, timeout_ms=30_000)
                    broker.send(request)
                # The last is not answered before the others.
                broker.take(request.id)


def test_a_thousand_sticky_members_come_and_go_and_the_rest_get_everything(
    cluster: Cluster, topic: str
) -> None:
    with cluster.connect() as client:
        client.create_topic(topic, partitions=4)
        steady = [Steady(cluster, topic) for _ in range(2)]
        for one in steady:
            one.start()
        numbers = count(1)
        threads = [
            threading.Thread(
                target=churn,
                args=(cluster, topic, [next(numbers) for _ in range(CONSUMERS // 4)], 1 + n % 3),
            )
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        sent = 0
        while any(thread.is_alive() for thread in threads):
            for partition in range(4):
                client.produce(topic, b"%d" % sent, partition=partition)
            sent += 1
        wanted = {(partition, offset) for partition in range(4) for offset in range(sent)}
        cluster.wait_until(
            lambda: (
                any(one.broken for one in steady)
                or {each for one in steady for each in one.seen} == wanted
            ),
            "not everything is delivered to those who stayed",
        )
        assert [one.broken for one in steady] == [None, None]
        cluster.wait_until(
            lambda: [len(one.assignment) for one in steady] == [2, 2], "it is not balanced"
        )
        info = client.group(topic, GROUP)
        assert (len(info.members), info.lag) == (2, 0)
        for one in steady:
            one.over.set()
        for one in steady:
            one.join()
        # Each partition in order, whoever had it; a hand-over repeats nothing that was committed.
        seen = Counter(each for one in steady for each in one.seen)
        assert set(seen.values()) == {1}
