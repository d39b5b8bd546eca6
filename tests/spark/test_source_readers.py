"""The readers that Spark drives, driven by hand on a real broker: what they plan, read, refuse."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import quivermq
from quivermq.errors import InvalidRequest, OffsetOutOfRange, TopicNotFound
from quivermq.spark.source.batch_reader import TopicReader
from quivermq.spark.source.columns import spark_schema
from quivermq.spark.source.stream_reader import WAIT_SECONDS, TopicStreamReader
from quivermq.spark.source.task_reader import BYTES_MAX, ROWS_MAX
from quivermq.testing import Cluster

ALL = ReadAllAvailable()
LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture(scope="module")
def small() -> Iterator[Cluster]:
    """A broker that drops quickly what retention lets go."""
    settings = {"tick_ms": 50, "segment_bytes": 64 << 10, "retention_interval_ms": 20}
    with Cluster(nodes=1, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def servers(small: Cluster) -> str:
    return small.servers


def batch(servers: str, **options: str) -> TopicReader:
    given = {"servers": servers, **options}
    return TopicReader(given, spark_schema(given))


def stream(servers: str, **options: str) -> TopicStreamReader:
    given = {"servers": servers, "startingOffsets": "earliest", **options}
    return TopicStreamReader(given, spark_schema(given))


def table(reader: Any, partitions: list[Any]) -> Any:
    return pa.Table.from_batches([each for part in partitions for each in reader.read(part)])


def values(reader: Any, partitions: list[Any]) -> list[bytes]:
    """In order; none, if there is nothing to read."""
    if not partitions:
        return []
    return table(reader, partitions).column("value").to_pylist()  # type: ignore[no-any-return]


def spans(partitions: list[Any]) -> list[tuple[int, int, int]]:
    return [(part.partition, part.start, part.stop) for part in partitions]


def overtake(client: quivermq.Client, topic: str, count: int = 40) -> int:
    """Let retention remove what is there; where the topic starts after that."""
    client.alter_topic(topic, retention=quivermq.Retention(max_messages=1))
    before = client.offsets(topic).partitions[0].end
    deadline = time.monotonic() + 20
    while client.offsets(topic).partitions[0].start < before:
        client.produce_many(topic, [b"later" * 1000] * count, partition=0)
        assert time.monotonic() < deadline
    client.alter_topic(topic, retention=None)
    time.sleep(0.2)  # ten rounds of retention: what was begun is done
    return client.offsets(topic).partitions[0].start


# ---- what is read


def test_messages_that_were_stored_one_by_one_are_read_in_one_batch(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    when = pa.array([datetime(2001, 2, 3, tzinfo=UTC), None], pa.timestamp("ms", "UTC"))
    for number in range(60):
        client.produce(topic, b"lone %d" % number)
        client.produce(topic, b"key %d" % number, key=b"k", priority=number % 3)
        client.produce(topic, b"", headers={"h": b"%d" % number})
        client.produce_many(topic, pa.table({"value": [b"own", b"none"], "timestamp": when}))
    reader = batch(servers, subscribe=topic, includeHeaders="true")

    (part,) = reader.partitions()
    (only,) = reader.read(part)

    assert [
        (row["offset"], row["key"], row["value"], row["priority"],
         int(row["timestamp"].timestamp() * 1000), dict_of(row["headers"]))
        for row in only.to_pylist()
    ] == [
        (each.offset, each.key, each.value, each.priority, each.timestamp, dict(each.headers))
        for each in client.read(topic)
    ]  # fmt: skip


def dict_of(headers: list[dict[str, Any]] | None) -> dict[str, bytes]:
    return {each["key"]: each["value"] for each in headers or []}


def test_stored_batches_that_are_too_large_are_cut(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, [b"%d" % number for number in range(73_456)], partition=0)
    sizes = [700_000, 10, 10, 900_000, 10, 800_000] * 3
    client.produce_many(topic, [bytes(size) for size in sizes], partition=1)
    reader = batch(servers, subscribe=topic, columns="value,offset")

    many, large = reader.partitions()
    rows = [each.num_rows for each in reader.read(many)]
    assert sum(rows) == 73_456
    assert max(rows) <= ROWS_MAX
    assert len(rows) < 14
    found = list(reader.read(large))
    assert all(each.nbytes <= BYTES_MAX or each.num_rows == 1 for each in found)
    assert [len(value) for each in found for value in each.column(0).to_pylist()] == sizes


def test_reads_begin_and_end_at_timestamps(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic, partitions=2)
    edges = []
    for number in range(3):
        client.produce_many(topic, [b"%d" % number] * 2, partition=0)
        client.produce_many(topic, [b"%d" % number], partition=1)
        time.sleep(0.01)
        edges.append(int(time.time() * 1000))
        time.sleep(0.01)
    by_time = {"startingTimestamp": str(edges[0]), "endingTimestamp": str(edges[1])}
    assert spans(batch(servers, subscribe=topic, **by_time).partitions()) == [(0, 2, 4), (1, 1, 2)]
    each = {"startingOffsetsByTimestamp": f'{{"{topic}": {{"1": {edges[1]}}}}}'}
    assert spans(batch(servers, subscribe=topic, **each).partitions()) == [(0, 0, 6), (1, 2, 3)]
    never = batch(servers, subscribe=topic, startingTimestamp=str(edges[2] + 3_600_000))
    assert spans(never.partitions()) == []
    iso = datetime.fromtimestamp(edges[1] / 1000, UTC).isoformat()
    assert spans(batch(servers, subscribe=topic, startingTimestamp=iso).partitions()) == [
        (0, 4, 6),
        (1, 2, 3),
    ]


def test_partitions_are_assigned_and_bounds_are_mixed(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic, partitions=3)
    for number in range(3):
        client.produce_many(topic, [b"x"] * 10, partition=number)
    assigned = f'{{"{topic}": [0, 2]}}'
    some = batch(servers, assign=assigned, maxRecordsPerPartition="6")
    assert spans(some.partitions()) == [(0, 0, 5), (0, 5, 10), (2, 0, 5), (2, 5, 10)]
    places = {"startingOffsets": f'{{"{topic}": {{"0": -1, "1": -2, "2": 7}}}}'}
    assert spans(batch(servers, subscribe=topic, **places).partitions()) == [(1, 0, 10), (2, 7, 10)]
    for wrong in (
        {"assign": f'{{"{topic}": [3]}}'},
        {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"3": 0}}}}'},
    ):
        with pytest.raises(InvalidRequest, match=r"partition 3 .* the partitions 0 to 2"):
            batch(servers, **wrong).partitions()
    ending = {"endingOffsets": f'{{"{topic}": {{"0": 99}}}}'}
    with pytest.raises(OffsetOutOfRange, match="offsets 10 to 98 are not there: it ends at 10"):
        batch(servers, subscribe=topic, **ending).partitions()


def test_a_batch_read_asks_every_leader_once(
    client: quivermq.Client, topic: str, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=2)
    client.produce(topic, b"x", partition=1)
    asked = []
    offsets = quivermq.Client.offsets
    monkeypatch.setattr(
        quivermq.Client, "offsets", lambda self, *args: asked.append(args) or offsets(self, *args)
    )
    reader = batch(servers, subscribe=topic)
    assert values(reader, reader.partitions()) == [b"x"]
    assert asked == [(topic,)]


def test_no_read_begins_behind_the_end(client: quivermq.Client, topic: str, servers: str) -> None:
    client.create_topic(topic)
    client.produce(topic, b"x")
    behind = {"subscribe": topic, "startingOffsets": f'{{"{topic}": {{"0": 2}}}}'}
    for plan in (
        lambda: batch(servers, **behind).partitions(),
        lambda: stream(servers, **behind).latestOffset({}, ALL),
    ):
        with pytest.raises(InvalidRequest, match=f"says 2 for {topic}/0, which ends at 1"):
            plan()


def test_a_pattern_never_matches_system_topics(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    for name in (f"_spark.{topic}", topic):
        client.create_topic(name)
        client.produce(name, b"x")
    found = batch(servers, subscribePattern=f".*{topic}").partitions()
    assert [part.topic for part in found] == [topic]
    (named,) = batch(servers, subscribe=f"_spark.{topic}").partitions()
    assert named.topic == f"_spark.{topic}"


# ---- what is lost


def test_what_retention_removed_is_refused_or_left_out(
    client: quivermq.Client, topic: str, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"first" * 1000] * 40)
    strict, lenient = batch(servers, subscribe=topic), batch(servers, subscribe=topic, **LENIENT)
    (planned,) = strict.partitions()
    follower, patient = (
        stream(servers, subscribe=topic),
        stream(servers, subscribe=topic, **LENIENT),
    )
    end = follower.latestOffset({}, ReadMaxRows(1))

    kept = overtake(client, topic)

    told = f"{topic}/0: offsets 0 to 39 are lost: retention removed them .*failOnDataLoss to false"
    with pytest.raises(OffsetOutOfRange, match=told):
        list(strict.read(planned))
    assert list(lenient.read(planned)) == []
    longer = replace(planned, stop=kept + 2)
    assert table(lenient, [longer]).column("offset").to_pylist() == [kept, kept + 1]
    starting = {"startingOffsets": f'{{"{topic}": {{"0": 39}}}}'}
    with pytest.raises(OffsetOutOfRange, match=f"{topic}/0: offsets 39 to {kept - 1} are lost"):
        batch(servers, subscribe=topic, **starting).partitions()
    caplog.set_level(logging.WARNING, "quivermq.spark")
    (left,) = spans(batch(servers, subscribe=topic, **starting, **LENIENT).partitions())
    assert left[1] == kept
    assert f"going on from {kept}" in caplog.text

    after = follower.latestOffset(end, ALL)
    with pytest.raises(OffsetOutOfRange, match=f"offsets 1 to {kept - 1} are lost"):
        follower.partitions(end, after)
    (range_left,) = patient.partitions(end, after)
    assert range_left.start == kept
    assert set(values(patient, [range_left])) == {b"later" * 1000}


def test_a_topic_that_was_created_again_is_never_mixed_with_the_one_before(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"old"] * 10)
    strict, lenient = batch(servers, subscribe=topic), batch(servers, subscribe=topic, **LENIENT)
    (planned,) = strict.partitions()
    follower, patient = (
        stream(servers, subscribe=topic),
        stream(servers, subscribe=topic, **LENIENT),
    )
    end = follower.latestOffset({}, ALL)
    assert patient.latestOffset({}, ALL) == end

    client.delete_topic(topic)
    assert patient.latestOffset(end, ALL) == end
    with pytest.raises(TopicNotFound):
        follower.latestOffset(end, ALL)
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, [b"other"] * 30, partition=0)

    with pytest.raises(TopicNotFound, match=r"deleted and created again.*failOnDataLoss to false"):
        list(strict.read(planned))
    assert list(lenient.read(planned)) == []
    with pytest.raises(TopicNotFound, match="deleted and created again"):
        stream(servers, subscribe=topic).latestOffset(end, ALL)
    with pytest.raises(TopicNotFound, match="deleted and created again"):
        values(follower, follower.partitions({}, end))
    assert [each for part in patient.partitions({}, end) for each in patient.read(part)] == []
    restarted = stream(servers, subscribe=topic)
    with pytest.raises(TopicNotFound, match="deleted and created again"):
        restarted.partitions({}, end)
    fresh = stream(servers, subscribe=topic, **LENIENT)
    after = fresh.latestOffset(end, ALL)
    assert values(fresh, fresh.partitions(end, after)) == [b"other"] * 30
    assert fresh.latestOffset(after, ALL) == after


def test_a_partition_that_ends_before_what_was_read_is_refused_or_waited_for(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"first"] * 10)
    strict, lenient = stream(servers, subscribe=topic), stream(servers, subscribe=topic, **LENIENT)
    end = strict.latestOffset({}, ALL)
    beyond = {topic: {"0": 12, "id": end[topic]["id"]}}  # the cluster has lost two messages since
    with pytest.raises(OffsetOutOfRange, match=f"{topic}/0: offsets 10 to 11 are not there"):
        strict.latestOffset(beyond, ALL)
    assert lenient.latestOffset({}, ALL) == end
    assert lenient.latestOffset(beyond, ALL) == beyond
    client.produce_many(topic, [b"later"] * 3)
    after = stream(servers, subscribe=topic, **LENIENT).latestOffset(beyond, ALL)
    assert spans(lenient.partitions(beyond, after)) == [(0, 12, 13)]


# ---- streams


def test_a_query_that_begins_at_the_latest_finds_its_beginning_again(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"before"] * 10)
    begin = {"subscribe": topic, "startingOffsets": "latest"}
    first = stream(servers, **begin)
    assert first.initialOffset() == {}
    planned = first.latestOffset({}, ALL)
    assert planned[topic]["began"] == {"0": 10}

    client.produce_many(topic, [b"after"] * 5)
    again = stream(servers, **begin)  # the driver died, and planned the same batch again
    assert again.partitions({}, planned) == []
    after = again.latestOffset(planned, ALL)
    assert values(again, again.partitions(planned, after)) == [b"after"] * 5
    assert "began" not in after[topic]


def test_partitions_and_topics_that_are_added_are_read_from_their_first_message(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(f"{topic}.a")
    client.produce(f"{topic}.a", b"0")
    pattern = {"subscribePattern": rf"{topic}\..*"}
    end = stream(servers, **pattern).latestOffset({}, ALL)
    client.alter_topic(f"{topic}.a", partitions=2)
    client.produce(f"{topic}.a", b"1", partition=1)
    client.create_topic(f"{topic}.b")
    client.produce(f"{topic}.b", b"2")

    reader = stream(servers, **pattern, startingOffsets="latest")
    after = reader.latestOffset(end, ALL)
    planned = reader.partitions(end, after)
    assert sorted(values(reader, planned)) == [b"1", b"2"]
    assert spans(stream(servers, **pattern).partitions(end, after)) == spans(planned)
    assert reader.latestOffset(after, ALL) == after


def test_without_anything_to_read_it_waits_at_the_broker_and_not_long(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic, partitions=3)
    reader = stream(servers, subscribe=topic)
    end = reader.latestOffset({}, ALL)
    before, began = client.stats()["requests_total"], time.monotonic()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - began > 2.5 * WAIT_SECONDS
    assert client.stats()["requests_total"] - before <= 3 + 1

    for _ in range(3):
        timer = threading.Timer(0.05, lambda: client.produce(topic, b"x", partition=2))
        timer.start()
        after = reader.latestOffset(end, ALL)
        assert spans(reader.partitions(end, after))
        timer.join()
        end = after


def test_a_query_waits_for_topics_that_match_its_pattern(
    client: quivermq.Client, topic: str, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quivermq.spark.source.stream_reader.REFRESH_SECONDS", 0.4)
    reader = stream(servers, subscribePattern=topic, startingOffsets="latest")
    began = time.monotonic()
    for _ in range(2):
        assert reader.latestOffset({}, ALL) == {}
    assert time.monotonic() - began > 0.8 * WAIT_SECONDS
    client.create_topic(topic)
    client.produce(topic, b"x")
    found: dict[str, Any] = {}
    while not found:
        found = reader.latestOffset(found, ALL)
    assert values(reader, reader.partitions({}, found)) == [b"x"]


def test_what_is_there_when_it_begins_is_all_for_a_query_that_ends(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic, partitions=2)
    client.produce_many(topic, [b"x"] * 10, partition=0)
    client.produce_many(topic, [b"x"] * 90, partition=1)
    reader = stream(servers, subscribe=topic, maxOffsetsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    reader.prepareForTriggerAvailableNow()
    client.produce_many(topic, [b"x"] * 50, partition=0)
    client.alter_topic(topic, partitions=3)

    ends = [{}]
    while not ends[1:] or ends[-1] != ends[-2]:
        ends.append(reader.latestOffset(ends[-1], reader.getDefaultReadLimit()))
    counts = [
        sum(part.rows for part in reader.partitions(start, end)) for start, end in pairwise(ends)
    ]
    assert counts == [40, 40, 20, 0]
    assert reader.reportLatestOffset() == ends[-1]


def test_a_batch_waits_for_min_offsets_or_max_delay(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    options = {"subscribe": topic, "minOffsetsPerTrigger": "10"}
    reader = stream(servers, **options)
    hasty = stream(servers, **options, maxTriggerDelay="1ms")
    end = reader.latestOffset({}, ALL)
    assert hasty.latestOffset({}, ALL) == end
    client.produce_many(topic, [b"x"] * 9)
    assert reader.latestOffset(end, ALL) == end
    assert hasty.latestOffset(end, ALL)[topic]["0"] == 9
    client.produce(topic, b"x")
    assert reader.latestOffset(end, ALL)[topic]["0"] == 10


def test_a_query_that_waits_for_more_rows_waits_at_the_broker(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    client.produce(topic, b"x")
    reader = stream(servers, subscribe=topic, startingOffsets="earliest", minOffsetsPerTrigger="9")
    end = reader.latestOffset({}, ALL)
    client.produce(topic, b"too little")
    reader.latestOffset(end, ALL)
    before, began = client.stats()["requests_total"], time.monotonic()
    for _ in range(3):
        assert reader.latestOffset(end, ALL) == end
    assert time.monotonic() - began > 2.5 * WAIT_SECONDS
    assert client.stats()["requests_total"] - before <= 3 + 1
    client.produce_many(topic, [b"x"] * 8)
    assert reader.latestOffset(end, ALL)[topic]["0"] == 10


def test_a_micro_batch_asks_every_leader_once(
    client: quivermq.Client, topic: str, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=2)
    client.produce(topic, b"x", partition=1)
    asked = []
    offsets = quivermq.Client.offsets
    monkeypatch.setattr(
        quivermq.Client, "offsets", lambda self, *args: asked.append(args) or offsets(self, *args)
    )
    reader = stream(servers, subscribe=topic)
    end = reader.latestOffset({}, ALL)
    assert values(reader, reader.partitions({}, end)) == [b"x"]
    assert asked == [(topic,)]
    # The driver died, and Spark has the batch planned that its checkpoint holds.
    again = stream(servers, subscribe=topic)
    assert values(again, again.partitions({}, end)) == [b"x"]
    assert asked == [(topic,)] * 2
    # Messages that it has not heard of are asked for, and not taken for lost.
    client.produce(topic, b"y", partition=1)
    beyond = stream(servers, subscribe=topic).latestOffset(end, ALL)
    assert values(reader, reader.partitions(end, beyond)) == [b"y"]


def test_messages_that_are_removed_between_plan_and_task_are_reported_by_the_task(
    client: quivermq.Client, topic: str, servers: str
) -> None:
    client.create_topic(topic)
    client.produce_many(topic, [b"early" * 1000] * 40)
    strict, lenient = stream(servers, subscribe=topic), stream(servers, subscribe=topic, **LENIENT)
    end = strict.latestOffset({}, ALL)
    assert lenient.latestOffset({}, ALL) == end
    overtake(client, topic)
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 39 are lost"):
        values(strict, strict.partitions({}, end))
    assert [each for part in lenient.partitions({}, end) for each in lenient.read(part)] == []


def test_looking_for_topics_and_partitions_asks_no_leader(
    client: quivermq.Client, topic: str, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic(topic, partitions=2)
    reader = stream(servers, subscribe=topic, startingOffsets="earliest")
    end = reader.latestOffset({}, ALL)
    monkeypatch.setattr("quivermq.spark.source.stream_reader.REFRESH_SECONDS", 0.0)
    asked = []
    offsets = quivermq.Client.offsets
    monkeypatch.setattr(
        quivermq.Client,
        "offsets",
        lambda self, *args: asked.append(args[1:]) or offsets(self, *args),
    )
    assert reader.latestOffset(end, ALL) == end
    assert asked == [([],)]
    # Partitions that are added are found all the same, with what they hold.
    client.alter_topic(topic, partitions=3)
    client.produce(topic, b"x", partition=2)
    after = reader.latestOffset(end, ALL)
    assert values(reader, reader.partitions(end, after)) == [b"x"]
    # A topic that is gone is a loss.
    client.delete_topic(topic)
    with pytest.raises(quivermq.TopicNotFound):
        reader.latestOffset(after, ALL)
