"""The straight way of a lone message does what the general way does, or leaves it to that."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn

import pytest

import quivermq
import quivermq.aio
from quivermq.batches import KEYED_BYTES, Limits, lone_bytes_max
from quivermq.batches.lone import LONE_BYTES_MAX
from quivermq.client.producer import session_pool
from quivermq.client.producer.lone_producer import LoneProducer
from quivermq.client.producer.produce import DirectProducer
from quivermq.errors import (
    InvalidRequest,
    NotLeader,
    OutOfSequence,
    Overloaded,
    QuiverError,
    StorageFailed,
)
from quivermq.wire import proto
from tests.client.stand_in import DROP, HANG, STORE_AND_DROP, Action, StandIn


@contextmanager
def only_straight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The general way must not begin: what fails on the straight one may end there."""

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the general way was taken")

    with monkeypatch.context() as patched:
        patched.setattr(DirectProducer, "_post", refuse)
        yield


PLAIN: list[dict[str, Any]] = [
    {"value": b"plain"},
    {"value": b""},
    {"value": b"x" * LONE_BYTES_MAX},
    {"value": "text"},
    {"value": b"v", "priority": 7},
    {"value": b"v", "partition": 0},
    {"value": b"v", "key": b"k"},
    {"value": b"v", "key": "text"},
    {"value": b"", "key": b""},
    {"value": b"x" * 1_001, "key": b"k" * 333},
]
OTHERS: list[dict[str, Any]] = [
    {"value": b"x" * (LONE_BYTES_MAX + 1)},
    {"value": b"x" * LONE_BYTES_MAX, "key": b"k"},
    {"value": b"v", "key": b"k" * LONE_BYTES_MAX},
    {"value": b"v", "headers": {"a": b"1"}},
    {"value": b"v", "timestamp": datetime(2026, 1, 1, tzinfo=UTC)},
    {"value": b"v", "delay": 3600.0},
    {"value": b"v", "content_type": "text/plain"},
]


