"""Polling and settling, against stand-ins: what is asked of whom, and what comes of the answers."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared import poll as poll_module
from quivermq.client.shared import prefetch
from quivermq.client.shared import settle as settle_module
from quivermq.client.shared.lone_settler import LoneSettler
from quivermq.errors import Forbidden, InvalidRequest, LeaseLost, NotLeader, TopicNotFound
from quivermq.wire import proto
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import DROP, STORE_AND_DROP


@pytest.fixture
def stand_in() -> Iterator[GroupStandIn]:
    with GroupStandIn() as started:
        yield started


@pytest.fixture
def pair() -> Iterator[tuple[GroupStandIn, GroupStandIn]]:
    """Two brokers: the first leads partition 0, the second partitions 1 and 2."""
    with (
        GroupStandIn(topics={"t": 3}, node=1) as one,
        GroupStandIn(topics={"t": 3}, node=2) as two,
    ):
        for each, other in ((one, two), (two, one)):
            each.addresses[other.node] = other.address
            each.leaders.update({0: 1, 1: 2, 2: 2})
        yield one, two


@pytest.fixture
def both(pair: tuple[GroupStandIn, GroupStandIn]) -> Iterator[quivermq.Client]:
    with quivermq.connect(pair[0].address, timeout=5.0) as connected:
        yield connected


def spans(settlement: proto.Settlement) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in settlement.intervals]


both_ways = pytest.mark.usefixtures("way")


@pytest.fixture(params=["straight", "general"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acknowledgements go the straight way where they can, or none does."""
    if request.param == "general":
        monkeypatch.setattr(LoneSettler, "settle", lambda *_: None)


def test_a_message_has_all_that_was_produced(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v", key=b"k", headers={"h": b"1"}, priority=3)
    (message,) = client.poll("t", group="g")
    assert isinstance(message, quivermq.LeasedMessage)
    assert message[:6] == ("t", 0, 0, b"k", b"v", {"h": b"1"})
    assert message.priority == 3
    assert message.delivery_count == 1
    assert message.time.year >= 2023
    assert "t/0@0" in repr(message)


def test_what_is_leased_comes_from_several_batches_with_gaps(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"%d" % n for n in range(10)])
    client.produce_many("t", [b"%d" % n for n in range(10, 20)])
    stand_in.lot().done.update({0, 3, 4, 9, 10, 15})
    stand_in.lot().failures[5] = 2
    found = client.poll("t", group="g", max_messages=9)
    wanted = [1, 2, 5, 6, 7, 8, 11, 12, 13]
    assert [message.offset for message in found] == wanted
    assert [message.value for message in found] == [b"%d" % n for n in wanted]
    assert [message.delivery_count for message in found] == [1, 1, 3, 1, 1, 1, 1, 1, 1]


@both_ways
def test_settling_one_message_names_only_it(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 5)
    one, two, three, four, _ = client.poll("t", group="g")
    one.ack()
    two.nack(delay=1.5)
    three.reject("bad")
    four.extend(60)
    settlements = [settle.settlements[0] for settle in stand_in.settles]
    assert [settlement.outcome for settlement in settlements] == [
        proto.ACK, proto.NACK, proto.REJECT, proto.EXTEND,
    ]  # fmt: skip
    assert [spans(settlement) for settlement in settlements] == [[(0, 1)], [(1, 2)], [(2, 3)], []]
    assert settlements[1].delay_ms == 1500
    assert settlements[2].reason == "bad"
    assert settlements[3].visibility_ms == 60_000
    assert stand_in.lot().done == {0}
    assert stand_in.lot().dead == {2: "bad"}


