"""Producing: never twice, never out of order, whatever gets lost on the way."""

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import ClassVar

import pyarrow as pa
import pytest

import quivermq
import quivermq.aio
from quivermq.batches import DEFAULT_LIMITS
from quivermq.client.producer import session_pool
from quivermq.client.producer.lone_producer import LoneProducer
from quivermq.client.producer.partitioner import partition_of
from quivermq.client.shared.leases import nack_terms
from quivermq.errors import (
    ConnectionFailed,
    InvalidRequest,
    NotLeader,
    OutOfSequence,
    Overloaded,
    StorageFailed,
    Timeout,
    TooLarge,
)
from quivermq.wire import error_to_proto, proto
from tests.client.stand_in import DROP, HANG, STORE_AND_DROP, STORE_AND_HANG, StandIn

both_ways = pytest.mark.usefixtures("way")


@pytest.fixture(params=["straight", "general"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lone messages go the straight way where they can, or none does."""
    if request.param == "general":
        monkeypatch.setattr(LoneProducer, "produce", lambda *_: None)


@both_ways
def test_a_lost_acknowledgement_does_not_store_a_message_twice(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")
    stand_in.script("produce", STORE_AND_DROP)
    assert client.produce("t", b"b").offset == 1
    stand_in.script("produce", DROP, STORE_AND_DROP, NotLeader("?"), STORE_AND_DROP)
    assert client.produce("t", b"c").offset == 2
    assert stand_in.log().values == [b"a", b"b", b"c"]


@both_ways
def test_a_late_acknowledgement_does_not_store_a_message_twice(stand_in: StandIn) -> None:
    stand_in.script("produce", STORE_AND_HANG)
    with quivermq.connect(stand_in.address, timeout=4.0) as client:
        assert client.produce("t", b"a").offset == 0
        assert client.produce("t", b"b").offset == 1
    assert stand_in.log().values == [b"a", b"b"]


@both_ways
def test_after_a_message_was_given_up_in_doubt_the_next_is_not_stuck(stand_in: StandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=1.0) as client:
        client.produce("t", b"a")
        stand_in.script("produce", *[HANG] * 3)
        with pytest.raises(Timeout, match="may have been stored or not"):
            client.produce("t", b"lost")
        stand_in._scripts.clear()
        client.produce("t", b"b")
        client.produce("t", b"c")
    assert stand_in.log().values == [b"a", b"b", b"c"]
    producers = [frame.header.producer_id for frame in stand_in.log().frames]
    assert producers[0] != producers[1] == producers[2]


@both_ways
def test_a_refused_message_leaves_no_gap(stand_in: StandIn, client: quivermq.Client) -> None:
    client.produce("t", b"a")
    stand_in.script("produce", InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        client.produce("t", b"bad")
    client.produce("t", b"b")
    assert [frame.header.sequence for frame in stand_in.log().frames] == [0, 1]


@both_ways
def test_a_failed_disk_is_raised_and_leaves_doubt(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", StorageFailed("fsync failed"))
    with pytest.raises(StorageFailed):
        client.produce("t", b"a")
    client.produce("t", b"b")
    assert stand_in.log().values == [b"b"]


@both_ways
def test_a_broker_that_forgot_the_producer_gets_another_identity(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")
    stand_in.log().sequences.clear()
    client.produce("t", b"b")
    assert stand_in.log().values == [b"a", b"b"]


@both_ways
def test_a_batch_in_doubt_is_numbered_anew_for_a_topic_that_was_created_again(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")

    def create_again(_: proto.Request) -> proto.Response:
        stand_in.topic_id = b"topic id two"
        stand_in.logs.clear()
        return proto.Response(error=error_to_proto(Timeout("it may have been stored")))

    stand_in.script("produce", create_again)
    assert client.produce("t", b"b").offset == 0
    (frame,) = stand_in.log().frames
    assert frame.header.sequence == 0
    assert stand_in.count("new_producer") == 1


@both_ways
def test_a_call_that_is_refused_an_identity_leaves_its_place_to_the_next(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "SESSIONS_MAX", 1)
    stand_in.script("new_producer", InvalidRequest("no more identities"))
    with quivermq.connect(stand_in.address, timeout=2.0) as client:
        with pytest.raises(InvalidRequest, match="no more identities"):
            client.produce("t", b"a")
        assert client.produce("t", b"b").offset == 0


@both_ways
def test_threads_at_once_leave_no_gaps_and_no_repeats(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    stand_in.script("produce", *[STORE_AND_DROP, Overloaded("busy"), "store", DROP] * 10)

    def work(mine: int) -> None:
        for number in range(20):
            client.produce("t", b"%d-%d" % (mine, number))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = stand_in.log().values
    assert len(values) == len(set(values)) == 80
    for mine in range(4):
        theirs = [value for value in values if value.startswith(b"%d-" % mine)]
        assert theirs == [b"%d-%d" % (mine, number) for number in range(20)]
    assert len({frame.header.producer_id for frame in stand_in.log().frames}) <= 4


@both_ways
def test_one_thread_uses_one_producer_id(stand_in: StandIn, client: quivermq.Client) -> None:
    for _ in range(10):
        client.produce("t", b"v")
    client.produce_many("t", [b"v"] * 10)
    assert stand_in.count("new_producer") == 1


@both_ways
def test_an_interrupted_call_leaves_nothing_behind(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")

    def interrupt(_: proto.Request) -> proto.Response:
        """As Ctrl-C does, while the client waits for the answer."""
        os.kill(os.getpid(), signal.SIGINT)
        return proto.Response(error=proto.Error(code="Overloaded", retriable=True))

    stand_in.script("produce", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.produce("t", b"b")
    client.produce("t", b"c")
    assert stand_in.log().values == [b"a", b"c"]
    # It is unknown how far it got, so its number is not used again.
    first, second = stand_in.log().frames
    assert first.header.producer_id != second.header.producer_id


@both_ways
def test_without_a_key_messages_take_turns_over_the_partitions() -> None:
    with StandIn(topics={"t": 3}) as stand_in, quivermq.connect(stand_in.address) as client:
        places = [client.produce("t", b"v").partition for _ in range(9)]
    assert Counter(places) == {0: 3, 1: 3, 2: 3}
    assert [(place + 1) % 3 for place in places[:-1]] == places[1:]


@both_ways
def test_a_key_or_a_named_partition_decides() -> None:
    with StandIn(topics={"t": 7}) as stand_in, quivermq.connect(stand_in.address) as client:
        assert client.produce("t", b"v", key=b"k").partition == partition_of(b"k", 7)
        assert client.produce("t", b"v", key="k").partition == partition_of(b"k", 7)
        assert client.produce("t", b"v", key=b"k", partition=6).partition == 6
        with pytest.raises(InvalidRequest, match="0 to 6"):
            client.produce("t", b"v", partition=7)


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (5, {}),
        (None, {}),
        (b"v", {"key": 5}),
        (b"v", {"headers": {"a": 5}}),
        (b"v", {"priority": 8}),
        (b"v", {"delay": -1}),
        (b"v", {"delay": "soon"}),
    ],
)
@both_ways
def test_what_can_be_no_message_is_refused_before_it_is_sent(
    value: object, options: dict[str, object], stand_in: StandIn, client: quivermq.Client
) -> None:
    with pytest.raises(InvalidRequest):
        client.produce("t", value, **options)  # type: ignore[arg-type]
    assert stand_in.count("produce") == 0
    client.produce("t", b"good")


@both_ways
def test_too_large_is_too_large(client: quivermq.Client) -> None:
    with pytest.raises(TooLarge):
        client.produce("t", b"x" * (DEFAULT_LIMITS.message_bytes_max + 1))


class TestManyAtOnce:
    VALUES: ClassVar = [b"%06d" % number + b"x" * 94 for number in range(50_000)]

    def test_everything_is_stored_in_order_in_few_batches(
        self, stand_in: StandIn, client: quivermq.Client
    ) -> None:
        receipts = client.produce_many("t", self.VALUES)
        assert stand_in.log().values == self.VALUES
        assert sum(receipt.count for receipt in receipts) == 50_000
        assert [receipt.first_offset for receipt in receipts] == [
            frame.header.base_offset for frame in stand_in.log().frames
        ]
        assert 5 <= len(receipts) <= 12

    @pytest.mark.parametrize(
        "script",
        [
            ["store", STORE_AND_DROP],
            [DROP],
            ["store", NotLeader("?"), "store", Overloaded("busy")],
            [OutOfSequence("?", expected=0), DROP, STORE_AND_DROP, STORE_AND_DROP],
        ],
    )
    def test_trouble_on_the_way_changes_nothing(
        self, script: list[object], stand_in: StandIn, client: quivermq.Client
    ) -> None:
        stand_in.script("produce", *script)  # type: ignore[arg-type]
        client.produce_many("t", self.VALUES)
        assert stand_in.log().values == self.VALUES

    def test_several_batches_are_under_way_at_a_time(self, stand_in: StandIn) -> None:
        stand_in.script("produce", *[HANG] * 5)
        with quivermq.connect(stand_in.address, timeout=2.0) as client:
            client.produce_many("t", self.VALUES)
        assert stand_in.log().values == self.VALUES
        # All that was sent before anything was answered, and the same again.
        assert stand_in.count("produce") >= 10

    def test_a_failure_midway_says_how_much_is_stored(self, stand_in: StandIn) -> None:
        with quivermq.connect(stand_in.address, timeout=5) as client:
            stand_in.script("produce", "store", InvalidRequest("no"))
            with pytest.raises(InvalidRequest) as raised:
                client.produce_many("t", self.VALUES)
            (note,) = raised.value.__notes__
            stored = len(stand_in.log().values)
            assert note.startswith(f"{stored:,} messages")
            client.produce_many("t", [b"next"])
            assert stand_in.log().values[-1] == b"next"

    def test_one_bad_message_at_the_end_stops_all(
        self, stand_in: StandIn, client: quivermq.Client
    ) -> None:
        for bad in (None, 5, b"x" * (DEFAULT_LIMITS.message_bytes_max + 1)):
            with pytest.raises(InvalidRequest):
                client.produce_many("t", [*self.VALUES, bad])  # type: ignore[list-item]
        assert stand_in.count("produce") == 0

    def test_nothing_is_nothing(self, client: quivermq.Client) -> None:
        assert client.produce_many("t", []) == []

    def test_keys_go_to_their_partitions_in_order(self) -> None:
        keys = [None if n % 7 == 0 else b"k%d" % (n % 50) for n in range(20_000)]
        values = [b"%d" % n for n in range(20_000)]
        with StandIn(topics={"t": 5}) as stand_in, quivermq.connect(stand_in.address) as client:
            receipts = client.produce_many("t", values, keys)
            found = {number: stand_in.log("t", number).values for number in range(5)}
        assert sum(receipt.count for receipt in receipts) == 20_000
        assert sorted(chain.from_iterable(found.values())) == sorted(values)
        for number, stored in found.items():
            keyed = [int(value) for value in stored if keys[int(value)] is not None]
            assert keyed == sorted(keyed)
            assert {partition_of(keys[value] or b"", 5) for value in keyed} == {number}

    def test_arrow_tables_are_taken_as_they_are(self) -> None:
        keys = [b"k%d" % (n % 9) for n in range(3_000)]
        table = pa.table({"value": self.VALUES[:3_000], "key": keys})
        with StandIn(topics={"t": 3}) as stand_in, quivermq.connect(stand_in.address) as client:
            for data in (table, table.to_batches()[0]):
                client.produce_many("t", data)
            client.produce_many("t", table.column("value"), partition=0)
            for number in range(3):
                stored = Counter(stand_in.log("t", number).values)
                for value, key in zip(self.VALUES, keys, strict=False):
                    expected = 2 * (partition_of(key, 3) == number) + (number == 0)
                    assert stored[value] == expected

    def test_without_keys_batches_are_spread_over_the_partitions(self) -> None:
        with StandIn(topics={"t": 3}) as stand_in, quivermq.connect(stand_in.address) as client:
            receipts = client.produce_many("t", self.VALUES)
        assert {receipt.partition for receipt in receipts} == {0, 1, 2}

    def test_an_identity_of_ones_own_makes_repeats_recognisable(
        self, stand_in: StandIn, client: quivermq.Client
    ) -> None:
        for _ in range(2):
            client.produce_many("t", [b"a", b"b"], producer_id=7, epoch=3)
        client.produce_many("t", [b"c"], producer_id=7, epoch=3, sequence=2)
        assert stand_in.log().values == [b"a", b"b", b"c"]
        assert {frame.header.producer_epoch for frame in stand_in.log().frames} == {3}
        assert stand_in.count("new_producer") == 0


def test_a_broker_that_is_away_for_a_moment_is_waited_for(stand_in: StandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=5) as client:
        client.produce("t", b"a")
        stand_in.script("hello", *[DROP] * 3)
        stand_in.drop_all()
        time.sleep(0.01)
        client.produce("t", b"b")
    assert stand_in.log().values == [b"a", b"b"]


def test_a_token_that_is_refused_is_not_retried(stand_in: StandIn) -> None:
    stand_in.script("hello", *[quivermq.Unauthenticated("unknown token")] * 5)
    with pytest.raises(quivermq.Unauthenticated):
        quivermq.connect(stand_in.address, token="x", timeout=5)
    assert stand_in.count("hello") == 1


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"timeout": "x"}, {"tls": 7}, {"tls": "no-such.pem"}, {"token": b"x"}]
)
def test_connecting_with_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        quivermq.connect("127.0.0.1:1", **wrong)  # type: ignore[arg-type]


def test_where_nothing_listens_connecting_fails_in_time() -> None:
    began = time.monotonic()
    with pytest.raises(ConnectionFailed):
        quivermq.connect("127.0.0.1:1", timeout=1.0)
    assert time.monotonic() - began < 10


def test_a_cancelled_call_leaves_no_request_open(stand_in: StandIn) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            stand_in.script("produce", *[HANG] * 20)
            values = TestManyAtOnce.VALUES
            task = asyncio.create_task(client.produce_many("t", values))
            await asyncio.to_thread(stand_in.until, "produce", 5)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.to_thread(stand_in.until, "cancel", 5)
            stand_in._scripts.clear()
            await client.produce("t", b"next")
        assert stand_in.log().values == [b"next"]

    asyncio.run(work())


def test_a_delay_is_seconds_or_a_span_or_its_end(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    hour, minute = timedelta(hours=1), timedelta(minutes=1)
    before = time.time()
    for delay in (3600, hour, datetime.now(UTC) + hour, datetime.now() + hour):
        client.produce("t", b"later", delay=delay)
    client.produce_many("t", [b"later"], delay=hour)
    with client.producer() as producer:
        producer.send("t", b"later", delay=hour)
    due = [frame.header.not_before_ms / 1000 for frame in stand_in.log().frames]
    assert len(due) == 6
    assert all(before + 3600 <= at < before + 3660 for at in due)
    for passed in (timedelta(0), datetime.now(UTC) - minute):
        client.produce("t", b"now", delay=passed)
        assert stand_in.log().frames[-1].header.not_before_ms == 0
    with pytest.raises(InvalidRequest, match="delay must be a number of at least 0"):
        client.produce("t", b"v", delay=-minute)
    assert nack_terms(hour).delay_ms == 3_600_000


def test_a_value_that_is_no_bytes_is_refused_with_a_hint(client: quivermq.Client) -> None:
    with pytest.raises(InvalidRequest, match="a value is bytes or text, not dict: encode it"):
        client.produce("t", {"an": "order"})  # type: ignore[arg-type]