@pytest.mark.parametrize("message", PLAIN, ids=str)
def test_both_ways_store_the_same_batch(
    message: dict[str, Any],
    stand_in: StandIn,
    client: quivermq.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.produce("t", b"first")
    with only_straight(monkeypatch):
        assert client.produce("t", **message) == ("t", 0, 1)
    with monkeypatch.context() as patched:
        patched.setattr(LoneProducer, "produce", lambda *_: None)
        assert client.produce("t", **message) == ("t", 0, 2)
    _, straight, general = stand_in.log().frames
    assert bytes(straight.body) == bytes(general.body)
    moved = straight.header._replace(base_offset=2, index=3, sequence=2)  # type: ignore[arg-type]
    assert moved == general.header
    assert stand_in.count("new_producer") == 1


@pytest.mark.parametrize("message", PLAIN, ids=str)
def test_an_event_loop_stores_the_same_batch(
    message: dict[str, Any], stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def produce() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            await client.produce("t", b"first")
            with only_straight(monkeypatch):
                assert await client.produce("t", **message) == ("t", 0, 1)
            with monkeypatch.context() as patched:
                patched.setattr(LoneProducer, "produce_on_loop", nothing)
                assert await client.produce("t", **message) == ("t", 0, 2)

    async def nothing(*_: object) -> None:
        pass

    asyncio.run(produce())
    _, straight, general = stand_in.log().frames
    assert bytes(straight.body) == bytes(general.body)
    moved = straight.header._replace(base_offset=2, index=3, sequence=2)  # type: ignore[arg-type]
    assert moved == general.header
    assert stand_in.count("new_producer") == 1


@pytest.mark.parametrize(
    "troubles",
    [
        [DROP],
        [STORE_AND_DROP],
        [DROP, STORE_AND_DROP, NotLeader("?"), STORE_AND_DROP],
        [NotLeader("not yet")],
        [Overloaded("busy")],
    ],
    ids=str,
)
def test_on_an_event_loop_the_general_way_goes_on_with_what_failed(
    troubles: list[Action], stand_in: StandIn
) -> None:
    async def produce() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            await client.produce("t", b"first")
            stand_in.script("produce", *troubles)
            assert (await client.produce("t", b"second")).offset == 1
            assert (await client.produce("t", b"third")).offset == 2

    asyncio.run(produce())
    assert stand_in.log().values == [b"first", b"second", b"third"]


def test_numbers_of_a_call_that_was_cancelled_are_not_used_again(stand_in: StandIn) -> None:
    async def produce() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            await client.produce("t", b"first")
            stand_in.script("produce", HANG)
            call = asyncio.create_task(client.produce("t", b"cancelled"))
            while stand_in.count("produce") < 2:  # noqa: ASYNC110  (it is a thread)
                await asyncio.sleep(0.001)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await client.produce("t", b"last")).offset == 1

    asyncio.run(produce())
    assert stand_in.log().values == [b"first", b"last"]
    assert stand_in.count("new_producer") == 2


@pytest.mark.parametrize("message", OTHERS, ids=",".join)
def test_what_has_more_than_a_small_value_goes_the_general_way(
    message: dict[str, Any],
    stand_in: StandIn,
    client: quivermq.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.produce("t", b"first")
    with only_straight(monkeypatch), pytest.raises(AssertionError, match="general way"):
        client.produce("t", **message)
    assert client.produce("t", **message).offset == 1
    assert client.produce("t", b"last").offset == 2
    assert [frame.header.sequence for frame in stand_in.log().frames] == [0, 1, 2]


def test_values_up_to_the_limit_of_the_broker_go_the_straight_way(
    stand_in: StandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce("t", b"first")
    limits = Limits(message_bytes_max=1_000)
    client._core.router.limits = limits
    most = lone_bytes_max(limits)
    with only_straight(monkeypatch):
        client.produce("t", b"x" * most)
        with pytest.raises(AssertionError, match="general way"):
            client.produce("t", b"x" * (most + 1))
        for key_bytes in (1, 8, most - KEYED_BYTES):
            client.produce("t", b"x" * (most - KEYED_BYTES - key_bytes), key=b"k" * key_bytes)
    sizes = [frame.header.body_bytes for frame in stand_in.log().frames[1:]]
    assert len(sizes) == 4
    assert max(sizes) <= 1_000


def test_numbers_of_every_length_travel(
    stand_in: StandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce("t", b"first")
    with only_straight(monkeypatch):
        assert [client.produce("t", b"v").offset for _ in range(200)] == list(range(1, 201))


@pytest.mark.parametrize("priority", [8, -1, True, 1.0, None])
def test_a_priority_that_is_none_is_refused_and_leaves_no_gap(
    priority: Any, stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")
    with pytest.raises(InvalidRequest, match="priority"):
        client.produce("t", b"bad", priority=priority)
    client.produce("t", b"b")
    assert [frame.header.sequence for frame in stand_in.log().frames] == [0, 1]
    assert stand_in.count("new_producer") == 1


@pytest.mark.parametrize("partition", [-1, 1, True, 0.0])
def test_a_partition_that_is_none_is_refused(
    partition: Any, stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"a")
    with pytest.raises(InvalidRequest, match="partitions 0 to 0"):
        client.produce("t", b"b", partition=partition)
    assert stand_in.log().values == [b"a"]


@pytest.mark.parametrize(
    "script",
    [
        [STORE_AND_DROP],
        [DROP, DROP, STORE_AND_DROP],
        [NotLeader("?"), Overloaded("busy")],
        [OutOfSequence("?", expected=0)],
        [lambda _: proto.Response(produced=proto.Produced()), STORE_AND_DROP],
        [lambda _: proto.Response(done=proto.Done())],
    ],
)
def test_the_general_way_goes_on_with_a_first_attempt_that_failed(
    script: list[Action],
    stand_in: StandIn,
    client: quivermq.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.produce("t", b"a")
    stand_in.script("produce", *script)
    with only_straight(monkeypatch):
        assert client.produce("t", b"b").offset == 1
    assert client.produce("t", b"c").offset == 2
    assert stand_in.log().values == [b"a", b"b", b"c"]
    assert [frame.header.sequence for frame in stand_in.log().frames] == [0, 1, 2]
    assert len({frame.header.producer_id for frame in stand_in.log().frames}) == 1


@pytest.mark.parametrize("error", [InvalidRequest("no"), StorageFailed("fsync failed")])
def test_a_refusal_is_raised_as_it_is(
    error: QuiverError, stand_in: StandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce("t", b"a")
    stand_in.script("produce", error)
    with only_straight(monkeypatch), pytest.raises(type(error), match=str(error)):
        client.produce("t", b"b")
    client.produce("t", b"c")
    assert stand_in.log().values == [b"a", b"c"]
    first, second = (frame.header.producer_id for frame in stand_in.log().frames)
    # A failed disk leaves doubt: the number may be taken.
    assert (first == second) == isinstance(error, InvalidRequest)


def test_what_is_idle_is_taken_and_given_back(
    stand_in: StandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce("t", b"first")
    with only_straight(monkeypatch):
        for _ in range(session_pool.SESSIONS_MAX + 10):
            client.produce("t", b"v")
    assert len(stand_in.hellos) == 1
    assert stand_in.count("new_producer") == 1


def test_calls_at_once_have_sessions_of_their_own(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"first")
    meet = threading.Barrier(8)

    def work() -> None:
        for _ in range(5):
            meet.wait(30)
            client.produce("t", b"v")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stand_in.log().values) == 41
    numbers: dict[int, list[int]] = {}
    for frame in stand_in.log().frames:
        numbers.setdefault(frame.header.producer_id, []).append(frame.header.sequence)
    assert all(found == list(range(len(found))) for found in numbers.values())


def test_a_leader_that_is_avoided_is_left_to_the_general_way(
    stand_in: StandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce("t", b"a")
    known = client._core.router.map
    known.avoid(stand_in.address, time.monotonic())
    with only_straight(monkeypatch), pytest.raises(AssertionError, match="general way"):
        client.produce("t", b"b")
    known.stop_avoiding(stand_in.address)
    with only_straight(monkeypatch):
        client.produce("t", b"b")


def test_a_client_that_is_closed_says_so(stand_in: StandIn) -> None:
    client = quivermq.connect(stand_in.address)
    client.produce("t", b"a")
    client.close()
    with pytest.raises(InvalidRequest, match="the client is closed"):
        client.produce("t", b"b")


def test_a_topic_that_was_created_again_gets_numbers_from_the_start(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    for _ in range(2):
        client.produce("t", b"a")
    stand_in.topic_id = b"topic id two"
    stand_in.logs.clear()
    client._core.router.map.forget("t")
    client.produce("t", b"b")
    asked: list[bytes] = []

    def refuse(request: proto.Request) -> proto.Response:
        asked.append(request.produce.topic_id)
        return proto.Response(error=proto.Error(code="Overloaded", retriable=True))

    stand_in.script("produce", refuse)
    client.produce("t", b"c")
    assert [frame.header.sequence for frame in stand_in.log().frames] == [0, 1]
    assert asked == [b"topic id two"]