def test_a_nack_without_a_delay_leaves_it_to_the_topic(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    client.nack(client.poll("t", group="g"))
    assert not stand_in.settles[0].settlements[0].HasField("delay_ms")
    (again,) = client.poll("t", group="g")
    assert again.delivery_count == 2


@both_ways
def test_many_messages_are_settled_in_one_request_as_intervals(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 10)
    first = client.poll("t", group="g", max_messages=4)
    second = client.poll("t", group="g")
    client.ack([*second[3:], *first[2:], first[0], first[0]])
    (settle,) = stand_in.settles
    assert [spans(settlement) for settlement in settle.settlements] == [[(7, 10)], [(0, 1), (2, 4)]]


def test_releasing_is_not_a_failure(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    client.produce_many("t", [b"v"] * 3)
    client.release(client.poll("t", group="g"))
    assert [message.delivery_count for message in client.poll("t", group="g")] == [1, 1, 1]


def test_with_ack_auto_there_is_nothing_to_acknowledge(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    found = client.poll("t", group="g", ack="auto")
    found[0].ack()
    client.ack(found)
    assert stand_in.count("settle") == 0
    with pytest.raises(InvalidRequest, match='ack="manual"'):
        found[0].nack()


@both_ways
def test_lost_leases_are_named_after_the_rest_was_settled(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 4)
    lost = client.poll("t", group="g", max_messages=3)
    stand_in.lose_leases()
    kept = client.poll("t", group="g")
    with pytest.raises(LeaseLost, match=r"t/0 offset 0, offset 1, offset 2"):
        client.ack([*lost, *kept])
    assert stand_in.lot().done == {3}
    with pytest.raises(LeaseLost, match="as a whole"):
        lost[0].extend(10)


def test_lists_that_replace_each_other_wake_no_collector(real: quivermq.Client, topic: str) -> None:
    real.produce_many(topic, [b"x"] * 50_000)
    thresholds, woken = gc.get_threshold(), []

    def note(phase: str, _: object) -> None:
        if phase == "start" and threading.current_thread() is threading.main_thread():
            woken.append(phase)

    gc.set_threshold(700, 10, 10)  # as programs have it
    gc.callbacks.append(note)
    try:
        messages = real.poll(topic, "g", 1_000)
        for _ in range(40):
            real.ack(messages)
            messages = real.poll(topic, "g", 1_000)
            assert len(messages) == 1_000
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)
    # Other threads of this process make objects too.
    assert len(woken) < 20


def test_polling_waits_no_longer_than_wait(client: quivermq.Client) -> None:
    assert client.poll("t", group="g", wait=0.05) == []


def test_a_lost_answer_is_asked_for_again(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    client.produce("t", b"v")
    stand_in.script("poll", DROP, NotLeader("not yet"))
    assert len(client.poll("t", group="g")) == 1
    stand_in.script("settle", NotLeader("not yet"), DROP)
    client.ack([])
    assert stand_in.count("settle") == 0


def test_what_a_lost_answer_leased_is_given_back_at_the_end(stand_in: GroupStandIn) -> None:
    with quivermq.connect(stand_in.address, timeout=5.0) as client:
        client.produce("t", b"v")
        stand_in.script("poll", STORE_AND_DROP)
        assert client.poll("t", group="g", wait=0.1) == [], "it is leased, and nobody has it"
        assert stand_in.lot().leases
    assert not stand_in.lot().leases


def test_a_group_begins_at_all_leaders_with_its_first_poll(
    both: quivermq.Client, pair: tuple[GroupStandIn, GroupStandIn]
) -> None:
    both.produce("t", b"v", partition=0)
    both.produce("t", b"v", partition=1)
    pair[1].script("await_ready", NotLeader("not yet"))
    assert len(both.poll("t", group="g", start="latest")) == 1
    assert [each.count("await_ready") for each in pair] == [1, 1]
    both.poll("t", group="g", start="latest")
    assert [each.count("await_ready") for each in pair] == [2, 2], "one had not heard of it"
    both.produce("t", b"v", partition=0)
    both.poll("t", group="g", start="latest")
    assert [each.count("await_ready") for each in pair] == [2, 2]


@both_ways
def test_settling_is_tried_again(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    client.produce("t", b"v")
    found = client.poll("t", group="g")
    stand_in.script("settle", NotLeader("not yet"), DROP)
    client.ack(found)
    assert stand_in.lot().done == {0}


@both_ways
def test_leases_of_a_topic_that_was_created_again_are_gone(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    found = client.poll("t", group="g")
    stand_in.topic_id = b"another"
    stand_in.script("settle", TopicNotFound("no such topic"))
    with pytest.raises(TopicNotFound, match="created again"):
        client.ack(found)


def test_several_leaders_are_polled_in_turn(
    both: quivermq.Client, pair: tuple[GroupStandIn, GroupStandIn]
) -> None:
    for partition in range(3):
        both.produce_many("t", [b"v"] * 2, partition=partition)
    places: list[tuple[int, int]] = []
    while found := both.poll("t", group="g", wait=0.05):
        places += [(message.partition, message.offset) for message in found]
    assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    firsts = {tuple(poll.partitions) for poll in pair[1].polls}
    assert firsts == {(1, 2), (2, 1)}


def test_the_leader_that_is_ready_first_is_polled(
    both: quivermq.Client, pair: tuple[GroupStandIn, GroupStandIn]
) -> None:
    assert both.poll("t", group="g", wait=0.01) == []

    def later() -> None:
        with quivermq.connect(pair[0].address) as other:
            pair[0].until("await_ready", 3)
            other.produce("t", b"v", partition=2)

    thread = threading.Thread(target=later)
    thread.start()
    (message,) = both.poll("t", group="g", wait=10)
    thread.join()
    assert message.partition == 2


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_a_partition_that_is_led_elsewhere_is_asked_for_at_once(
    both: quivermq.Client,
    pair: tuple[GroupStandIn, GroupStandIn],
    monkeypatch: pytest.MonkeyPatch,
    is_subscribed: bool,
) -> None:
    monkeypatch.setattr(poll_module, "ROUTE_SECONDS_MAX", 1e6)
    monkeypatch.setattr(prefetch, "REFRESH_SECONDS", 1e6)
    with both.subscribe("t", group="g") as subscription:
        pair[1].until("poll", 1)
        assert both.poll("t", group="other", wait=0.01) == []
        for each in pair:
            each.leaders[1] = 1
        with quivermq.connect(pair[0].address) as other:
            other.produce("t", b"v", partition=1)
        found = [next(subscription)] if is_subscribed else both.poll("t", group="other", wait=9)
    assert [message.partition for message in found] == [1]


@both_ways
def test_one_settle_for_each_broker(
    both: quivermq.Client, pair: tuple[GroupStandIn, GroupStandIn]
) -> None:
    for partition in range(3):
        both.produce_many("t", [b"v"] * 2, partition=partition)
    found = []
    while len(found) < 6:
        found += both.poll("t", group="g")
    both.ack(found)
    assert [each.count("settle") for each in pair] == [1, 1]
    assert [pair[partition > 0].lot(partition).done for partition in range(3)] == [{0, 1}] * 3


def test_a_leader_that_is_gone_does_not_keep_the_others_from_delivering(
    both: quivermq.Client, pair: tuple[GroupStandIn, GroupStandIn]
) -> None:
    both.produce("t", b"v", partition=1)
    both.produce("t", b"v", partition=0)
    pair[0].script("poll", *[NotLeader("no leader")] * 100)
    (message,) = both.poll("t", group="g", wait=5)
    assert message.partition == 1
    assert both.poll("t", group="g", wait=0.1) == []


@both_ways
def test_closing_gives_back_what_is_not_settled(stand_in: GroupStandIn) -> None:
    with quivermq.connect(stand_in.address) as client:
        client.produce_many("t", [b"v"] * 3)
        client.poll("t", group="g")[0].ack()
    (release,) = stand_in.releases
    assert list(release.partitions) == [0]
    assert release.consumer == stand_in.polls[0].consumer
    with quivermq.connect(stand_in.address) as client:
        found = client.poll("t", group="g")
        assert [message.delivery_count for message in found] == [1, 1]
        client.ack(found)
    assert len(stand_in.releases) == 1


@both_ways
def test_what_is_acknowledged_twice_does_not_keep_the_rest_from_going_back(
    stand_in: GroupStandIn,
) -> None:
    with quivermq.connect(stand_in.address) as client:
        client.produce_many("t", [b"v"] * 2)
        first, _ = client.poll("t", group="g")
        first.ack()
        first.extend(30)
        with suppress(LeaseLost):
            first.ack()
    assert not any(stand_in.lot().leases.values())


def test_what_is_too_much_for_one_request_is_settled_in_several(
    client: quivermq.Client, stand_in: GroupStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_module, "PORTION_BYTES", 300)
    monkeypatch.setattr(settle_module, "INTERVALS_MAX", 4)
    monkeypatch.setattr(LoneSettler, "settle", lambda *_: None)
    client.produce_many("t", [b"v"] * 20)
    batch = client.poll_arrow("t", group="g")
    batch.nack([number % 2 == 0 for number in range(20)], delay=0)
    batch.ack()
    assert stand_in.lot().done == set(range(1, 20, 2))
    assert stand_in.lot().failures == dict.fromkeys(range(0, 20, 2), 1)
    assert (
        max(len(settlement.intervals) for s in stand_in.settles for settlement in s.settlements)
        == 4
    )


def test_what_cannot_be_settled_does_not_keep_the_others_from_it(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 2)
    one = client.poll("t", group="g")
    other = client.poll("t", group="other")
    stand_in.script("settle", Forbidden("not you"))
    with pytest.raises(Forbidden):
        client.ack(one + other)
    assert (stand_in.lot().done, stand_in.lot(group="other").done) == (set(), {0, 1})


def test_a_lost_lease_is_raised_though_the_first_attempt_to_extend_it_is_in_doubt(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    (message,) = client.poll("t", group="g")
    stand_in.lose_leases()
    stand_in.script("settle", DROP)
    with pytest.raises(LeaseLost):
        message.extend(30)


@pytest.mark.parametrize("how", ["ack", "nack", "reject"])
def test_nothing_is_said_to_be_settled_because_an_attempt_at_it_is_in_doubt(
    client: quivermq.Client, stand_in: GroupStandIn, how: str
) -> None:
    client.produce("t", b"v")
    (message,) = client.poll("t", group="g")
    stand_in.lose_leases()
    stand_in.script("settle", DROP)
    with pytest.raises(LeaseLost):
        getattr(message, how)()


def test_what_is_released_is_free_whichever_attempt_freed_it(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    found = client.poll("t", group="g")
    stand_in.lose_leases()
    stand_in.script("settle", DROP)
    client.release(found)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"group": ""}, "a group has a name"),
        ({"group": "\ud800"}, "the name of a group"),
        ({"group": b"g"}, "a group has a name"),
        ({"group": "_dlq"}, "begin with _"),
        ({"max_messages": 0}, "max_messages"),
        ({"max_messages": 1 << 40}, "max_messages"),
        ({"wait": -1}, "wait"),
        ({"visibility": 0}, "visibility"),
        ({"visibility": 1e9}, "visibility"),
        ({"ack": "maybe"}, "ack must be 'manual' or 'auto'"),
        ({"start": "never"}, "start must be"),
    ],
)
def test_nonsense_is_refused(client: quivermq.Client, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        client.poll("t", **{"group": "g", **wrong})  # type: ignore[arg-type]


def test_what_equals_a_number_is_refused_all_the_same(client: quivermq.Client) -> None:
    # What a loop asks for again and again is checked once.
    for _ in range(2):
        assert client.poll("t", "g", 1, wait=0) == []
    with pytest.raises(InvalidRequest, match="max_messages"):
        client.poll("t", "g", True, wait=0)
    with pytest.raises(InvalidRequest, match="wait"):
        client.poll("t", "g", 1, wait=False)


def test_another_poll_asks_for_other_things(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    for options in ({}, {"visibility": 7.0}, {"max_messages": 3}, {"start": "latest"}):
        client.poll("t", **({"group": "g", "wait": 0.0} | options))  # type: ignore[arg-type]
    asked = [(each.visibility_ms, each.messages_max, each.start_latest) for each in stand_in.polls]
    assert asked == [
        (30_000, 100, False),
        (7_000, 100, False),
        (30_000, 3, False),
        (30_000, 100, True),
    ]


def test_a_table_has_the_columns_of_reading_and_more(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"%d" % n for n in range(10)], priority=2)
    stand_in.lot().done.update({0, 4})
    stand_in.lot().failures[5] = 1
    batch = client.poll_arrow("t", group="g", max_messages=6)
    table = batch.table
    (read,) = client.read("t").batches()
    assert table.schema.names == [*read.schema.names, "partition", "delivery_count"]
    assert table["offset"].to_pylist() == [1, 2, 3, 5, 6, 7]
    assert table["value"].to_pylist() == [b"1", b"2", b"3", b"5", b"6", b"7"]
    assert table["delivery_count"].to_pylist() == [1, 1, 1, 2, 1, 1]
    assert set(table["partition"].to_pylist()) == {0}
    assert len(batch) == 6


@both_ways
def test_a_table_is_settled_by_masks_and_nothing_twice(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"%d" % n for n in range(8)])
    batch = client.poll_arrow("t", group="g")
    batch.reject([True, *[False] * 7], reason="bad")
    batch.nack(pa.array([True, True, None, False, False, False, False, True]), delay=0)
    batch.extend(60)
    batch.ack()
    batch.ack()
    outcomes = [
        (each.settlements[0].outcome, spans(each.settlements[0])) for each in stand_in.settles
    ]
    assert outcomes == [
        (proto.REJECT, [(0, 1)]),
        (proto.NACK, [(1, 2), (7, 8)]),
        (proto.EXTEND, []),
        (proto.ACK, [(2, 7)]),
    ]


@both_ways
def test_a_table_that_could_not_be_settled_can_be_settled_again(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    batch = client.poll_arrow("t", group="g")
    stand_in.script("settle", Forbidden("not you"))
    with pytest.raises(Forbidden):
        batch.ack()
    batch.ack()
    assert stand_in.lot().done == {0, 1, 2}
    stand_in.lot().done.clear()
    lost = client.poll_arrow("t", group="g")
    stand_in.lose_leases()
    with pytest.raises(LeaseLost):
        lost.ack([True, False, False])
    with pytest.raises(LeaseLost, match="offset 1, offset 2"):
        lost.ack()


def test_what_a_mask_says_nothing_about_is_left(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"v"] * 3)
    batch = client.poll_arrow("t", group="g")
    batch.ack([None] * 3)
    batch.ack(pa.chunked_array([[True], [None, False]]))
    assert stand_in.lot().done == {0}


def test_a_reason_that_cannot_travel_is_made_to(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce("t", b"v")
    client.poll("t", group="g")[0].reject("no file \udcff")
    assert stand_in.lot().dead == {0: "no file ?"}


def test_one_message_is_settled_like_a_list_of_one(
    client: quivermq.Client, stand_in: GroupStandIn
) -> None:
    client.produce_many("t", [b"a", b"b"])
    first, second = client.poll("t", group="g")
    client.ack(first)
    client.reject(second, "unreadable")
    assert (stand_in.lot().done, stand_in.lot().dead) == ({0}, {1: "unreadable"})


def test_what_was_not_polled_cannot_be_settled(client: quivermq.Client) -> None:
    for nonsense in (5, None, [5], ["message"]):
        with pytest.raises(InvalidRequest, match="not messages that were polled"):
            client.ack(nonsense)  # type: ignore[arg-type]


def test_an_empty_table_can_be_settled_too(client: quivermq.Client, stand_in: GroupStandIn) -> None:
    batch = client.poll_arrow("t", group="g", wait=0)
    assert batch.table.num_rows == 0
    batch.ack()
    assert stand_in.count("settle") == 0


@pytest.mark.parametrize(
    "mask",
    [
        [True],
        ["yes", "no"],
        [1, 2],
        [0.5, 0.5],
        [[True], [True]],
        pa.array([1, 2]),
        memoryview(b"ab"),
        iter([True, True]),
        7,
    ],
)
def test_a_wrong_mask_is_refused(client: quivermq.Client, mask: object) -> None:
    client.produce_many("t", [b"v"] * 2)
    with pytest.raises(InvalidRequest, match="mask"):
        client.poll_arrow("t", group="g").ack(mask)


def test_the_same_on_an_event_loop(pair: tuple[GroupStandIn, GroupStandIn]) -> None:
    async def work() -> None:
        async with quivermq.aio.connect(pair[0].address, timeout=5.0) as client:
            assert await client.poll("t", group="g", wait=0.05) == []
            for partition in range(3):
                await client.produce_many("t", [b"v"] * 3, partition=partition)
            found = []
            while len(found) < 9:
                found += await client.poll("t", group="g")
            await found[0].extend(5)
            await found[0].ack()
            await found[1].nack()
            await found[2].reject("bad")
            await client.ack(found[3:])
            batch = await client.poll_arrow("t", group="g", wait=5)
            assert batch.table["delivery_count"].to_pylist() == [2]
            await batch.nack()
            await client.release(await client.poll("t", group="g"))

    asyncio.run(work())
    assert sum(len(each.lot(partition).done) for each in pair for partition in range(3)) == 7


def test_the_most_urgent_messages_come_first_in_a_poll(real: quivermq.Client) -> None:
    real.create_topic("urgent", partitions=2)
    for priority in (0, 7, 3):
        for partition in (0, 1):
            value = f"{priority}/{partition}".encode()
            real.produce("urgent", value, priority=priority, partition=partition)
    found = real.poll("urgent", "g", 10)
    assert [message.priority for message in found] == [7, 7, 3, 3, 0, 0]
