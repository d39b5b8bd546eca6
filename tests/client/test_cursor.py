"""Reading: from anywhere to anywhere, ahead of the user, through trouble, without gap or repeat."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

import quivermq
import quivermq.aio
from quivermq.client.cursor import parse_place
from quivermq.errors import InvalidRequest, NotLeader, OffsetOutOfRange, Overloaded, Timeout
from quivermq.wire import proto
from tests.client.stand_in import DROP, HANG, StandIn

VALUES = [b"%04d" % number for number in range(1_000)]


@pytest.fixture
def filled(stand_in: StandIn, client: quivermq.Client) -> quivermq.Client:
    """A thousand messages in batches of a hundred."""
    for start in range(0, 1_000, 100):
        client.produce_many("t", VALUES[start : start + 100])
    return client


@pytest.mark.parametrize(
    ("start", "stop", "first", "end"),
    [
        ("earliest", None, 0, 1000),
        (0, 1000, 0, 1000),
        (150, 250, 150, 250),
        (299, 301, 299, 301),
        (999, None, 999, 1000),
        ("earliest", 5_000, 0, 1000),
        ("latest", None, 0, 0),
        (1000, None, 0, 0),
        (500, 500, 0, 0),
        (500, 10, 0, 0),
        ("earliest", "latest", 0, 1000),
    ],
)
def test_messages_and_batches_are_cut_to_what_was_asked_for(
    start: int | str, stop: int | str | None, first: int, end: int, filled: quivermq.Client
) -> None:
    messages = list(filled.read("t", start=start, stop=stop))
    assert [message.value for message in messages] == VALUES[first:end]
    assert [message.offset for message in messages] == list(range(first, end))
    batches = list(filled.read("t", start=start, stop=stop).batches())
    assert [v for batch in batches for v in batch.column("value").to_pylist()] == VALUES[first:end]
    assert [v for batch in batches for v in batch.column("offset").to_pylist()] == list(
        range(first, end)
    )


@pytest.mark.parametrize(
    "script",
    [[DROP], ["store", DROP, DROP], [Overloaded("busy"), "store", NotLeader("?"), "store", DROP]],
)
def test_trouble_on_the_way_makes_no_gap_and_no_repeat(
    script: list[str], stand_in: StandIn, filled: quivermq.Client
) -> None:
    stand_in.script("fetch", *script)
    assert [message.value for message in filled.read("t")] == VALUES


def test_the_next_fetch_is_under_way_while_the_user_works(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    reader = filled.read("t")
    assert next(reader).offset == 0
    stand_in.until("fetch", 2)
    assert stand_in.count("fetch") == 2
    reader.close()
    assert next(reader, None) is not None  # what it has at hand
    assert len(list(reader)) < 300


def test_what_is_written_after_reading_began_is_not_read(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    reader = filled.read("t")
    next(reader)
    filled.produce("t", b"later")
    assert sum(1 for _ in reader) == 999


def test_following_waits_for_what_comes(stand_in: StandIn, filled: quivermq.Client) -> None:
    found: list[bytes] = []

    def follow() -> None:
        with filled.read("t", start=990, follow=True, stop=1_010) as reader:
            found.extend(message.value for message in reader)

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(10):
        filled.produce("t", b"new %d" % number)
    thread.join(20)
    assert found == [*VALUES[990:], *(b"new %d" % number for number in range(10))]


def test_a_follower_goes_on_after_the_broker_was_away(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    with filled.read("t", follow=True) as reader:
        assert next(reader).offset == 0
        stand_in.drop_all()
        assert [next(reader).offset for _ in range(999)] == list(range(1, 1000))


def test_messages_that_should_be_there_and_never_come_are_a_timeout(stand_in: StandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=1.0) as client:
        client.produce("t", b"v")
        reader = client.read("t")
        stand_in.logs.clear()  # as a follower that lags behind for ever
        stand_in.script(
            "find_offset",
            lambda _: found_at(1),
            lambda _: found_at(0),
        )
        with pytest.raises(Timeout, match="none came"):
            next(reader)


def found_at(offset: int) -> proto.Response:
    return proto.Response(offset_found=proto.OffsetFound(offset=offset))


def test_an_offset_beyond_the_end_is_out_of_range(filled: quivermq.Client) -> None:
    with pytest.raises(OffsetOutOfRange) as raised:
        list(filled.read("t", start=5_000))
    assert raised.value.end == 1_000


def test_what_retention_dropped_is_out_of_range(stand_in: StandIn, filled: quivermq.Client) -> None:
    stand_in.script("fetch", OffsetOutOfRange("gone", earliest=500, end=1000))
    with pytest.raises(OffsetOutOfRange) as raised:
        list(filled.read("t", start=10))
    assert raised.value.earliest == 500


def test_the_earliest_is_whatever_is_kept_when_reading_begins(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    stand_in.script("fetch", OffsetOutOfRange("gone", earliest=500, end=1000))
    assert [message.offset for message in filled.read("t")] == list(range(500, 1000))


def test_a_reader_that_fell_behind_retention_hears_of_it(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    stand_in.script("fetch", "store", OffsetOutOfRange("gone", earliest=500, end=1000))
    with pytest.raises(OffsetOutOfRange):
        list(filled.read("t"))


def test_a_follower_may_answer_if_that_is_allowed() -> None:
    with StandIn(node=1) as leader, StandIn(node=2) as follower:
        for one, other, node in ((leader, follower, 2), (follower, leader, 1)):
            one.addresses = {node: other.address}
        follower.leaders, follower.logs = {0: 1}, leader.logs
        with quivermq.connect(leader.address) as client:
            client.produce_many("t", VALUES)
            assert len(list(client.read("t"))) == 1_000
            assert follower.count("fetch") == 0
            assert len(list(client.read("t", follower_ok=True))) == 1_000
            assert follower.count("fetch") > 0


def test_a_follower_that_lacks_what_is_known_to_exist_is_asked_once() -> None:
    with StandIn(node=1) as leader, StandIn(node=2) as follower:
        for one, other, node in ((leader, follower, 2), (follower, leader, 1)):
            one.addresses = {node: other.address}
        follower.leaders, follower.logs = {0: 1}, leader.logs
        with quivermq.connect(leader.address) as client:
            client.produce_many("t", VALUES)
            follower.script("fetch", OffsetOutOfRange("behind", earliest=0, end=0))
            assert len(list(client.read_range("t", 0, 100, 900, follower_ok=True))) == 800
            assert follower.count("fetch") == 1


def test_a_reader_that_is_left_halfway_gives_its_connection_back(
    stand_in: StandIn, filled: quivermq.Client
) -> None:
    stand_in.script("fetch", "store", HANG)
    for message in filled.read("t"):
        assert message.offset == 0
        break
    filled.ping()


def test_messages_show_what_they_are(stand_in: StandIn, client: quivermq.Client) -> None:
    client.produce("t", b"v" * 100, key=b"k", headers={"a": b"1"}, priority=3)
    (message,) = client.read("t")
    assert (message.topic, message.partition, message.offset) == ("t", 0, 0)
    assert (message.key, message.headers, message.priority) == (b"k", {"a": b"1"}, 3)
    assert message.timestamp == 1_700_000_000_000
    assert message.time == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert repr(message).startswith("<Message t/0@0 key=b'k' b'vvv")
    assert len(repr(message)) < 100


def test_batches_have_one_schema_whatever_their_messages_have(
    stand_in: StandIn, client: quivermq.Client
) -> None:
    client.produce("t", b"plain")
    client.produce("t", b"full", key=b"k", headers={"a": b"1"}, priority=3)
    client.produce_many("t", [b"timed", b"not"], timestamps=[1_000, None])
    rows = [row for batch in client.read("t").batches() for row in batch.to_pylist()]
    taken = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert [row["offset"] for row in rows] == [0, 1, 2, 3]
    assert [row["key"] for row in rows] == [None, b"k", None, None]
    assert [row["priority"] for row in rows] == [0, 3, 0, 0]
    assert rows[1]["headers"] == [{"key": "a", "value": b"1"}]
    assert rows[0]["headers"] is None
    assert [row["timestamp"] for row in rows] == [
        taken,
        taken,
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        taken,
    ]
    assert len({batch.schema for batch in client.read("t").batches()}) == 1


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        (7, 7),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("@1700000000000", "@1700000000000"),
        (datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC), "@1700000000005"),
        ("2023-11-14T22:13:20+00:00", "@1700000000000"),
        ("2023-11-14T22:13:20Z", "@1700000000000"),
    ],
)
def test_places_are_understood(place: int | str | datetime, meant: int | str) -> None:
    assert parse_place("start", place) == meant


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2023, 11, 14, 12, 0, 0)
    assert parse_place("start", local) == parse_place("start", local.astimezone())


@pytest.mark.parametrize(
    "place", [-1, True, 1.5, "first", "@", "@-1", None, datetime(1969, 1, 1, tzinfo=UTC), 1 << 63]
)
def test_what_is_no_place_is_refused(place: object, client: quivermq.Client) -> None:
    with pytest.raises(InvalidRequest):
        client.read("t", start=place)  # type: ignore[arg-type]


def test_reading_on_an_event_loop(stand_in: StandIn, filled: quivermq.Client) -> None:
    async def read() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            stand_in.script("fetch", "store", DROP)
            assert [m.value async for m in client.read("t", start=50)] == VALUES[50:]
            rows = [b.num_rows async for b in client.read("t", start=50, stop=120).batches()]
            assert rows == [50, 20]
            async with client.read("t", start=999, follow=True) as reader:
                assert (await anext(reader)).offset == 999
                await client.produce("t", b"more")
                assert (await anext(reader)).value == b"more"

    asyncio.run(read())


def test_a_cancelled_reader_leaves_nothing_running(stand_in: StandIn) -> None:
    async def read() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            stand_in.script("fetch", *[HANG] * 5)

            async def follow() -> None:
                async for _ in client.read("t", follow=True):
                    raise AssertionError

            task = asyncio.create_task(follow())
            await asyncio.to_thread(stand_in.until, "fetch")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await client.ping()
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(read())


def test_a_cancelled_wait_for_offsets_leaves_no_request_behind(stand_in: StandIn) -> None:
    async def wait() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            stand_in.script("list_offsets", HANG)
            task = asyncio.create_task(client.await_offsets({"t": {0: 5}}, wait=20.0))
            await asyncio.to_thread(stand_in.until, "list_offsets")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(stand_in.until, "cancel")

    asyncio.run(wait())


def test_times_are_compared_at_the_broker(stand_in: StandIn, filled: quivermq.Client) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert list(filled.read("t", start=tomorrow)) == []
