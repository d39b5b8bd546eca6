"""Decisions and publishing on a real broker, without Spark: drivers that race, die, come back."""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import quivermq
from quivermq.errors import Fenced, InvalidRequest, OutOfSequence, QuiverError, Timeout
from quivermq.queue import producers
from quivermq.spark.sink import decisions
from quivermq.spark.sink.columns import MessageColumns
from quivermq.spark.sink.decisions import REMEMBERED, Decision, DecisionLog
from quivermq.spark.sink.destinations import Dispatcher
from quivermq.spark.sink.publishing import BatchCommitter, Publisher, publish
from quivermq.spark.sink.staged_runs import Run, TargetPartition, skip_messages, split_runs
from quivermq.spark.sink.staging import StagingWriter, decisions_topic, partitions_of, staging_topic
from tests.client.brokers import BrokerThread

Staged = dict[TargetPartition, tuple[Run, ...]]

_SCHEMA = StructType([StructField("value", StringType()), StructField("key", StringType())])
_SIZE = 60_000
"""Of a value: so that few rows make many batches."""


@pytest.fixture
def query(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[5:100]}-{time.time_ns():x}"


@pytest.fixture
def stage(client: quivermq.Client, query: str, topic: str) -> Callable[..., Staged]:
    """Stages rows with these names, as one task would."""
    client.create_topic(topic, partitions=3)

    def store(*names: int, task: int = 0) -> Staged:
        columns = MessageColumns.of(_SCHEMA, topic)
        rows = pa.record_batch(
            {
                "value": [f"{name} ".ljust(_SIZE, ".") for name in names],
                "key": [f"{name % 7}" for name in names],
            }
        )
        dispatcher = Dispatcher(columns, lambda name: partitions_of(client, name))
        return StagingWriter(client, query, task).store([rows], dispatcher)

    return store


def log_of(client: quivermq.Client, query: str) -> DecisionLog:
    log = DecisionLog.open(client, query, create=True)
    assert log is not None
    return log


def published(client: quivermq.Client, topic: str) -> list[int]:
    """The names of all rows, by key in the order in which they are stored."""
    rows = [int(each.value.split()[0]) for place in range(3) for each in client.read(topic, place)]
    return sorted(rows, key=lambda name: name % 7)


def in_order(names: range) -> list[int]:
    return sorted(names, key=lambda name: name % 7)


