"""Metrics are what happened, by their names in the documentation."""

import asyncio
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from prometheus_client import REGISTRY, Metric
from prometheus_client.parser import text_string_to_metric_families

from quivermq.batches import Origin, encode_batch
from quivermq.node import Counters
from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.metrics import FOLLOWER, LEADER, Metrics
from quivermq.wire import PROTOCOL, proto
from tests.node.consumer_stage import GROUP, Consumer
from tests.tls.stage import Certificates
from tests.transports.browser import Wire, get
from tests.transports.gateway_stage import gateway_of
from tests.transports.grpc_stage import calling, eventually, refusal
from tests.transports.stage import (
    PATIENT,
    Talker,
    make_topic,
    on_loop,
    serving,
    store,
    until,
    waiting_fetch,
)
from tests.transports.test_grpc_session import talking

ANYWHERE = "127.0.0.1:0"
DOCS = Path(__file__).parents[2] / "docs"


class Scrape:
    """What a scraper makes of one answer."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: object) -> float:
        """Of the one sample that has these labels, maybe among others."""
        (found,) = self.values(name, **labels)
        return found

    def values(self, name: str, **labels: object) -> list[float]:
        wanted = {label: str(value) for label, value in labels.items()}.items()
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and wanted <= sample.labels.items()
        ]


async def scrape(server: Server) -> Scrape:
    page = await get(server, "/metrics")
    assert page.status == 200
    assert page.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(page.text)


async def settled(servers: list[Server]) -> None:
    """Every broker sees all others and all leaders."""
    await until(lambda: all(one.broker.is_ready for one in servers))
    await until(
        lambda: all(
            one.broker.is_alive(other.settings.node_id) for one in servers for other in servers
        )
    )


@on_loop
async def test_traffic_is_counted_by_partition(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, node_id=4) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=2)
        await store(talker, b"a", b"b", b"c")
        await store(talker, b"d", partition=1)
        await store(talker, b"e", b"f", partition=1)
        for number in (50, 51):
            fetch = proto.Fetch(topic="orders", partition=1)
            await talker.ask(proto.Request(id=number, fetch=fetch))
        found = await scrape(server)
        where = {"topic": "orders", "node": 4}
        assert found.value("quiver_messages_produced_total", partition=0, **where) == 3
        assert found.value("quiver_messages_produced_total", partition=1, **where) == 3
        assert found.values("quiver_messages_delivered_total", partition=0, **where) == [0]
        assert found.value("quiver_messages_delivered_total", partition=1, **where) == 6
        frames = [encode_batch([b"d"]), encode_batch([b"e", b"f"])]
        taken = sum(map(len, frames))
        assert found.value("quiver_bytes_in_total", partition=1, **where) == taken
        assert found.value("quiver_bytes_out_total", partition=1, **where) == 2 * taken
        assert found.value("quiver_produce_seconds_count", node=4) == 3
        assert found.value("quiver_produce_seconds_sum", node=4) > 0


@on_loop
async def test_a_batch_that_is_sent_twice_counts_once(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        frame = encode_batch([b"a", b"b"], origin=Origin(producer_id=77, sequence=0))
        produce = proto.Produce(topic="orders")
        for number in (20, 21):
            answer = await talker.ask(proto.Request(id=number, produce=produce), frame)
            assert answer.produced.batches[0].is_repeat == (number == 21)
        found = await scrape(server)
        assert found.value("quiver_messages_produced_total", topic="orders") == 2
        assert found.value("quiver_bytes_in_total", topic="orders") == len(frame)


@on_loop
async def test_a_topic_that_is_gone_is_not_counted_by_name_any_more(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, "gone")
        await make_topic(talker, "kept")
        await store(talker, b"a", b"b", topic="gone")
        await store(talker, b"c", topic="kept")
        await talker.ask(proto.Request(id=9, delete_topic=proto.DeleteTopic(name="gone")))
        await until(lambda: ("gone", 0) not in server.broker.counters.traffic)
        found = await scrape(server)
        assert found.values("quiver_messages_produced_total", topic="gone") == []
        assert found.value("quiver_messages_produced_total", topic="kept") == 1
        # A total never shrinks.
        stats = await talker.ask(proto.Request(id=10, stats=proto.Stats()))
        assert stats.stats_report.values["messages_produced_total"] == 3


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
@on_loop
async def test_syncs_of_the_log_are_timed(tmp_path: Path, fsync: str) -> None:
    async with serving(tmp_path, http=ANYWHERE, fsync=fsync, fsync_interval_ms=10) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        before = (await scrape(server)).value("quiver_fsync_seconds_count")
        for _ in range(3):
            await store(talker, b"x")
        if fsync == "interval":
            syncs = server.broker.counters.fsync_seconds
            await until(lambda: sum(syncs.counts) > before)
        found = await scrape(server)
        after = found.value("quiver_fsync_seconds_count")
        assert found.value("quiver_fsync_seconds_bucket", le="+Inf") == after
        assert {"always": after >= before + 3, "interval": after > before, "never": True}[fsync]
        if fsync == "always":
            assert found.value("quiver_fsync_seconds_sum") > 0


@on_loop
async def test_refusals_and_connections_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, requests_max=1) as server:
        before = (await scrape(server)).value("quiver_connections", transport="tcp")
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        talker.say(waiting_fetch(10))
        for number in (11, 12):
            assert (await talker.ask(waiting_fetch(number))).error.code == "Overloaded"
        found = await scrape(server)
        assert found.value("quiver_overloaded_total") == 2
        assert found.value("quiver_connections", transport="tcp") == before + 1
        assert found.value("quiver_connections", transport="http") == 1
        talker.close()
        await until(lambda: server.broker.counters.connections == before)


@on_loop
async def test_requests_are_counted_by_door_and_refusals_by_code(tmp_path: Path) -> None:
    async with calling(tmp_path, http=ANYWHERE) as (server, stub):
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        before = await scrape(server)
        await store(talker, b"x")
        for number in (11, 12):
            fetch = proto.Fetch(topic="nowhere")
            answer = await talker.ask(proto.Request(id=number, fetch=fetch))
            assert answer.error.code == "TopicNotFound"
        await get(server, "/v1/topics/nowhere")
        await get(server, "/nowhere")
        assert (await refusal(stub.Fetch(api.FetchRequest(topic="nowhere")))).code()
        await stub.Cluster(api.ClusterRequest())
        async with talking(stub) as session:
            assert (await session.ask(credit=api.Credit(subscription=7))).error.code
            found = await scrape(server)

        def grown(name: str, **labels: str) -> float:
            return sum(found.values(name, **labels)) - sum(before.values(name, **labels))

        # The scrape itself is a request of HTTP.
        for door, requests in (("tcp", 3), ("http", 3), ("grpc", 4)):
            assert grown("quiver_requests_total", transport=door) == requests, door
        for door, code, count in (
            ("tcp", "TopicNotFound", 2),
            ("http", "TopicNotFound", 1),
            ("http", "InvalidRequest", 1),
            ("grpc", "TopicNotFound", 1),
            ("grpc", "InvalidRequest", 1),
        ):
            assert grown("quiver_refused_total", transport=door, code=code) == count, (door, code)
        assert found.value("quiver_connections", transport="grpc") == 1
        await until(lambda: not server.broker.counters.doors["grpc"].peers)
        assert (await scrape(server)).value("quiver_connections", transport="grpc") == 0


@on_loop
async def test_refusals_of_connections_are_counted_too(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, users=True) as server:
        talker = await Talker.by_socket(server, hello=False)
        hello = proto.Hello(protocol=PROTOCOL, client="talker", token="qv_wrong")
        assert (await talker.ask(proto.Request(id=1, hello=hello))).error.code
        wire = await Wire.to(server)
        wire.say(b"NONSENSE\r\n\r\n")
        assert (await wire.answer()).status == 400
        await wire.close()
        found = await scrape(server)
        assert found.value("quiver_refused_total", transport="tcp", code="Unauthenticated") == 1
        assert found.value("quiver_refused_total", transport="http", code="InvalidRequest") == 1


@on_loop
async def test_polls_that_a_rate_limit_holds_back_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        consumer = Consumer(server)
        await consumer.make_topic(rate_per_second=0.01, rate_burst=1)
        await consumer.store(b"a", b"b")
        assert len(await consumer.poll(1)) == 1
        assert (await scrape(server)).values("quiver_polls_throttled_total") == []
        assert await consumer.poll(1) == []
        assert (await scrape(server)).value("quiver_polls_throttled_total", topic="orders") >= 1
        await consumer.ask(delete_topic=proto.DeleteTopic(name="orders"))
        await until(lambda: not server.broker.counters.throttled)
        await consumer.close()


@on_loop
async def test_disk_and_certificate_are_told(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    async with serving(tmp_path / "data", **certificates.settings()) as server:
        metrics = Metrics(server.broker, lambda: 0)
        found = Scrape((await metrics.text()).decode())
        space = shutil.disk_usage(tmp_path)
        assert found.value("quiver_disk_size_bytes") == space.total
        assert 0 < found.value("quiver_disk_free_bytes") <= space.total
        certificate = x509.load_pem_x509_certificate(
            (certificates.folder / "server.pem").read_bytes()
        )
        expiry = found.value("quiver_certificate_expiry_timestamp_seconds")
        assert expiry == certificate.not_valid_after_utc.timestamp()


@on_loop
async def test_a_disk_that_does_not_answer_holds_up_no_scrape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    asked = []

    def hang(_: str) -> None:
        asked.append(1)
        answers.wait(30)
        raise OSError("gone")

    monkeypatch.setattr(shutil, "disk_usage", hang)
    async with serving(tmp_path) as server:
        metrics = Metrics(server.broker, lambda: 0)
        for _ in range(3):
            found = Scrape((await metrics.text()).decode())
            assert found.value("quiver_ready") == 1
            assert found.values("quiver_disk_free_bytes") == []
        # No thread more for each scrape.
        assert len(asked) == 1
        answers.set()
        await until(lambda: len(asyncio.all_tasks() & {metrics._space._asking}) == 0)


@on_loop
async def test_consensus_is_shown_by_every_replica(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "1", http=ANYWHERE, **PATIENT) as first,
        serving(tmp_path / "2", http=ANYWHERE, node_id=2, join=first.listen, **PATIENT) as second,
        serving(tmp_path / "3", http=ANYWHERE, node_id=3, join=first.listen, **PATIENT) as third,
    ):
        servers = [first, second, third]
        await settled(servers)
        talker = await Talker.by_socket(first)
        creation = proto.CreateTopic(name="orders", partitions=1, replication=3)
        await talker.ask(proto.Request(id=5, create_topic=creation))
        await until(lambda: all(len(one.broker.scheduler.replicas) == 2 for one in servers))
        await settled(servers)
        await store(talker, b"x", b"y")
        replicas = [
            group.replica
            for server in servers
            for group in server.broker.scheduler.replicas.values()
            if group.name.topic == "orders"
        ]
        # A majority has it; the third may hear of it a little later.
        await until(lambda: len({(one.term, one.commit_index) for one in replicas}) == 1)
        found = [await scrape(server) for server in servers]
        states = [one.value("quiver_raft_state", topic="orders") for one in found]
        assert sorted(states) == [FOLLOWER, FOLLOWER, LEADER]
        leader = found[states.index(LEADER)]
        node = states.index(LEADER) + 1
        followers = {1, 2, 3} - {node}
        lags = [
            leader.value("quiver_raft_replication_lag", topic="orders", member=other, node=node)
            for other in followers
        ]
        assert all(0 <= lag <= 3 for lag in lags)
        assert leader.values("quiver_raft_replication_lag", topic="orders", member=node) == []
        terms = {one.value("quiver_raft_term", topic="orders") for one in found}
        assert len(terms) == 1
        for one, number in zip(found, (1, 2, 3), strict=True):
            assert one.value("quiver_raft_commit_index", topic="orders") > 0
            assert one.value("quiver_log_size_bytes", topic="orders") > 0
            assert one.value("quiver_partitions") == 2
            assert one.value("quiver_ready") == 1
            peers = {1, 2, 3} - {number}
            assert [one.value("quiver_peer_alive", peer=peer) for peer in peers] == [1, 1]
        assert sum(one.value("quiver_partitions_led") for one in found) == 2
        assert [one.value("quiver_partitions_under_replicated") for one in found] == [0, 0, 0]
        talker.close()
        await third.stop()
        await until(lambda: not first.broker.is_alive(3))
        alone = await scrape(first)
        assert alone.value("quiver_peer_alive", peer=3) == 0

        async def lacks_a_replica() -> bool:
            left = [await scrape(server) for server in (first, second)]
            led, lacking = (
                [one.value(f"quiver_partitions_{what}") for one in left]
                for what in ("led", "under_replicated")
            )
            return sum(led) == 2 and led == lacking

        # What the third led is led by another in a moment, which has to notice too.
        assert await eventually(lacks_a_replica)


@on_loop
async def test_the_loop_goes_on_while_metrics_are_made(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await make_topic(await Talker.in_memory(server), partitions=20)
        metrics = Metrics(server.broker, lambda: 0)
        turns = 0
        # Before the first family it waits for the disk, where the loop goes on anyway.
        turns_at: list[int] = []
        collect = metrics.registry.collect

        def counted() -> Iterator[Metric]:
            for family in collect():
                turns_at.append(turns)
                yield family

        metrics.registry.collect = counted  # type: ignore[method-assign]

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        text, other = await asyncio.gather(metrics.text(), metrics.text())
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        families = len(Scrape(text.decode()).families)
        assert families > 20
        # Between any two families, also of two scrapes at once.
        assert len(set(turns_at)) >= 2 * families
        assert len(other) > 0


@on_loop
async def test_a_family_that_is_made_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no such topic.
    monkeypatch.setattr(Counters, "keep_only", lambda *_: None)
    async with serving(tmp_path) as server:
        traffic = server.broker.counters.traffic
        for number in range(1_001):
            traffic["many", number].messages_in = number
        text = (await Metrics(server.broker, lambda: 0).text()).decode()
        assert text.count("# TYPE quiver_messages_produced_total counter\n") == 1
        assert text.count("# HELP quiver_messages_produced_total ") == 1
        found = Scrape(text)
        for number in (0, 249, 250, 251, 1_000):
            where = {"topic": "many", "partition": number}
            assert found.value("quiver_messages_produced_total", **where) == number
        assert len(found.values("quiver_messages_produced_total")) == 1_001


@on_loop
async def test_groups_are_shown_as_they_stand(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        consumer = Consumer(server)
        await consumer.make_topic(max_deliveries=2)
        await consumer.store(b"a", b"b", b"c", b"d", b"e")
        acked, failed, rejected = await consumer.poll(3)
        await consumer.ack([acked])
        await consumer.nack([failed], delay_ms=0)
        await consumer.reject([rejected], "why")
        await consumer.poll(2)
        await until(lambda: server.broker.counters.shares["orders", 0, GROUP].dead_lettered)
        found = await scrape(server)
        group = {"topic": "orders", "partition": 0, "group": GROUP}
        for name, value in (
            ("quiver_messages_acked_total", 1),
            ("quiver_messages_redelivered_total", 1),
            ("quiver_messages_dead_lettered_total", 1),
            ("quiver_group_lag", 3),
            ("quiver_group_in_flight", 2),
        ):
            assert found.value(name, **group) == value, name
        assert found.value("quiver_messages_delivered_total", topic="orders") == 5
        # Watching does not wake: a partition with a group may sleep.
        (dispatcher,) = [
            c for c in server.broker.consumers.dispatchers if c.hosted.name.topic == "orders"
        ]
        await until(lambda: dispatcher.hosted.replica.is_asleep)
        await scrape(server)
        assert dispatcher.hosted.replica.is_asleep
        await consumer.close()


@on_loop
async def test_brokers_of_one_process_do_not_mix(tmp_path: Path) -> None:
    before = set(names_in(REGISTRY.collect()))
    async with (
        serving(tmp_path / "1", http=ANYWHERE, node_id=1) as one,
        serving(tmp_path / "2", http=ANYWHERE, node_id=2) as two,
    ):
        for server, node in ((one, "1"), (two, "2")):
            nodes = {
                sample.labels["node"]
                for sample in (await scrape(server)).samples
                if sample.name.startswith("quiver_")
            }
            assert nodes == {node}
    assert set(names_in(REGISTRY.collect())) == before


def names_in(families: object) -> Iterator[str]:
    yield from (family.name for family in families)  # type: ignore[attr-defined]


@on_loop
async def test_the_documentation_lists_every_metric(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        await store_something(server)
        text = (await get(server, "/metrics")).text
        async with gateway_of(server.listen, http=ANYWHERE) as gate:
            text += (await get(gate, "/metrics")).text
    shown = set(re.findall(r"^# TYPE (quiver_\w+) ", text, re.MULTILINE))
    page = (DOCS / "metrics.md").read_text()
    listed = set(re.findall(r"^\| `(quiver_\w+)` \|", page, re.MULTILINE))
    assert shown == listed


async def store_something(server: Server) -> None:
    talker = await Talker.in_memory(server)
    await make_topic(talker)
    await store(talker, b"x")
