"""Two gateways in front of three brokers; clients know the gateways, and reach nothing else."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import quivermq
from quivermq.addresses import split_address
from quivermq.errors import ConnectionFailed, QuiverError
from quivermq.testing import Cluster
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import Stub
from tests.upgrades.releases import packages, release_of, unpacked_package

PARTITIONS = 6
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def gates() -> Iterator[Cluster]:
    with Cluster(nodes=3, settings={"tick_ms": 50}) as cluster:
        for _ in range(2):
            cluster.add_gateway(http="127.0.0.1:0", grpc="127.0.0.1:0")
        yield cluster


@pytest.fixture
def servers(gates: Cluster) -> str:
    """The addresses of the gateways, which run."""
    gates.start()
    for gateway in gates.gateways:
        if not gateway.is_running:
            gateway.start()
    return ",".join(gateway.address for gateway in gates.gateways)


@pytest.fixture
def client(gates: Cluster, servers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client, in a process that cannot connect to brokers."""
    with quivermq.connect(servers, timeout=PATIENCE_S) as found:
        block_brokers(gates, monkeypatch)
        yield found


def block_brokers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = {split_address(node.address) for node in cluster.nodes.values()}
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if tuple(address[:2]) in closed:
            raise ConnectionRefusedError(f"{address} is a broker, which only gateways reach")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


def test_the_guard_of_these_tests_works(gates: Cluster, client: Any) -> None:
    assert client.cluster().by_gateway
    with pytest.raises(ConnectionFailed, match="only gateways"):
        quivermq.connect(gates.nodes[1].address, timeout=2.0).ping()


def test_topics_are_made_changed_and_deleted(client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=2, replication=3)
    client.alter_topic(topic, partitions=PARTITIONS, max_deliveries=7)
    found = client.topic(topic)
    assert (len(found.partitions), found.max_deliveries) == (PARTITIONS, 7)
    assert len({each.leader for each in found.partitions}) > 1
    client.produce(topic, b"in the last", partition=PARTITIONS - 1)
    assert topic in client.topic_names()
    client.delete_topic(topic)
    # A broker may hear of it a moment later.
    wait_for(lambda: is_refused(client.topic, topic))
    wait_for(lambda: is_refused(client.produce, topic, b"x"))


def is_refused(call: Any, *arguments: Any) -> bool:
    try:
        call(*arguments)
    except quivermq.TopicNotFound:
        return True
    return False


def test_what_is_produced_is_read_by_offset_and_time(client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=PARTITIONS, replication=3)
    receipts = [client.produce(topic, b"%d" % n, key=b"%d" % n) for n in range(20)]
    client.produce_many(topic, [b"%d" % n for n in range(20, 40)], partition=0)
    with client.producer(linger=0.001) as producer:
        futures = [producer.send(topic, b"%d" % n, partition=1) for n in range(40, 2_040)]
        offsets = [future.result().offset for future in futures]
    assert offsets == sorted(offsets)
    read = [m for n in range(PARTITIONS) for m in client.read(topic, partition=n)]
    assert Counter(m.value for m in read) == Counter(b"%d" % n for n in range(2_040))
    placed = {(m.partition, m.offset): m.value for m in read}
    assert placed[receipts[7].partition, receipts[7].offset] == b"7"
    in_order = [m.value for m in client.read(topic, partition=1) if int(m.value) >= 40]
    assert in_order == [b"%d" % n for n in range(40, 2_040)]
    follower = [m.value for m in client.read(topic, partition=1, follower_ok=True)]
    assert follower[-1] == b"2039"
    held = client.offsets(topic).partitions
    assert sum(part.end - part.start for part in held.values()) == 2_040
    assert client.offset_at(topic, 0, 0) == 0


def test_leases_are_settled_in_every_way(client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=3, replication=3, max_deliveries=2)
    for n in range(6):
        client.produce(topic, b"%d" % n, partition=n % 3)
    leased: dict[bytes, Any] = {}
    while len(leased) < 6:
        leased |= {m.value: m for m in client.poll(topic, group="g", wait=10.0)}
    leased[b"0"].ack()
    leased[b"1"].extend(60.0)
    leased[b"2"].nack(delay=0.0)
    leased[b"3"].reject("broken")
    client.release([leased[b"4"]])
    again: dict[bytes, int] = {}
    while set(again) != {b"2", b"4"}:
        for message in client.poll(topic, group="g", wait=10.0):
            again[message.value] = message.delivery_count
            message.ack()
    assert again == {b"2": 2, b"4": 1}
    client.ack([leased[b"1"], leased[b"5"]])
    group = client.group(topic, "g")
    assert (group.done, group.dead, group.in_flight) == (5, 1, 0)
    wait_for(lambda: client.dead_letters(topic))
    assert client.dead_letters(topic)[0].value == b"3"
    assert client.redrive(topic) == 1
    (back,) = client.poll(topic, group="g", wait=20.0)
    assert back.value == b"3"
    back.reject("again")
    wait_for(lambda: client.dead_letters(topic))
    assert client.purge_dead_letters(topic) == 1


