"""Finding the leader: hints, maps, brokers that cannot be reached, clusters without a leader."""

import socket
import time

import pytest

import quivermq
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    NotEnoughReplicas,
    NotLeader,
    Overloaded,
    Timeout,
    TopicNotFound,
)
from quivermq.wire import proto
from tests.client.brokers import BrokerThread
from tests.client.stand_in import HANG, StandIn


def nowhere() -> str:
    """An address with a closed port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_a_hint_leads_to_the_leader() -> None:
    with StandIn(node=1) as first, StandIn(node=2) as second:
        first.addresses, first.logs = {2: second.address}, second.logs
        with quivermq.connect(first.address) as client:
            client.produce("t", b"one")
            first.leaders = {0: 2}
            client.produce("t", b"two")
            client.produce("t", b"three")
        assert second.log().values == [b"one", b"two", b"three"]
        # The hint is kept: the third message went there directly.
        assert (first.count("produce"), second.count("produce")) == (2, 2)


def test_two_brokers_that_point_at_each_other_do_not_make_a_hot_loop() -> None:
    with StandIn(node=1) as first, StandIn(node=2) as second:
        for one, other, node in ((first, second, 2), (second, first, 1)):
            one.addresses = {node: other.address}
            one.leaders = {0: node}
        with (
            quivermq.connect(first.address, timeout=1.0) as client,
            pytest.raises(NotEnoughReplicas, match="quiver cluster status"),
        ):
            client.produce("t", b"v")
        assert first.count("produce") + second.count("produce") < 100


def test_a_leader_that_cannot_be_reached_from_here_is_reached_through_another() -> None:
    with StandIn(node=1) as first:
        first.addresses = {2: nowhere()}
        first.leaders = {0: 2}
        with quivermq.connect(first.address) as client:
            began = time.monotonic()
            # Asked not directly, it takes what it does not lead, as if it passed it on.
            assert client.produce("t", b"v").offset == 0
            assert client.produce("t", b"w").offset == 1
            assert time.monotonic() - began < 10
        assert first.log().values == [b"v", b"w"]


def test_a_leader_that_is_cut_off_from_its_replicas_is_left_for_another_broker() -> None:
    with StandIn(node=1) as minority, StandIn(node=2) as majority:
        minority.addresses, minority.logs = {2: majority.address}, majority.logs
        with quivermq.connect(minority.address, timeout=5) as client:
            client.produce("t", b"one")
            minority.script("produce", *[NotEnoughReplicas("cut off")] * 1000)
            began = time.monotonic()
            client.produce("t", b"two")
            assert time.monotonic() - began < 10
        assert majority.log().values == [b"one", b"two"]
        assert minority.count("produce") < 10


def test_a_dead_server_in_the_list_is_passed_over(stand_in: StandIn) -> None:
    for _ in range(5):
        with quivermq.connect([nowhere(), stand_in.address, nowhere()], timeout=5) as client:
            client.produce("t", b"v")
    assert len(stand_in.log().values) == 5


def test_when_no_server_answers_the_error_names_them_all() -> None:
    servers = [nowhere(), nowhere()]
    began = time.monotonic()
    with pytest.raises(ConnectionFailed) as raised:
        quivermq.connect(servers, timeout=1.0)
    assert time.monotonic() - began < 10
    assert all(server in str(raised.value) for server in servers)


def test_a_leader_that_hangs_has_a_successor_within_the_timeout() -> None:
    with StandIn(node=1) as first, StandIn(node=2) as second:
        first.addresses, second.addresses = {2: second.address}, {1: first.address}
        second.logs, second.leaders = first.logs, {0: 1}
        with quivermq.connect([first.address, second.address], timeout=3.0) as client:
            client.produce("t", b"one")
            # Stopped in its tracks: it answers nothing at all.
            for kind in ("produce", "map", "new_producer"):
                first.script(kind, *[HANG] * 50)
            second.leaders = {0: 2}
            client.produce("t", b"two")
        assert second.log().values == [b"one", b"two"]
        assert second.count("produce") == 1


def test_a_retriable_refusal_is_retried(stand_in: StandIn, client: quivermq.Client) -> None:
    stand_in.script("produce", Overloaded("busy"), NotLeader("no leader"), Overloaded("busy"))
    client.produce("t", b"v")
    assert stand_in.log().values == [b"v"]


def test_what_never_passes_is_raised_in_the_end(stand_in: StandIn) -> None:
    stand_in.script("produce", *[Overloaded("busy")] * 1000)
    with (
        quivermq.connect(stand_in.address, timeout=1.0) as client,
        pytest.raises(Overloaded, match="busy"),
    ):
        client.produce("t", b"v")


def test_an_unknown_topic_is_asked_for_once_and_not_retried(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with pytest.raises(TopicNotFound, match="create it first"):
        client.produce("other", b"v")
    assert stand_in.count("map") == 1


def test_a_broker_that_lags_behind_does_not_decide_that_a_topic_is_missing() -> None:
    with StandIn(node=1, topics={}) as lagging, StandIn(node=2) as leader:
        lagging.addresses = {2: leader.address}

        def stale(request: proto.Request) -> proto.Response:
            found = proto.ClusterMap(node=1, leader=2, version=1)
            found.brokers.add(id=2, address=leader.address)
            return proto.Response(map=found)

        lagging.script("map", stale)
        with quivermq.connect(lagging.address) as client:
            client.produce("t", b"v")
        assert leader.log().values == [b"v"]


def test_a_broker_that_has_just_started_does_not_decide_that_a_topic_is_missing(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    empty = proto.Response(map=proto.ClusterMap(node=1))
    stand_in.script("map", lambda _: empty, lambda _: empty)
    client.produce("t", b"v")
    assert stand_in.count("map") == 3


def test_a_broker_outside_of_the_cluster_is_not_believed_about_its_members() -> None:
    with StandIn() as outsider:  # of release 0.2.0, which does not know `latest`
        outsider.script("map", *[lambda _: proto.Response(map=proto.ClusterMap(node=1))] * 9)
        with quivermq.connect(outsider.address, timeout=1.0) as client:
            assert not client.cluster().nodes
            with pytest.raises(NotEnoughReplicas):
                client.cluster(latest=True)


def test_a_leader_that_does_not_know_the_topic_yet_is_asked_again(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", TopicNotFound("never heard of it"))
    assert client.produce("t", b"v").offset == 0
    stand_in.script("commit_offset", TopicNotFound("never heard of it"))
    client.commit("t", group="g", partition=0, offset=1)
    assert stand_in.offsets["t", "g", 0] == 1


def test_a_topic_that_was_created_again_gets_what_is_sent_to_it(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"old")
    stand_in.topic_id = b"another id!!"
    stand_in.logs.clear()
    client.produce("t", b"new")
    client.produce("t", b"newer")
    assert stand_in.log().values == [b"new", b"newer"]


def test_a_deleted_topic_is_not_found(stand_in: StandIn, client: quivermq.Client) -> None:
    client.produce("t", b"old")
    stand_in.topics = {}
    with pytest.raises(TopicNotFound):
        client.produce("t", b"v")


def test_a_delete_whose_answer_was_lost_is_no_error(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("delete_topic", Timeout("who knows"), TopicNotFound("there is none"))
    client.delete_topic("t")
    stand_in.script("delete_topic", TopicNotFound("there is none"))
    with pytest.raises(TopicNotFound):
        client.delete_topic("t")


def test_a_partition_that_was_added_meanwhile_is_found(
    broker: BrokerThread, real: quivermq.Client, topic: str
) -> None:
    def add_partition() -> int:
        with quivermq.connect(broker.address) as other:
            before = len(other.topic(topic).partitions)
            other.alter_topic(topic, partitions=before + 1)
            return before

    with real.producer() as producer:
        producer.send(topic, b"first").result()
        last = add_partition()
        assert real.produce(topic, b"alone", partition=last).offset == 0
        last = add_partition()
        (receipt,) = real.produce_many(topic, [b"many"], partition=last)
        assert (receipt.partition, receipt.first_offset) == (last, 0)
        last = add_partition()
        assert producer.send(topic, b"batched", partition=last).result().partition == last
        last = add_partition()
        with quivermq.connect(broker.address) as other:
            other.produce(topic, b"known to exist", partition=last)
        reader = real.read_range(topic, last, 0, 1)
        assert [message.value for message in reader] == [b"known to exist"]
        last = add_partition()
        assert real.offsets(topic, [last]).partitions[last].end == 0
        last = add_partition()
        assert list(real.read(topic, last)) == []


def test_a_broker_that_lags_does_not_hide_a_partition() -> None:
    with StandIn(node=1) as lagging, StandIn(node=2) as leader:
        lagging.metadata_leader = 2
        lagging.addresses = {2: leader.address}
        leader.topics = {"t": 2}
        with quivermq.connect(lagging.address) as client:
            client.produce("t", b"one")
            assert client.produce("t", b"two", partition=1).partition == 1
        assert leader.log(partition=1).values == [b"two"]


def test_a_partition_that_does_not_exist_is_refused(
    real: quivermq.Client, topic: str, client: quivermq.Client
) -> None:
    real.produce(topic, b"v")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="has the partitions 0 to 0: 7"):
            real.produce(topic, b"v", partition=7)
    with real.producer() as producer, pytest.raises(InvalidRequest, match="0 to 0: 7"):
        producer.send(topic, b"v", partition=7)
    with pytest.raises(InvalidRequest, match="0 to 0: True"):
        client.produce("t", b"v", partition=True)
