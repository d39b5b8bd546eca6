"""gRPC on a cluster of real brokers: every one of them answers for all."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from quivermq.testing import Cluster
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import Stub

PARTITIONS = 6
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, settings={"grpc": "127.0.0.1:0"}) as found:
        yield found


@contextmanager
def stubs(cluster: Cluster) -> Iterator[dict[int, Stub]]:
    with ExitStack() as channels:
        yield {
            node.id: Stub(channels.enter_context(grpc.insecure_channel(node.grpc_address)))
            for node in cluster.nodes.values()
        }


def make_topic(stub: Stub, name: str) -> dict[int, int]:
    """A topic whose partitions are led by several brokers; returns who leads which."""
    creation = api.CreateTopicRequest(topic=name, partitions=PARTITIONS, replication=3)
    stub.CreateTopic(creation, timeout=PATIENCE_S)
    (topic,) = stub.ListTopics(api.ListTopicsRequest(topics=[name])).topics
    leaders = {each.partition: each.leader for each in topic.partitions}
    assert len(set(leaders.values())) > 1, leaders
    return leaders


def produce(stub: Stub, topic: str, partition: int, value: bytes) -> None:
    message = api.NewMessage(value=value)
    request = api.ProduceRequest(topic=topic, partition=partition, messages=[message])
    stub.Produce(request, timeout=PATIENCE_S)


def poll(stub: Stub, topic: str, group: str, wait_ms: int = 10_000) -> list[bytes]:
    """The values of one poll, acknowledged."""
    request = api.PollRequest(topic=topic, group=group, wait_ms=wait_ms)
    found = stub.Poll(request, timeout=PATIENCE_S)
    if found.deliveries:
        selections = [api.Selection(lease=delivery.lease) for delivery in found.deliveries]
        ack = api.AckRequest(topic=topic, group=group, selections=selections)
        stub.Ack(ack, timeout=PATIENCE_S)
    return [message.value for delivery in found.deliveries for message in delivery.messages]


def test_every_broker_answers_for_all_leaders(cluster: Cluster) -> None:
    with stubs(cluster) as brokers:
        make_topic(brokers[1], "orders")
        sent = set()
        for node, stub in brokers.items():
            for partition in range(PARTITIONS):
                value = b"%d/%d" % (node, partition)
                produce(stub, "orders", partition, value)
                sent.add(value)
        for node, stub in brokers.items():
            group = f"g{node}"
            found: list[bytes] = []
            while len(found) < len(sent):
                found += poll(stub, "orders", group)
            assert (set(found), len(found)) == (sent, len(sent))
            (described,) = stub.ListGroups(
                api.ListGroupsRequest(topic="orders", group=group)
            ).groups
            assert (described.done, described.in_flight) == (len(sent), 0)
        sought = api.SeekRequest(topic="orders", group="g1", earliest=True)
        assert dict(brokers[2].Seek(sought).offsets) == dict.fromkeys(range(PARTITIONS), 0)


def test_a_waiting_poll_is_woken_by_whichever_leader(cluster: Cluster) -> None:
    with stubs(cluster) as brokers:
        leaders = make_topic(brokers[1], "woken")
        for partition, leader in leaders.items():
            stub = brokers[1 + leader % 3]
            found: list[bytes] = []
            waiting = threading.Thread(
                target=lambda stub=stub, found=found: found.extend(poll(stub, "woken", "g", 20_000))
            )
            waiting.start()
            produce(brokers[leader], "woken", partition, b"%d" % partition)
            waiting.join(PATIENCE_S)
            assert found == [b"%d" % partition]


def test_a_cancelled_poll_holds_nothing_at_another_broker(cluster: Cluster) -> None:
    with stubs(cluster) as brokers:
        leaders = make_topic(brokers[1], "cancelled")
        partition, leader = next(iter(leaders.items()))
        other = brokers[1 + leader % 3]
        for group, wanted in (("all", []), ("one", [partition])):
            request = api.PollRequest(
                topic="cancelled", group=group, wait_ms=60_000, partitions=wanted
            )
            waiting = other.Poll.future(request)
            described = api.ListGroupsRequest(topic="cancelled", group=group)
            while not other.ListGroups(described, timeout=PATIENCE_S).groups:
                time.sleep(0.01)
            waiting.cancel()
        produce(other, "cancelled", partition, b"x")
        for group in ("all", "one"):
            assert poll(brokers[leader], "cancelled", group) == [b"x"]


def test_a_session_goes_on_when_a_leader_is_killed(cluster: Cluster) -> None:
    with stubs(cluster) as brokers:
        leaders = make_topic(brokers[1], "killed")
        victim = max(set(leaders.values()))
        survivor = next(node for node in brokers if node != victim)
        stub = brokers[survivor]
        requests = [
            api.Request(id=1, hello=api.Hello(client="test", group="g")),
            api.Request(id=2, subscribe=api.Subscribe(topic="killed", credit=1_000, auto_ack=True)),
        ]
        ended = threading.Event()

        def say() -> Iterator[api.Request]:
            yield from requests
            ended.wait()

        call = stub.Session(say(), timeout=60.0)
        answers = (each for each in call if each.WhichOneof("body") == "push")
        try:
            produce(stub, "killed", 0, b"before")
            first = next(answers)
            assert first.push.deliveries[0].messages[0].value == b"before"
            cluster.nodes[victim].kill()
            for partition in leaders:
                _produce_again(stub, partition)
            found: set[int] = set()
            while len(found) < PARTITIONS:
                push = next(answers).push
                found |= {delivery.partition for delivery in push.deliveries}
        finally:
            ended.set()
            call.cancel()
            cluster.nodes[victim].start()


def _produce_again(stub: Stub, partition: int) -> None:
    """Until another leader is elected."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            produce(stub, "killed", partition, b"after")
        except grpc.RpcError as error:
            metadata = dict(error.trailing_metadata() or ())
            if metadata.get("quiver-retriable") != "true" or time.monotonic() > deadline:
                raise
        else:
            return
