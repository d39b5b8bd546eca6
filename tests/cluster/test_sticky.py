"""Sticky groups on real brokers: members come, go, die and stand still; order is kept."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, count

import pytest

import quivermq
from quivermq.testing import Cluster
from tests.cluster.sticky_process import MemberProcess

FAST = {"tick_ms": 50}
PATIENCE_S = 30.0
PARTITIONS = 7
_numbers = count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings=FAST) as started:
        yield started


@pytest.fixture
def client(cluster: Cluster) -> Iterator[quivermq.Client]:
    with cluster.connect() as connected:
        yield connected


@pytest.fixture
def topic(client: quivermq.Client) -> str:
    name = f"orders-{next(_numbers)}"
    client.create_topic(name, partitions=PARTITIONS)
    return name


def wait_until(condition: Callable[[], bool], failure: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, failure
        time.sleep(0.01)


def is_shared_out(*consumers: quivermq.Consumer) -> bool:
    """Every partition with one member, within one of each other."""
    shares = [consumer.assignment for consumer in consumers]
    loads = [len(share) for share in shares]
    return sorted(chain(*shares)) == list(range(PARTITIONS)) and max(loads) - min(loads) <= 1


def settle(*consumers: quivermq.Consumer) -> None:
    wait_until(
        lambda: is_shared_out(*consumers),
        f"not shared out: {[consumer.assignment for consumer in consumers]}",
    )


class Worker:
    """Consumes on a thread, and notes what it works on, in the order in which all workers do."""

    def __init__(
        self, client: quivermq.Client, topic: str, journal: list[tuple[bytes, bytes]]
    ) -> None:
        self.consumer = client.consumer(topic, group="g", session=3.0)
        self._journal = journal
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        self.failure: BaseException | None = None

    def _work(self) -> None:
        try:
            for message in self.consumer:
                self._journal.append((message.key or b"", message.value))
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.consumer.close()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


class Writer:
    """Writes numbered messages of a few keys, until it is stopped."""

    def __init__(self, client: quivermq.Client, topic: str) -> None:
        self.sent: dict[bytes, int] = defaultdict(int)
        self._client, self._topic = client, topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        while not self._stop.wait(0.002):
            keys = [b"key %d" % number for number in range(20)]
            values = [b"%d" % (self.sent[key] + 1) for key in keys]
            self._client.produce_many(self._topic, values, keys)
            for key in keys:
                self.sent[key] += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def numbers_by_key(journal: list[tuple[bytes, bytes]]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = defaultdict(list)
    for key, value in journal:
        found[key].append(int(value))
    return found


def test_partitions_are_shared_out_and_only_those_move_that_must(
    client: quivermq.Client, topic: str
) -> None:
    with client.consumer(topic, group="g") as first:
        assert first.assignment == list(range(PARTITIONS))
        with client.consumer(topic, group="g") as second:
            settle(first, second)
            before = set(first.assignment), set(second.assignment)
            with client.consumer(topic, group="g") as third:
                settle(first, second, third)
                assert set(first.assignment) < before[0]
                assert set(second.assignment) < before[1]
                generation = third.generation
                kept = set(first.assignment), set(second.assignment)
            settle(first, second)
            assert kept[0] <= set(first.assignment)
            assert kept[1] <= set(second.assignment)
            wait_until(lambda: first.generation > generation, "the generation does not grow")
        settle(first)


def test_a_member_that_dies_is_evicted_after_its_session(
    client: quivermq.Client, topic: str
) -> None:
    client.produce_many(topic, [b"%d" % number for number in range(70)], partition=3)
    with client.consumer(topic, group="g", session=1.0) as dying:
        taken = dying.poll(40, wait=PATIENCE_S)
        dying.commit()
        assert dying.poll(5, wait=PATIENCE_S)
        with client.consumer(topic, group="g") as heir:
            dying.abandon()
            settle(heir)
            rest: list[int] = []
            wait_until(
                lambda: rest.extend(m.offset for m in heir.poll(100, 0.1)) or len(rest) >= 30,
                "not everything was read",
            )
            assert rest == list(range(len(taken), 70))


def test_a_member_that_stood_still_is_fenced_and_joins_again(
    cluster: Cluster, client: quivermq.Client, topic: str
) -> None:
    client.produce_many(topic, [b"%d" % number for number in range(1_000)], partition=0)
    with MemberProcess(cluster.servers, topic, "g", 1.5) as zombie:
        first = zombie.ask("poll 10")
        assert zombie.ask("commit") == "done"
        second = zombie.ask("poll 10")
        assert [offset for _, offset, _ in first + second] == list(range(20))
        zombie.pause()
        with client.consumer(topic, group="g") as heir:
            settle(heir)
            offsets: list[int] = []
            wait_until(
                lambda: offsets.extend(m.offset for m in heir.poll(500, 0.1)) or len(offsets) > 980,
                "not everything was read",
            )
            assert offsets == list(range(10, 1_000))
            heir.commit()
            zombie.resume()
            # It has hundreds of messages read ahead, and may hand out none of them.
            assert zombie.ask("poll 10") == []
            assert zombie.ask("commit") == "Fenced"
            assert client.committed(topic, "g")[0] == 1_000
            wait_until(lambda: zombie.ask("assignment") != [], "it does not join again")
            wait_until(
                lambda: (
                    sorted(zombie.ask("assignment") + heir.assignment) == list(range(PARTITIONS))
                ),
                "not shared out",
            )
            client.produce_many(topic, [b"more"] * 5, partition=0)
            more: list[int] = []
            wait_until(
                lambda: (
                    more.extend(
                        [m.offset for m in heir.poll(5, 0.1)]
                        + [offset for _, offset, _ in zombie.ask("poll 5")]
                    )
                    or len(more) >= 5
                ),
                "what came later is not read",
            )
            assert more == list(range(1_000, 1_005))


def test_order_is_kept_and_nothing_done_twice_while_members_come_and_go(
    client: quivermq.Client, topic: str
) -> None:
    journal: list[tuple[bytes, bytes]] = []
    writer = Writer(client, topic)
    workers = [Worker(client, topic, journal)]
    try:
        for _ in range(3):
            workers.append(Worker(client, topic, journal))
            settle(*(worker.consumer for worker in workers))
        for _ in range(3):
            workers.pop(0).stop()
            settle(*(worker.consumer for worker in workers))
            workers.append(Worker(client, topic, journal))
            settle(*(worker.consumer for worker in workers))
    finally:
        writer.stop()
    wait_until(lambda: len(journal) >= sum(writer.sent.values()), "not everything was read")
    for worker in workers:
        worker.stop()
    assert numbers_by_key(journal) == {
        key: list(range(1, sent + 1)) for key, sent in writer.sent.items()
    }
    ends = {each.partition: each.end_offset for each in client.topic(topic).partitions}
    committed = client.committed(topic, "g")
    assert {number: committed.get(number, 0) for number in ends} == ends


def test_a_group_goes_on_where_it_stood_after_all_members_left(
    client: quivermq.Client, topic: str
) -> None:
    client.produce_many(topic, [b"%d" % number for number in range(100)], partition=1)
    with client.consumer(topic, group="g", auto_commit=False) as consumer:
        taken = consumer.poll(30, wait=PATIENCE_S)
        consumer.commit()
        assert consumer.poll(30, wait=PATIENCE_S)
        generation = consumer.generation
    with client.consumer(topic, group="g") as consumer:
        assert consumer.generation > generation
        assert next(consumer).offset == len(taken)


def test_a_group_that_starts_at_the_latest_keeps_that_place(
    client: quivermq.Client, topic: str
) -> None:
    client.produce_many(topic, [b"old"] * 10, partition=2)
    with client.consumer(topic, group="g", start="latest"):
        wait_until(
            lambda: len(client.committed(topic, "g")) == PARTITIONS, "its places are not noted"
        )
    client.produce(topic, b"fresh", partition=2)
    with client.consumer(topic, group="g", start="latest") as consumer:
        assert next(consumer).value == b"fresh"


def test_a_deleted_topic_ends_its_consumers_with_a_clear_word(
    client: quivermq.Client, topic: str
) -> None:
    with client.consumer(topic, group="g") as consumer:
        client.delete_topic(topic)
        with pytest.raises(quivermq.TopicNotFound):
            next(consumer)


def test_a_rebalance_survives_the_leader_of_the_metadata_group() -> None:
    with Cluster(settings=FAST) as cluster, cluster.connect() as client:
        client.create_topic("orders", partitions=PARTITIONS)
        journal: list[tuple[bytes, bytes]] = []
        writer = Writer(client, "orders")
        workers = [Worker(client, "orders", journal) for _ in range(2)]
        try:
            settle(*(worker.consumer for worker in workers))
            workers.append(Worker(client, "orders", journal))
            leader = client.cluster().leader
            cluster.nodes[leader].kill()
            settle(*(worker.consumer for worker in workers))
            cluster.nodes[leader].start()
            workers.pop(0).stop()
            settle(*(worker.consumer for worker in workers))
        finally:
            writer.stop()
        wait_until(
            lambda: all(
                len(set(found)) == writer.sent[key]
                for key, found in numbers_by_key(list(journal)).items()
            ),
            "not everything was read",
        )
        for worker in workers:
            worker.stop()
        for key, numbers in numbers_by_key(journal).items():
            # What was not committed when a leader died may be done again, but nothing is skipped.
            reached = 0
            for number in numbers:
                assert number <= reached + 1, f"{key!r} skipped from {reached} to {number}"
                reached = max(reached, number)
            assert reached == writer.sent[key]