def test_a_subscription_is_pushed_to(client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=PARTITIONS, replication=3)
    found: Counter[bytes] = Counter()
    with client.subscribe(topic, group="g", prefetch=10) as messages:
        for n in range(60):
            client.produce(topic, b"%d" % n)
        for message in messages:
            found[message.value] += 1
            message.ack()
            if len(found) == 60:
                break
    assert found == Counter({b"%d" % n: 1 for n in range(60)})
    wait_for(lambda: client.group(topic, "g").done == 60)


def test_a_sticky_group_holds_partitions_and_commits(client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=3, replication=3)
    for n in range(9):
        client.produce(topic, b"%d" % n, partition=n % 3)
    with client.consumer(topic, group="s", mode="sticky") as consumer:
        values = [next(consumer).value for _ in range(9)]
        consumer.commit()
        assert sorted(consumer.assignment) == [0, 1, 2]
    assert sorted(values) == [b"%d" % n for n in range(9)]
    assert client.committed(topic, "s") == {0: 3, 1: 3, 2: 3}


def test_groups_are_moved_and_deleted_and_delayed_messages_cancelled(
    client: Any, topic: str
) -> None:
    client.create_topic(topic, partitions=2, replication=3)
    client.produce(topic, b"a", partition=0)
    client.commit(topic, group="c", partition=0, offset=1)
    assert client.committed(topic, "c") == {0: 1}
    client.ack(client.poll(topic, group="g", wait=10.0))
    client.seek(topic, group="g", to="earliest")
    assert [m.value for m in client.poll(topic, group="g", wait=10.0)] == [b"a"]
    assert {group.name for group in client.groups(topic)} == {"c", "g"}
    client.delete_group(topic, "g")
    assert {group.name for group in client.groups(topic)} == {"c"}
    late = client.produce(topic, b"late", delay=600.0, partition=1)
    assert [each.partition for each in client.delayed(topic)] == [1]
    assert client.cancel_delayed(topic, 1, late.offset) == 1
    assert client.delayed(topic) == []


def test_the_cluster_is_operated(gates: Cluster, client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=1, replication=3)
    info = client.cluster()
    assert [node.id for node in info.nodes] == [1, 2, 3]
    assert {node.address for node in info.nodes} == {n.address for n in gates.nodes.values()}
    assert all(node.alive for node in info.nodes)
    other = next(each for each in (1, 2, 3) if each != client.topic(topic).partitions[0].leader)
    client.transfer(topic, 0, to=other)
    client.produce(topic, b"to the next leader")
    assert client.topic(topic).partitions[0].leader == other
    assert client.rebalance_status() is not None
    assert client.upgrade_cluster(dry_run=True).before == info.level
    assert client.stats()["forwarded_total"] > 0


