"""`send_many`: lists of messages through a producer, in order with single ones, bounded."""

import asyncio
import gc
import logging
import threading
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import quivermq
import quivermq.aio
from quivermq.batches import DEFAULT_LIMITS
from quivermq.client.producer.bulk import BulkColumns, Layout
from quivermq.client.producer.bulk_send import PIECE_ROWS, PIECES_A_BATCH, BulkSend, Piece
from quivermq.client.producer.delivery import PendingBatch
from quivermq.client.producer.partitioner import partition_of
from quivermq.errors import (
    InvalidRequest,
    Overloaded,
    QuiverError,
    Timeout,
    TooLarge,
    TopicNotFound,
)
from quivermq.testing import Cluster
from tests.client.stand_in import DROP, HANG, STORE_AND_DROP, StandIn

VALUES = [b"%05d" % number for number in range(3_000)]


def lists(size: int) -> list[list[bytes]]:
    return [VALUES[at : at + size] for at in range(0, len(VALUES), size)]


@pytest.mark.parametrize(
    "script",
    [
        [],
        [STORE_AND_DROP],
        [DROP, STORE_AND_DROP, DROP],
        ["store", Overloaded("busy"), "store", "store", DROP],
    ],
)
@pytest.mark.parametrize("as_arrow", [False, True])
def test_lists_and_single_messages_keep_their_order_whatever_happens(
    script: list[Any], as_arrow: bool, stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", *script)
    deliveries = []
    with client.producer(linger=0, batch_bytes=1_000) as producer:
        for values in lists(70):
            producer.send("t", values[0])
            rest = pa.array(values[1:-1]) if as_arrow else values[1:-1]
            deliveries.append(producer.send_many("t", rest))
            if values[1:]:
                producer.send("t", values[-1])
    stored = stand_in.log().values
    assert stored == VALUES
    for delivery, values in zip(deliveries, lists(70), strict=True):
        found = [
            stored[at]
            for receipt in delivery.result(0)
            for at in range(receipt.first_offset, receipt.first_offset + receipt.count)
        ]
        assert found == values[1:-1]


def test_small_lists_travel_together(stand_in: StandIn, client: quivermq.Client) -> None:
    with client.producer(linger=60) as producer:
        deliveries = [producer.send_many("t", values) for values in lists(10)]
        assert not deliveries[0].done()
        assert "300" not in repr(deliveries[0])
    assert stand_in.log().values == VALUES
    assert stand_in.count("produce") == 1
    assert [each.result(0) for each in deliveries[:2]] == [
        [quivermq.BatchReceipt(0, 0, 10)],
        [quivermq.BatchReceipt(0, 10, 10)],
    ]
    assert "stored" in repr(deliveries[0])


def test_a_large_list_becomes_batches_of_about_the_size_asked_for(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    uneven = [bytes(size) for size in [5, 900, 10, 10, 5_000, *[100] * 50]]
    with client.producer(linger=60, batch_bytes=1_000) as producer:
        delivery = producer.send_many("t", uneven)
    receipts = delivery.result(0)
    assert stand_in.log().values == uneven
    sizes = [sum(map(len, uneven[r.first_offset :][: r.count])) for r in receipts]
    assert len(receipts) > 6
    assert all(
        size <= 1_000 or receipt.count == 1 for size, receipt in zip(sizes, receipts, strict=True)
    )


def test_keys_go_to_their_partitions_in_order() -> None:
    keys = [None if number % 5 == 4 else b"key %d" % (number % 20) for number in range(3_000)]
    with StandIn(topics={"t": 8}) as stand_in, quivermq.connect(stand_in.address) as client:
        with client.producer(linger=0, batch_bytes=500) as producer:
            for at in range(0, 3_000, 300):
                producer.send_many("t", VALUES[at : at + 300], keys[at : at + 300])
        found = [stand_in.log("t", number).values for number in range(8)]
        named = client.producer()
        receipts = named.send_many("t", [b"a", b"b"], [b"1", b"2"], 3).result(10)
        named.close()
    assert sum(map(len, found)) == 3_000
    with_key = [value for value, key in zip(VALUES, keys, strict=True) if key is not None]
    for values in found:
        keyed = [value for value in values if value in with_key]
        assert keyed == sorted(set(keyed))
    assert [(receipt.partition, receipt.count) for receipt in receipts] == [(3, 2)]


def test_lists_with_and_without_keys_travel_together(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(linger=60) as producer:
        producer.send_many("t", [b"1", b"2"], [b"k", None])
        producer.send_many("t", [b"3", b"4"])
        producer.send("t", b"5", b"k", headers={"a": b"1"})
        producer.send_many("t", [b"6"])
    assert stand_in.log().values == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert stand_in.count("produce") == 1


def test_nothing_is_nothing(client: quivermq.Client) -> None:
    with client.producer() as producer:
        delivery = producer.send_many("t", [])
        assert delivery.done()
        assert delivery.result(0) == []


@pytest.mark.parametrize(
    ("values", "options", "error"),
    [
        ([b"good", 5], {}, InvalidRequest),
        ([b"good", None], {}, InvalidRequest),
        ([b"a", b"b"], {"keys": [b"k"]}, InvalidRequest),
        ([b"a"], {"keys": [5]}, InvalidRequest),
        ([b"a"], {"partition": 7}, InvalidRequest),
        ([b"a"], {"partition": -1}, InvalidRequest),
        ([b"a"], {"partition": "x"}, InvalidRequest),
        ([b"a"], {"priority": 8}, InvalidRequest),
        ([b"a"], {"delay": -1}, InvalidRequest),
        (b"bytes", {}, InvalidRequest),
        ([b"good", bytes(20 << 20)], {}, TooLarge),
    ],
)
def test_nothing_is_taken_if_one_message_is_bad(
    values: Any,
    options: dict[str, Any],
    error: type[QuiverError],
    stand_in: StandIn,
    client: quivermq.Client,
) -> None:
    with client.producer() as producer:
        with pytest.raises(error):
            producer.send_many("t", values, **options)
        producer.send("t", b"after")
    assert stand_in.log().values == [b"after"]


def test_a_topic_that_is_not_there_is_refused(client: quivermq.Client) -> None:
    with client.producer() as producer, pytest.raises(TopicNotFound):
        producer.send_many("other", [b"v"])


def test_a_closed_producer_says_so(client: quivermq.Client) -> None:
    producer = client.producer()
    producer.close()
    with pytest.raises(InvalidRequest, match="closed"):
        producer.send_many("t", [b"v"])


@pytest.mark.parametrize("as_arrow", [False, True])
def test_past_the_buffer_it_waits_and_then_says_how_many_were_taken(
    as_arrow: bool, stand_in: StandIn
) -> None:
    stand_in.script("produce", *[HANG] * 100)
    with quivermq.connect(stand_in.address) as client:
        producer = client.producer(batch_bytes=1_000, buffer_bytes=5_000, timeout=1)
        with pytest.raises(Overloaded) as caught:
            producer.send_many("t", pa.array(VALUES) if as_arrow else VALUES)
        (note,) = caught.value.__notes__
        taken = int(note.split()[0].replace(",", ""))
        assert 300 < taken < len(VALUES)
        producer.abandon()


@pytest.mark.parametrize("as_arrow", [False, True])
def test_past_the_buffer_it_goes_on_when_there_is_room(
    as_arrow: bool, stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(batch_bytes=1_000, buffer_bytes=2_000) as producer:
        producer.send_many("t", pa.array(VALUES) if as_arrow else VALUES)
    assert stand_in.log().values == VALUES


def test_a_failure_reaches_the_delivery_with_what_was_stored(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", "store", InvalidRequest("no"), *["store"] * 100)
    called = threading.Event()
    producer = client.producer(linger=0, batch_bytes=3_000)
    delivery = producer.send_many("t", VALUES)
    delivery.add_done_callback(lambda done: called.set())
    with pytest.raises(InvalidRequest, match="no") as caught:
        delivery.result(30)
    stored = len(stand_in.log().values)
    assert caught.value.__notes__ == [
        f"{stored:,} messages of this call were stored before or beside it"
    ]
    assert 0 < stored < len(VALUES)
    assert called.wait(10)
    assert delivery.exception() is caught.value
    assert len(caught.value.__notes__) == 1
    # It was looked at, so closing does not raise it again.
    producer.close()


def test_a_result_that_does_not_come_in_time_is_a_timeout(stand_in: StandIn) -> None:
    stand_in.script("produce", HANG)
    with quivermq.connect(stand_in.address, timeout=30) as client:
        producer = client.producer(linger=0)
        delivery = producer.send_many("t", [b"v"])
        with pytest.raises(Timeout):
            delivery.result(0.05)
        producer.abandon()


def pieces_of(
    values: list[Any], keys: Any = None, *, frame_bytes: int = 8_000, partitions: int = 1
) -> list[Piece]:
    layout = Layout(frame_bytes=frame_bytes)
    bulk = BulkSend(
        "t",
        BulkColumns(values, keys),
        layout,
        DEFAULT_LIMITS,
        partitions=partitions,
        partition=None,
    )
    batch = PendingBatch("t", 0, priority=0, not_before_ms=0, opened_at=0.0, deadline=1.0)
    found = []
    while (piece := bulk.piece) is not None:
        found.append(piece)
        bulk.took_piece(batch, batch.extend(piece.values, piece.keys, piece.size))
    assert bulk.count == sum(len(piece.values) for piece in found)
    return found


@given(
    st.lists(st.integers(0, 2_500), min_size=1, max_size=40),
    st.integers(1, 100),
    st.sampled_from([1, 800, 8_000, 80_000]),
)
def test_pieces_are_small_and_hold_every_message_once(
    sizes: list[int], times: int, frame_bytes: int
) -> None:
    values = [b"%07d" % number + bytes(size) for number, size in enumerate(sizes * times)]
    keys = [None if number % 3 else value[:5] for number, value in enumerate(values)]
    pieces = pieces_of(values, keys, frame_bytes=frame_bytes)
    assert [value for piece in pieces for value in piece.values] == values
    assert [key for piece in pieces for key in piece.keys or ()] == keys
    for piece in pieces:
        assert len(piece.values) <= PIECE_ROWS
        assert len(piece.values) == 1 or piece.size <= frame_bytes // PIECES_A_BATCH
        taken = sum(map(len, piece.values)) + sum(len(key or b"") for key in piece.keys or ())
        assert piece.size == taken + 8 * len(piece.values)


def test_pieces_with_keys_belong_to_a_partition() -> None:
    keys = [None if number % 4 == 0 else b"%d" % (number % 50) for number in range(3_000)]
    pieces = pieces_of(VALUES, keys, partitions=3)
    assert {piece.partition for piece in pieces} == {None, 0, 1, 2}
    for piece in pieces:
        keyed = piece.keys or [None]
        assert {key and partition_of(key, 3) for key in keyed} == {piece.partition}


@pytest.mark.parametrize("size", [1, 30, 105, 999, 3_000])
def test_batches_of_large_lists_are_nearly_full_and_told_once(
    size: int, stand_in: StandIn, client: quivermq.Client
) -> None:
    values = [b"%06d" % number + bytes(size) for number in range(300_000 // size)]
    with client.producer(linger=60, batch_bytes=20_000) as producer:
        delivery = producer.send_many("t", values)
    receipts = delivery.result(0)
    assert stand_in.log().values == values
    assert len(receipts) == stand_in.count("produce")
    ends = accumulate((receipt.count for receipt in receipts), initial=0)
    assert [receipt.first_offset for receipt in receipts] == list(ends)[:-1]
    for receipt in receipts[:-1]:
        filled = receipt.count * (size + 10)
        assert 20_000 - max(2_500, size + 10) <= filled <= 20_000


@pytest.mark.parametrize("bad", [None, 5, "text \ud800"])
def test_a_large_list_is_not_taken_if_its_last_message_is_bad(
    bad: Any, stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer() as producer:
        with pytest.raises(InvalidRequest):
            producer.send_many("t", [*VALUES, bad])
        producer.send("t", b"after")
    assert stand_in.log().values == [b"after"]


def test_what_is_not_bytes_comes_through_beside_much_that_is(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(linger=60) as producer:
        producer.send_many("t", VALUES)
        producer.send_many("t", [*VALUES, "text", bytearray(b"array")])
        producer.send("t", b"last")
    assert stand_in.log().values == [*VALUES, *VALUES, b"text", b"array", b"last"]


def test_a_list_that_changes_after_the_call_changes_nothing(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    with client.producer(linger=60) as producer:
        for size in (10, len(VALUES)):
            values = VALUES[:size]
            producer.send_many("t", values)
            values.clear()
    assert stand_in.log().values == [*VALUES[:10], *VALUES]


def test_on_an_event_loop(stand_in: StandIn) -> None:
    stand_in.script("produce", STORE_AND_DROP, "store", Overloaded("busy"))

    async def work() -> None:
        async with quivermq.aio.connect(stand_in.address, timeout=10) as client:
            async with client.producer(linger=0, batch_bytes=1_000, buffer_bytes=4_000) as producer:
                first = await producer.send_many("t", VALUES[:1_000])
                await producer.send("t", VALUES[1_000])
                second = await producer.send_many("t", pa.array(VALUES[1_001:]))
                found = [*await first, *await second]
                assert sum(receipt.count for receipt in found) == len(VALUES) - 1
            with pytest.raises(InvalidRequest, match="closed"):
                await producer.send_many("t", [b"v"])

    asyncio.run(work())
    assert stand_in.log().values == VALUES


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_collected_producer_held_is_delivered(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    producer = client.producer(linger=60)
    producer.send("t", b"one")
    delivery = producer.send_many("t", [b"two", b"three"])
    del producer
    gc.collect()
    assert delivery.result(30) == [quivermq.BatchReceipt(0, 1, 2)]
    assert stand_in.log().values == [b"one", b"two", b"three"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_a_collected_producer_could_not_store_is_logged_in_time(
    stand_in: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.script("produce", *[HANG] * 100)
    logged = threading.Event()
    caplog.handler.addFilter(lambda record: bool(logged.set()) or True)
    with (
        caplog.at_level(logging.ERROR, "quivermq.client"),
        quivermq.connect(stand_in.address) as client,
    ):
        producer = client.producer(linger=60, timeout=1)
        producer.send("t", b"one")
        producer.send_many("t", pa.array([b"two", b"three"]))
        del producer
        gc.collect()
        assert logged.wait(30)
    assert "a producer was not closed, and 3 messages to t may not be stored" in caplog.text


@pytest.mark.parametrize("sent", [b"x" * 5_000, [b"d", b"x" * 5_000]])
def test_a_message_above_a_brokers_limit_is_refused_and_spoils_no_other(
    sent: bytes | list[bytes],
) -> None:
    settings = {"message_bytes_max": 2_000, "grpc": ""}
    with Cluster(nodes=1, settings=settings) as cluster, cluster.connect() as client:
        client.create_topic("t")
        with client.producer(linger=60.0) as producer:
            small = [producer.send_many("t", [b"a", b"b"]), producer.send_many("t", [b"c"])]
            send = producer.send_many if isinstance(sent, list) else producer.send
            with pytest.raises(TooLarge, match="message_bytes_max"):
                send("t", sent)
            small.append(producer.send_many("t", [b"e"] * 500))
            producer.flush()
            assert [sum(each.count for each in one.result()) for one in small] == [2, 1, 500]
        values = [message.value for message in client.read("t")]
        assert values == [b"a", b"b", b"c", *[b"e"] * 500]
