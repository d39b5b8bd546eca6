"""Gathering messages: what travels together, when, and how much may wait."""

import threading
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.client.producer import accumulator
from quivermq.client.producer.accumulator import Accumulator
from quivermq.client.producer.delivery import Delivery, PendingBatch
from quivermq.client.producer.partitioner import partition_of
from quivermq.client.producer.sequencer import StoredAt
from quivermq.errors import InvalidRequest, Overloaded, TooLarge


class Bench:
    """An accumulator with a clock in the hand."""

    def __init__(self, *, partitions: int = 1, batch_bytes: int = 1000, **settings: Any) -> None:
        self.now = 100.0
        self.wakes = 0
        self.accumulator = Accumulator(
            batch_bytes=batch_bytes,
            buffer_bytes=settings.get("buffer_bytes", 1_000_000),
            linger=settings.get("linger", 1.0),
            timeout=10.0,
            now=lambda: self.now,
            wake=self.wake,
        )
        self.accumulator.learn("t", partitions)

    def wake(self) -> None:
        self.wakes += 1

    def send(self, value: Any = b"v", key: Any = None, **options: Any) -> Delivery | None:
        return self.accumulator.add(
            options.get("topic", "t"),
            value,
            key,
            options.get("headers"),
            options.get("priority", 0),
            options.get("delay", 0.0),
            options.get("partition"),
        )

    def ready(self) -> list[PendingBatch]:
        return self.accumulator.take_ready()[0]


def test_messages_wait_for_others_and_then_travel_together() -> None:
    bench = Bench()
    for value in (b"a", b"b", b"c"):
        assert bench.send(value) is not None
    assert bench.accumulator.take_ready() == ([], 101.0)
    bench.now = 101.0
    (pending_batch,) = bench.ready()
    assert pending_batch.values == [b"a", b"b", b"c"]
    assert bench.accumulator.take_ready() == ([], None)


def test_the_sender_is_woken_once_for_many_messages() -> None:
    bench = Bench()
    for _ in range(100):
        bench.send()
    assert bench.wakes == 1
    bench.ready()
    for _ in range(100):
        bench.send()
    assert bench.wakes == 1  # it looks again by itself, when the pending batch is due


def test_a_full_crate_goes_at_once() -> None:
    bench = Bench(batch_bytes=100)
    for _ in range(5):
        bench.send(b"x" * 30)
    assert [len(pending_batch.values) for pending_batch in bench.ready()] == [2, 2]


def test_a_message_larger_than_a_batch_travels_alone() -> None:
    bench = Bench(batch_bytes=100)
    bench.send(b"small")
    bench.send(b"x" * 500)
    bench.send(b"small")
    bench.accumulator.seal_all()
    assert [list(map(len, pending_batch.values)) for pending_batch in bench.ready()] == [
        [5],
        [500],
        [5],
    ]


@pytest.mark.parametrize("differs", [{"priority": 3}, {"delay": 60.0}])
def test_what_differs_in_priority_or_due_time_travels_apart_in_order(
    differs: dict[str, float],
) -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b", **differs)
    bench.send(b"c")
    bench.accumulator.seal_all()
    pending_batches = bench.ready()
    assert [pending_batch.values for pending_batch in pending_batches] == [[b"a"], [b"b"], [b"c"]]
    assert [pending_batch.priority for pending_batch in pending_batches] == [
        0,
        int(differs.get("priority", 0)),
        0,
    ]
    assert [bool(pending_batch.not_before_ms) for pending_batch in pending_batches] == [
        False,
        "delay" in differs,
        False,
    ]


def test_messages_due_at_almost_the_same_time_travel_together() -> None:
    bench = Bench()
    for _ in range(200):
        bench.send(delay=60.0)
    bench.accumulator.seal_all()
    assert len(bench.ready()) <= 3


@pytest.mark.parametrize(("due_ms", "rounded_ms"), [(70_000, 70_000), (70_001, 70_100)])
def test_no_message_is_due_before_its_delay_is_over(
    due_ms: int, rounded_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accumulator, "not_before_ms", lambda _: due_ms)
    bench = Bench(linger=0.0)
    bench.send(delay=5.0)
    (pending_batch,) = bench.ready()
    assert pending_batch.not_before_ms == rounded_ms