def batches(staged: Staged) -> int:
    return sum(len(run.counts) for runs in staged.values() for run in runs)


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What the calls returned or raised, all begun at the same moment."""
    gate = threading.Barrier(len(calls))
    results: list[object] = [None] * len(calls)

    def run(number: int) -> None:
        gate.wait()
        try:
            results[number] = calls[number]()
        except QuiverError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_of_drivers_that_decide_at_once_one_holds_and_all_publish_it_once(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str, servers: str
) -> None:
    with quivermq.connect(servers) as other:
        logs = [log_of(client, query), log_of(other, query)]
        clients = [client, other]
        for batch in range(6):
            names = range(batch * 60, batch * 60 + 60)
            offers = [stage(*names), stage(*names[30:], *names[:30], task=1)]
            found = at_once(
                *(
                    lambda log=log, offer=offer, batch=batch: log.decide(batch, offer, None)
                    for log, offer in zip(logs, offers, strict=True)
                )
            )
            one, two = found
            assert isinstance(one, Decision)
            assert isinstance(two, Decision)
            assert (one.offset, one.token, one.staged) == (two.offset, two.token, two.staged)
            assert [one.is_own, two.is_own].count(True) == 1
            results = at_once(
                *(
                    lambda client=each, log=log, batch=batch: publish(client, log, log.of(batch))
                    for each, log in zip(clients, logs, strict=True)
                )
            )
            assert results == [None, None]
    found = published(client, topic)
    assert sorted(found) == list(range(360))


def test_the_next_member_goes_on_where_the_dead_one_stopped(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    done = 0
    for batch, copied in enumerate([0, 1, 2, 5, 1_000_000]):
        names = range(batch * 200, batch * 200 + 200)
        staged = stage(*names)
        assert batches(staged) > 10
        log = log_of(client, query)
        log.decide(batch, staged, None)
        # A driver published some batches of some partitions, and died.
        for target, runs in list(staged.items())[: 1 if copied == 1 else 3]:
            for number, piece in islice(split_runs(runs, 0, copied or 1), 1 if copied else 0):
                client.copy(
                    staging_topic(query),
                    [(run.partition, run.start, run.stop) for run in piece],
                    target.topic,
                    partition=target.partition,
                    producer_id=log.producer_id,
                    epoch=log.of(batch).epoch,  # type: ignore[union-attr]
                    sequence=number,
                )
        successor = log_of(client, query)
        assert [each.batch for each in successor.unpublished()] == [batch]
        decision = successor.of(batch)
        assert decision is not None
        publish(client, successor, decision)
        done += 200
        assert published(client, topic) == in_order(range(done))
        assert log_of(client, query).unpublished() == []
    # All of it is published: once more does nothing.
    again = log_of(client, query)
    for known in range(5):
        decision = again.of(known)
        assert decision is not None
        publish(client, again, decision)
    assert published(client, topic) == in_order(range(done))


def test_a_driver_that_was_asleep_publishes_nothing_of_an_older_batch(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    sleeper = log_of(client, query)
    first = sleeper.decide(0, stage(*range(100)), None)
    kept = dict(first.staged)
    successor = log_of(client, query)
    publish(client, successor, successor.of(0))  # type: ignore[arg-type]
    second = successor.decide(1, stage(*range(100, 200)), None)
    publish(client, successor, second)
    for is_own in (True, False):
        first.is_own = is_own
        with pytest.raises(Fenced, match="another driver"):
            Publisher(client, sleeper.producer_id, first).publish_all(kept)
    # All of it is where it belongs, as the log says.
    publish(client, sleeper, first)
    assert published(client, topic) == in_order(range(200))


def test_a_batch_below_one_that_is_decided_holds_only_if_it_was_decided_first(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    log, sleeper = log_of(client, query), log_of(client, query)
    staged = stage(*range(10))
    log.decide(5, staged, "plan")
    assert log.decide(5, {}, None).plan == "plan"
    with pytest.raises(InvalidRequest, match="batch 3, but batch 5 is decided"):
        sleeper.decide(3, staged, None)
    assert log_of(client, query).of(3) is None


def test_only_the_last_batches_are_read_again(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    log = log_of(client, query)
    count = 3 * REMEMBERED
    for batch in range(count):
        publish(client, log, decided(log, batch, stage))
    assert published(client, topic) == in_order(range(count))
    start = client.committed(decisions_topic(query), "_published")[0]
    assert start >= REMEMBERED
    successor = log_of(client, query)
    assert successor.last_batch == count - 1
    assert successor.unpublished() == []
    assert all(successor.of(batch) for batch in range(count - REMEMBERED, count))
    with pytest.raises(InvalidRequest, match="only the last 16 are remembered"):
        successor.decide(0, {}, None)


def test_decisions_that_are_not_published_are_remembered_however_many(
    client: quivermq.Client, query: str, stage: Callable[..., Staged]
) -> None:
    log = log_of(client, query)
    batches_decided = range(REMEMBERED + 3)
    for batch in batches_decided:
        log.decide(batch, stage(batch), None)
    for each in (log, log_of(client, query)):
        assert [decision.batch for decision in each.unpublished()] == list(batches_decided)


def test_a_decision_that_is_resumed_twice_lacks_what_neither_found(
    client: quivermq.Client, query: str, stage: Callable[..., Staged]
) -> None:
    log = log_of(client, query)
    staged = stage(*range(200))
    target, runs = next(iter(staged.items()))
    first, second = runs[0].counts[:2]
    decision = log.decide(0, staged, None)
    log.resume(decision, {target: first})
    log.resume(decision, {target: second})
    for each in (log, log_of(client, query)):
        found = each.of(0)
        assert found is not None
        assert found.done == {target: first + second}
        assert each.staged_of(found)[target] == skip_messages(runs, first + second)


def decided(log: DecisionLog, batch: int, stage: Callable[..., Staged]) -> Decision:
    """Now and then a driver died after its decision, and its successor's does not hold."""
    decision = log.decide(batch, stage(batch), "plan")
    if batch % 5 == 0:
        assert log.decide(batch, {}, "another").token == decision.token
    return decision


def test_a_list_too_long_for_a_decision_is_staged(
    client: quivermq.Client,
    query: str,
    stage: Callable[..., Staged],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decisions, "INLINE_BYTES_MAX", 10)
    monkeypatch.setattr(decisions, "PIECE_BYTES", 7)
    log_of(client, query).decide(0, stage(*range(50)), None)
    log = log_of(client, query)
    decision = log.of(0)
    assert decision is not None
    assert len(decision.staged_at) > 10
    assert decision.staged == {}
    publish(client, log, decision)
    assert published(client, topic) == in_order(range(50))