def test_the_asyncio_client_does_the_same(
    gates: Cluster, servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    block_brokers(gates, monkeypatch)

    async def work() -> list[bytes]:
        async with quivermq.aio.connect(servers, timeout=PATIENCE_S) as client:
            await client.create_topic(topic, partitions=PARTITIONS, replication=3)
            await asyncio.gather(*(client.produce(topic, b"%d" % n) for n in range(50)))
            found: list[bytes] = []
            while len(found) < 50:
                messages = await client.poll(topic, group="g", wait=10.0)
                await client.ack(messages)
                found += [message.value for message in messages]
            return found

    assert sorted(asyncio.run(work())) == sorted(b"%d" % n for n in range(50))


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


OLD_CLIENT = """
import sys, quivermq
servers, topic = sys.argv[1:]
with quivermq.connect(servers, timeout=60.0) as client:
    client.create_topic(topic, partitions=6, replication=3)
    for n in range(30):
        client.produce(topic, b"%d" % n)
    found = []
    while len(found) < 30:
        messages = client.poll(topic, group="g", wait=10.0)
        client.ack(messages)
        found += messages
    with client.subscribe(topic, group="pushed", ack="auto") as pushed:
        for _, message in zip(range(30), pushed):
            found.append(message)
    with client.consumer(topic, group="s", mode="sticky") as consumer:
        found += [next(consumer) for _ in range(30)]
        consumer.commit()
    assert sum(client.committed(topic, "s").values()) == 30
    print(quivermq.__version__, len(found), len({message.value for message in found}))
"""


def test_clients_of_earlier_releases_work_through_gateways(
    servers: str, topic: str, tmp_path: Path
) -> None:
    for package in packages():
        folder = unpacked_package(package, tmp_path / release_of(package))
        name = f"{topic}-{release_of(package)}"
        done = subprocess.run(
            [sys.executable, "-c", OLD_CLIENT, servers, name],
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.stdout.split() == [release_of(package), "90", "30"], done.stderr


# HTTP and gRPC.


def ask(address: str, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(
        f"http://{address}{path}", data=data, method=method, headers=headers
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith(("{", "[")) else text


def test_http_serves_the_whole_cluster(gates: Cluster, client: Any, topic: str) -> None:
    here, there = (gateway.http_address for gateway in gates.gateways)
    path = f"/v1/topics/{topic}"
    ask(here, "POST", "/v1/topics", {"name": topic, "partitions": 3, "replication": 3})
    sent = [{"value": str(n)} for n in range(12)]
    ask(there, "POST", f"{path}/messages", {"messages": sent})
    found: list[str] = []
    while len(found) < 12:
        # What one gateway leased, the other settles.
        polled = ask(here, "POST", f"{path}/groups/g/poll", {"wait": 10, "max_messages": 5})
        found += [message["value"] for message in polled["messages"]]
        if polled["leases"]:
            ask(there, "POST", f"{path}/groups/g/ack", {"leases": polled["leases"]})
    assert sorted(found) == sorted(str(n) for n in range(12))
    assert client.group(topic, "g").done == 12
    read = [
        ask(here, "GET", f"{path}/partitions/{n}/messages?offset=0&limit=20")["messages"]
        for n in range(3)
    ]
    assert sum(map(len, read)) == 12
    url = f"http://{here}{path}/groups/pushed/stream?ack=auto&start=earliest"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as stream:
        lines = (line.decode() for line in stream)
        pushed = [line for _, line in zip(range(12), only_data(lines), strict=False)]
    assert len(pushed) == 12
    assert ask(here, "GET", "/ready")["status"] == "ready"
    assert ask(here, "GET", "/health")["cluster_id"] == client.cluster().cluster_id
    metrics = ask(here, "GET", "/metrics")
    assert 'quiver_ready{node="0"} 1.0' in metrics
    assert "quiver_gateway_open_requests" in metrics
    shown = ask(here, "GET", "/v1/cluster")["nodes"]
    assert {node["address"] for node in shown} == {n.address for n in gates.nodes.values()}


def only_data(lines: Iterator[str]) -> Iterator[str]:
    return (line for line in lines if line.startswith("data:"))


def test_grpc_serves_the_whole_cluster(gates: Cluster, servers: str, topic: str) -> None:
    del servers
    with ExitStack() as channels:
        here, there = (
            Stub(channels.enter_context(grpc.insecure_channel(gateway.grpc_address)))
            for gateway in gates.gateways
        )
        creation = api.CreateTopicRequest(topic=topic, partitions=PARTITIONS, replication=3)
        here.CreateTopic(creation, timeout=PATIENCE_S)
        for partition in range(PARTITIONS):
            message = api.NewMessage(value=b"%d" % partition)
            there.Produce(
                api.ProduceRequest(topic=topic, partition=partition, messages=[message]),
                timeout=PATIENCE_S,
            )
        found: list[bytes] = []
        while len(found) < PARTITIONS:
            polled = here.Poll(
                api.PollRequest(topic=topic, group="g", wait_ms=10_000), timeout=PATIENCE_S
            )
            found += [m.value for each in polled.deliveries for m in each.messages]
            selections = [api.Selection(lease=each.lease) for each in polled.deliveries]
            there.Ack(
                api.AckRequest(topic=topic, group="g", selections=selections), timeout=PATIENCE_S
            )
        assert sorted(found) == [b"%d" % n for n in range(PARTITIONS)]
        fetched = there.Fetch(api.FetchRequest(topic=topic, partition=2), timeout=PATIENCE_S)
        assert [message.value for message in fetched.messages] == [b"2"]
        pushed = push(here, topic, PARTITIONS)
        assert sorted(pushed) == [b"%d" % n for n in range(PARTITIONS)]
        shown = here.Cluster(api.ClusterRequest(), timeout=PATIENCE_S).brokers
        assert {each.address for each in shown} == {n.address for n in gates.nodes.values()}


def push(stub: Stub, topic: str, count: int) -> list[bytes]:
    """What a session is sent."""
    ended = threading.Event()

    def say() -> Iterator[api.Request]:
        yield api.Request(id=1, hello=api.Hello(client="test", group="pushed"))
        wanted = api.Subscribe(topic=topic, credit=100, auto_ack=True)
        yield api.Request(id=2, subscribe=wanted)
        ended.wait()

    found: list[bytes] = []
    try:
        for answer in stub.Session(say(), timeout=PATIENCE_S):
            found += [m.value for each in answer.push.deliveries for m in each.messages]
            if len(found) >= count:
                return found
    finally:
        ended.set()
    return found


# Disturbances.


class Load:
    """Threads that produce, that poll and that are pushed to, by gateways; they note what was
    promised to them."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.stored: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        """How often a consumer was told that it is done. Of a message that comes again after that
        a second consumer is told so; of one whose lease ended, only the last."""
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()
        self._no_more = threading.Event()
        self._all_consumed = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work, n))
            for work in (self._produce, self._consume)
            for n in range(2)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._no_more.set()
        self._threads[0].join(PATIENCE_S)
        self._threads[1].join(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while not self.failures and set(self.acked) < self.stored and time.monotonic() < deadline:
            time.sleep(0.05)
        self._all_consumed.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_for(self, count: int) -> None:
        """So many more are stored, and consumed."""
        stored, acked = len(self.stored) + count, len(self.acked) + count
        wait_for(lambda: self.failures or len(self.stored) >= stored)
        wait_for(lambda: self.failures or len(self.acked) >= acked)

    def _run(self, work: Any, number: int) -> None:
        try:
            with quivermq.connect(self.servers, timeout=PATIENCE_S) as client:
                work(client, number)
        except BaseException as error:
            self.failures.append(error)

    def _produce(self, client: Any, number: int) -> None:
        count = 0
        while not self._no_more.is_set():
            value = b"%d/%d" % (number, count)
            client.produce(self.topic, value)
            self.stored.add(value)
            count += 1

    def _consume(self, client: Any, number: int) -> None:
        if number:
            with client.subscribe(self.topic, group="g", prefetch=5, visibility=5.0) as pushed:
                ending = threading.Thread(
                    target=lambda: (self._all_consumed.wait(), pushed.close())
                )
                ending.start()
                for message in pushed:
                    self._settle(message)
                ending.join(PATIENCE_S)
        while not self._all_consumed.is_set():
            for message in client.poll(self.topic, group="g", wait=0.5, visibility=3.0):
                self._settle(message)

    def _settle(self, message: Any) -> None:
        try:
            message.ack()
        except QuiverError as error:
            # A lease that ended meanwhile: the message comes again.
            assert error.code == "LeaseLost"
        else:
            with self._lock:
                self.acked[message.value] += 1

    def check(self) -> None:
        assert not self.failures, self.failures
        assert self.stored
        assert set(self.acked) >= self.stored
        assert [value for value, times in self.acked.items() if times > 1] == []


def test_a_gateway_that_is_killed_loses_nothing(gates: Cluster, client: Any, topic: str) -> None:
    client.create_topic(topic, partitions=PARTITIONS, replication=3)
    servers = ",".join(gateway.address for gateway in gates.gateways)
    with Load(servers, topic) as load:
        for gateway in gates.gateways:
            load.wait_for(10)
            gateway.kill()
            load.wait_for(10)
            gateway.start()
        load.wait_for(10)
    load.check()


def test_brokers_behind_a_gateway_may_die_and_come_back(
    gates: Cluster, client: Any, topic: str
) -> None:
    client.create_topic(topic, partitions=PARTITIONS, replication=3)
    servers = ",".join(gateway.address for gateway in gates.gateways)
    with Load(servers, topic) as load:
        load.wait_for(20)
        victim = gates.nodes[client.topic(topic).partitions[0].leader]
        victim.kill()
        load.wait_for(20)
        victim.start()
        load.wait_for(20)
    load.check()


def test_a_gateway_that_is_stopped_costs_its_clients_nothing(
    gates: Cluster, client: Any, topic: str
) -> None:
    client.create_topic(topic, partitions=1, replication=3)
    first, second = gates.gateways
    outcome: list[object] = []

    def produce() -> None:
        with quivermq.connect(f"{first.address},{second.address}", timeout=PATIENCE_S) as own:
            outcome.extend(own.produce(topic, b"%d" % n).offset for n in range(200))

    producing = threading.Thread(target=produce)
    producing.start()
    wait_for(lambda: sum(p.end - p.start for p in client.offsets(topic).partitions.values()) > 10)
    first.stop()
    producing.join(PATIENCE_S)
    assert outcome == list(range(200))
    first.start()


def test_a_broker_is_added_and_removed(
    gates: Cluster, client: Any, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=3, replication=3)
    fourth = gates.add_node(start=False)
    # A cluster of its own, which no client here reaches.
    del fourth.settings["join"]
    fourth.start()
    block_brokers(gates, monkeypatch)
    info = client.add_broker(fourth.address)
    assert [node.id for node in info.nodes if node.alive] == [1, 2, 3, 4]
    client.produce(topic, b"x")
    client.remove_broker(4)
    wait_for(lambda: [node.id for node in client.cluster().nodes] == [1, 2, 3])
    gates.drop_node(4)