def test_keys_and_headers_stay_with_their_messages() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b", b"k")
    bench.send(b"c", headers={"h": b"1"})
    bench.send(b"d")
    bench.accumulator.seal_all()
    (pending_batch,) = bench.ready()
    assert pending_batch.values == [b"a", b"b", b"c", b"d"]
    assert pending_batch.keys == [None, b"k", None, None]
    assert pending_batch.headers == [None, None, {"h": b"1"}, None]


def test_without_a_key_batches_take_turns_over_the_partitions() -> None:
    bench = Bench(partitions=3, batch_bytes=100)
    for _ in range(12):
        bench.send(b"x" * 40)
    bench.accumulator.seal_all()
    pending_batches = bench.ready()
    turns = [pending_batch.partition for pending_batch in pending_batches]
    assert [len(pending_batch.values) for pending_batch in pending_batches] == [2] * 6
    assert [(turn + 1) % 3 for turn in turns[:-1]] == turns[1:]


def test_keys_and_named_partitions_decide_where_messages_go() -> None:
    bench = Bench(partitions=5)
    for number in range(50):
        bench.send(b"k%d" % number, b"k%d" % number)
    bench.send(b"named", b"k1", partition=4)
    bench.accumulator.seal_all()
    for pending_batch in bench.ready():
        for value in pending_batch.values:
            assert pending_batch.partition == (4 if value == b"named" else partition_of(value, 5))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, b"a", b"b", b"c"]),
            st.sampled_from([0, 0, 0, 1]),
            st.integers(0, 60),
        ),
        max_size=60,
    ),
    st.integers(1, 3),
)
def test_every_message_is_in_one_crate_in_the_order_of_its_partition(
    messages: list[tuple[bytes | None, int, int]], partitions: int
) -> None:
    bench = Bench(partitions=partitions, batch_bytes=150)
    sent = [
        bench.send(b"%03d" % number + b"x" * size, key, priority=priority)
        for number, (key, priority, size) in enumerate(messages)
    ]
    bench.accumulator.seal_all()
    pending_batches = bench.ready()
    for offset, pending_batch in enumerate(pending_batches):
        assert pending_batch.size <= 150 or len(pending_batch.values) == 1
        bench.accumulator.settle(pending_batch, StoredAt(1000 * offset, 0))
    by_partition: dict[int, list[int]] = {}
    for number, delivery in enumerate(sent):
        assert delivery is not None
        receipt = delivery.result(0)
        by_partition.setdefault(receipt.partition, []).append(receipt.offset)
        if messages[number][0] is not None:
            assert receipt.partition == partition_of(messages[number][0] or b"", partitions)
    for offsets in by_partition.values():
        assert offsets == sorted(offsets)
        assert len(set(offsets)) == len(offsets)


def test_past_the_buffer_there_is_no_room_until_something_is_settled() -> None:
    bench = Bench(batch_bytes=100, buffer_bytes=250)
    taken = sum(bench.send(b"x" * 90) is not None for _ in range(100))
    assert taken == 3
    room: list[bool] = []
    bench.accumulator.when_room(lambda: room.append(True))
    pending_batches = bench.ready()
    assert not room
    bench.accumulator.settle(pending_batches[0], StoredAt(0, 0))
    assert room
    assert bench.send(b"x" * 90) is not None


def test_open_crates_of_many_partitions_count_as_buffered_too() -> None:
    bench = Bench(partitions=100, batch_bytes=1000, buffer_bytes=2000)
    taken = sum(bench.send(b"x" * 100, partition=n) is not None for n in range(100))
    assert 15 <= taken <= 30


def test_room_is_given_at_once_where_there_is_some() -> None:
    room: list[bool] = []
    Bench().accumulator.when_room(lambda: room.append(True))
    assert room