def test_what_was_published_is_released_in_the_staging_topic(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    log = log_of(client, query)
    staged = [stage(*range(20)), stage(*range(20, 40), task=1)]
    left = stage(99)  # an attempt that is not part of a decision
    publish(client, log, log.decide(0, staged[0] | {}, None))
    assert client.committed(staging_topic(query), "_published") == {0: 20}
    assert next(iter(left.values()))[0].start == 20


def grown_old(log: DecisionLog, batch: int) -> Decision:
    """The decision, as if it had been made two days ago."""
    decision = log.of(batch)
    assert decision is not None
    decision.timestamp_ms -= 48 * 3600 * 1000
    return decision


def test_of_a_decision_of_long_ago_only_what_is_missing_is_published(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str, servers: str
) -> None:
    client.produce_many(topic, [b"x 0"] * 7 + [b"x 1"], partition=1)
    log = log_of(client, query)
    decision = log.decide(0, stage(*range(200)), None)
    old = decision.epoch
    staged = log.staged_of(decision)
    targets = list(staged)
    # Died: one partition is complete, one has two batches, one has nothing.
    publisher = Publisher(client, log.producer_id, decision)
    publisher.publish(targets[0], staged[targets[0]])
    _, piece = next(split_runs(staged[targets[1]], 0, 2))
    publisher.publish(targets[1], tuple(piece))
    with quivermq.connect(servers) as other:
        clients = [client, other]
        logs = [log_of(each, query) for each in clients]
        late = [grown_old(log, 0) for log in logs]
        results = at_once(
            *(
                lambda each=each, log=log, one=one: publish(each, log, one)
                for each, log, one in zip(clients, logs, late, strict=True)
            )
        )
    assert results == [None, None]
    assert late[0].epoch == late[1].epoch > old
    found = [
        int(each.value.split()[0])
        for place in range(3)
        for each in client.read(topic, place)
        if each.key is not None
    ]
    assert sorted(found, key=lambda name: name % 7) == in_order(range(200))
    again = log_of(client, query)
    assert again.unpublished() == []
    assert again.last_batch == 0


@pytest.fixture
def forgetful(
    tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[quivermq.Client]:
    """A client of a broker whose partitions remember six producers."""
    monkeypatch.setattr(producers, "BOUNDS", producers.Bounds(producers=6))
    broker = BrokerThread(tmp_path)
    with quivermq.connect(broker.address) as client:
        yield client
    broker.stop()


def test_what_partitions_have_forgotten_of_a_decision_is_looked_for(
    forgetful: quivermq.Client, query: str, topic: str
) -> None:
    client = forgetful
    client.create_topic(topic, partitions=3)
    log = log_of(client, query)
    columns = MessageColumns.of(_SCHEMA, topic)
    rows = pa.record_batch(
        {
            "value": [f"{name} ".ljust(_SIZE, ".") for name in range(200)],
            "key": [f"{name % 7}" for name in range(200)],
        }
    )
    dispatcher = Dispatcher(columns, lambda name: partitions_of(client, name))
    decision = log.decide(0, StagingWriter(client, query, 0).store([rows], dispatcher), None)
    staged = log.staged_of(decision)
    # Died: one partition is complete, one has two batches.
    publisher = Publisher(client, log.producer_id, decision)
    complete, begun = staged
    assert publisher.publish(complete, staged[complete])
    _, piece = next(split_runs(staged[begun], 0, 2))
    assert publisher.publish(begun, tuple(piece))
    # Others make both forget it.
    for target in (complete, begun):
        for number in range(1, 8):
            client.produce_many(
                topic, [b"-1"], keys=[b"0"], partition=target.partition, producer_id=number
            )
        with pytest.raises(OutOfSequence, match="perhaps this one too"):
            client.position(*target, producer_id=log.producer_id, epoch=decision.epoch)
    successor = log_of(client, query)
    late = successor.of(0)
    assert late is not None
    publish(client, successor, late)
    found = [name for name in published(client, topic) if name >= 0]
    assert sorted(found, key=lambda name: name % 7) == in_order(range(200))
    assert log_of(client, query).unpublished() == []


def test_a_publisher_that_runs_for_a_day_stops(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    log = log_of(client, query)
    decision = log.decide(0, stage(*range(20)), None)
    staged = log.staged_of(decision)
    publisher = Publisher(client, log.producer_id, grown_old(log, 0))
    with pytest.raises(Timeout, match="start the query again"):
        publisher.publish_all(staged)
    assert published(client, topic) == []


def test_writes_of_one_application_at_the_same_time_are_published_in_the_order_of_decisions(
    client: quivermq.Client, query: str, stage: Callable[..., Staged], topic: str
) -> None:
    rows = {version: stage(*range(10 * version, 10 * version + 10)) for version in (5, 6)}
    quick = DecisionLog.open(client, query, create=True)
    slow = log_of(client, query)
    assert quick is not None
    fifth = slow.decide(5, rows[5], None)
    # The quick one did not know of it, and has to publish it before its own.
    BatchCommitter(client, query, None).commit(6, [rows[6]])
    assert sorted(published(client, topic)) == list(range(50, 70))
    # The slow one finds its own decision published, and is content.
    publish(client, slow, fifth)
    BatchCommitter(client, query, None).commit(7, [stage(*range(70, 80))])
    assert sorted(published(client, topic)) == list(range(50, 80))


def test_a_write_with_a_stage_of_its_own_leaves_nothing_staged(
    client: quivermq.Client, query: str, topic: str
) -> None:
    client.create_topic(topic)
    columns = MessageColumns.of(_SCHEMA, topic)
    rows = pa.record_batch({"value": ["a", "b"], "key": ["1", "2"]})
    dispatcher = Dispatcher(columns, lambda name: partitions_of(client, name))
    staged = StagingWriter(client, f"{query}.3", 0).store([rows], dispatcher)
    for _ in range(2):
        BatchCommitter(client, query, None).commit(3, [staged], f"{query}.3")
    assert client.topic(topic).message_count == 2
    with pytest.raises(quivermq.TopicNotFound):
        client.topic(staging_topic(f"{query}.3"))