def test_an_unknown_topic_is_not_taken_until_it_is_learned() -> None:
    bench = Bench()
    assert bench.send(topic="other") is None
    assert not bench.accumulator.knows("other", None)
    bench.accumulator.learn("other", 2)
    assert bench.send(topic="other") is not None
    assert bench.send(topic="other", partition=2) is None
    bench.accumulator.learn("other", 3)
    assert bench.send(topic="other", partition=2) is not None
    bench.accumulator.forget("other")
    assert bench.send(topic="other") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": 5},
        {"value": None},
        {"key": 5},
        {"priority": 8},
        {"priority": True},
        {"priority": 1.5},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 1e12},
        {"partition": -1},
        {"partition": True},
        {"headers": [("a", b"b")]},
        {"headers": {"a": "\ud800"}},
        {"headers": {b"a": b"b"}},
    ],
)
def test_a_message_that_would_spoil_the_others_is_refused_alone(wrong: dict[str, Any]) -> None:
    bench = Bench()
    bench.send(b"good")
    with pytest.raises(InvalidRequest):
        bench.send(**wrong)
    bench.accumulator.seal_all()
    (pending_batch,) = bench.ready()
    assert pending_batch.values == [b"good"]


def test_what_is_too_large_is_refused_at_once() -> None:
    bench = Bench()
    with pytest.raises(TooLarge, match="message_bytes_max"):
        bench.send(b"x" * (8 << 20))
    with pytest.raises(TooLarge, match="headers_bytes_max"):
        bench.send(headers={"h": b"x" * (64 << 10)})


def test_names_of_headers_are_measured_in_bytes() -> None:
    bench = Bench()
    characters = bench.accumulator.limits.headers_bytes_max // 2
    assert bench.send(headers={"a" * characters: b""}) is not None
    with pytest.raises(TooLarge, match="headers_bytes_max"):
        bench.send(headers={"ä" * characters: b""})


def test_a_buffer_that_changes_after_send_changes_nothing() -> None:
    bench = Bench()
    value, key = bytearray(b"before"), bytearray(b"key")
    bench.send(value, key)
    value[:], key[:] = b"after!", b"???"
    bench.send("text", "key")
    bench.accumulator.seal_all()
    (pending_batch,) = bench.ready()
    assert pending_batch.values == [b"before", b"text"]
    assert pending_batch.keys == [b"key", b"key"]


def test_values_go_the_short_way_only_where_such_are_gathered_and_fit() -> None:
    bench = Bench(batch_bytes=100)
    add_value = bench.accumulator.add_value
    assert add_value("t", b"nothing is gathered yet") is None
    assert add_value("other", b"v") is None
    bench.send(b"0")
    assert add_value("other", b"v") is None
    short = [add_value("t", value) for value in (b"1", b"2" * 50)]
    for left in ("text", bytearray(b"a"), None, 5, b"x" * 38):
        assert add_value("t", left) is None  # type: ignore[arg-type]
    bench.send(b"key", b"k")
    assert add_value("t", b"3") is None
    bench.accumulator.seal_all()
    assert add_value("t", b"4") is None
    first, *others = bench.ready()
    assert first.values == [b"0", b"1", b"2" * 50, b"key"]
    assert first.size == 5 + 5 + 54 + 12
    assert not others
    bench.accumulator.settle(first, StoredAt(10, 0))
    assert [each.result(0).offset for each in short if each is not None] == [11, 12]


def test_a_failure_that_was_not_looked_at_is_kept_for_flush() -> None:
    bench = Bench(batch_bytes=50)
    seen, unseen = bench.send(b"x" * 40), bench.send(b"y" * 40)
    assert seen is not None
    assert unseen is not None
    bench.accumulator.seal_all()
    first, second = Overloaded("first"), Overloaded("second")
    for pending_batch, error in zip(bench.ready(), (first, second), strict=True):
        bench.accumulator.settle(pending_batch, error)
    assert seen.exception() is first
    assert bench.accumulator.take_failure() is second
    assert bench.accumulator.take_failure() is None


def test_threads_that_send_at_once_lose_nothing() -> None:
    bench = Bench(batch_bytes=5_000, buffer_bytes=100_000_000)
    deliveries: list[list[Delivery]] = [[] for _ in range(4)]

    def work(mine: list[Delivery]) -> None:
        for number in range(3_000):
            delivery = bench.send(b"%d" % number)
            assert delivery is not None
            mine.append(delivery)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in deliveries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.accumulator.seal_all()
    offset = 0
    for pending_batch in bench.ready():
        count = len(pending_batch.values)
        bench.accumulator.settle(pending_batch, StoredAt(offset, 0))
        offset += count
    assert offset == 12_000
    found = [[each.result(0).offset for each in mine] for mine in deliveries]
    assert sorted(chain.from_iterable(found)) == list(range(12_000))
    assert all(mine == sorted(mine) for mine in found)
