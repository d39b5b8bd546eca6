"""Messages that fail too often: moved once, with their story, and back on request."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quivermq.batches import Frame, Message, Offset, Origin, encode_batch
from quivermq.errors import Timeout
from quivermq.log import STORED_LIMITS
from quivermq.node.delivery.dead_letter_batches import (
    BatchSource,
    DeadLetterBatches,
    producer_of,
)
from quivermq.node.handlers import dead_letters as handlers
from quivermq.node.handlers import fetch
from quivermq.queue import REDRIVE_GROUP, TO_GROUP, WINDOW_BATCHES, DyingMessages
from quivermq.queue.dead_letters import DeadLetterRecords
from quivermq.wire import proto
from tests.node.cluster_stage import cluster
from tests.node.consumer_stage import GROUP, Consumer, led, move_leader, refusal, values
from tests.transports.stage import PATIENT, on_loop, serving, until

DLQ = "orders.dlq"


async def dead_letters(
    consumer: Consumer, count: int, topic: str = DLQ, partition: int = 0
) -> list[Message]:
    """All dead letters, once there are so many."""
    view = consumer.server.broker.metadata

    async with asyncio.timeout(20):
        while True:
            if topic in view.view.topics:
                found = await consumer.fetch(topic, partition)
                if len(found) >= count:
                    return found
            await asyncio.sleep(0.01)


def carries(brokers_or_server: Consumer) -> int:
    return len(brokers_or_server.server.broker.consumers.dead_letters._moving)


@on_loop
async def test_a_rejected_message_moves_with_its_story(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=3)
        headers: list[dict[str, bytes]] = [{}, {"colour": b"red"}]
        await consumer.store(
            b"good", b"bad", partition=2, priority=3, keys=[b"k", None], headers=headers
        )
        good, bad = await consumer.poll(partitions=[2])
        assert await consumer.reject([bad], "it is " + "b" * 2_000) == []
        (letter,) = await dead_letters(consumer, 1, partition=2)
        assert (letter.key, letter.value, letter.priority) == (None, b"bad", 3)
        story = dict(letter.headers)
        assert int(story.pop("quiver-time")) > 0
        assert story.pop("quiver-reason").startswith(b"it is bbb")
        assert len(letter.headers["quiver-reason"]) == 1_000
        assert story == {
            "colour": b"red",
            "quiver-group": b"workers",
            "quiver-topic": b"orders",
            "quiver-partition": b"2",
            "quiver-offset": b"1",
            "quiver-deliveries": b"1",
        }
        await until(lambda: not carries(consumer))
        counters = await consumer.describe(partition=2)
        assert (counters.dead, counters.in_flight, counters.floor) == (1, 1, 0)
        await consumer.ack([good])
        assert (await consumer.describe(partition=2)).floor == 2
        assert server.broker.counters.shares["orders", 2, "workers"].dead_lettered == 1
        assert len(server.broker.metadata.view.topics[DLQ].partitions) == 3
        await consumer.close()


@on_loop
async def test_a_message_that_always_fails_moves_after_its_last_delivery(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(
            max_deliveries=3, dead_letter="failures", retry_base_ms=10, retry_longest_ms=20
        )
        await consumer.store(b"poison")
        deliveries = []
        for attempt in range(3):
            (got,) = await consumer.poll(wait_ms=10_000, visibility_ms=40)
            deliveries.append(got.delivery)
            if attempt:
                await consumer.nack([got])
            # The first one just runs out.
        assert deliveries == [1, 2, 3]
        (letter,) = await dead_letters(consumer, 1, topic="failures")
        assert letter.value == b"poison"
        assert letter.headers["quiver-deliveries"] == b"3"
        assert b"3 times" in letter.headers["quiver-reason"]
        assert await consumer.poll() == []
        await consumer.close()


@on_loop
async def test_many_moves_keep_order_and_come_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        for start in range(0, 60, 20):
            await consumer.store(
                *[b"%d" % number for number in range(start, start + 20)], priority=start // 20
            )
        got = sorted(await consumer.poll(), key=lambda one: one.message.offset)
        await consumer.reject(got[:25], "first")
        await consumer.reject(got[25:], "second")
        letters = await dead_letters(consumer, 60)
        assert [letter.value for letter in letters] == [b"%d" % number for number in range(60)]
        assert [letter.priority for letter in letters] == [0] * 20 + [1] * 20 + [2] * 20
        await consumer.until(lambda counters: counters.floor == 60)
        assert len(await consumer.fetch(DLQ)) == 60
        await consumer.close()


def test_the_letters_of_a_record_are_numbered_by_their_place_in_it() -> None:
    """Whatever batches the record spans: a repeat is known by its number."""
    source = BatchSource(bytes(16), "orders", 0, GROUP)
    record = DyingMessages(number=70, start=13, end=18, failures=1, reason="bad", at_ms=1)
    letters = DeadLetterBatches(source, record, DLQ, epoch=0, limits=STORED_LIMITS)
    frames = []
    for offset in (10, 15):
        frame = encode_batch([b"%d" % number for number in range(offset, offset + 5)])
        frames.append(Frame(frame.header._replace(base_offset=Offset(offset)), frame.body))
    headers = [letter.header for frame in frames for _, letter in letters.all_of(frame)]
    assert [(header.sequence, header.count) for header in headers] == [(70, 2), (72, 3)]
    alone = [
        letter.header.sequence for frame in frames for _, (letter, _) in letters.one_by_one(frame)
    ]
    assert alone == [70, 71, 72, 73, 74]


@on_loop
async def test_while_the_dead_letter_topic_is_out_of_reach_messages_stay(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        # No topic can have this name, so it can never be made.
        await consumer.make_topic(dead_letter="_reserved")
        await consumer.store(b"a", b"b")
        got = await consumer.poll()
        await consumer.reject(got[:1], "why not")
        await until(lambda: carries(consumer))
        requests = server.broker.counters.requests
        await asyncio.sleep(0.35)
        assert carries(consumer) == 1
        # Nothing is hot: a few attempts, each after a longer wait.
        assert server.broker.counters.requests - requests < 20
        counters = await consumer.describe()
        assert (counters.dead, counters.floor, counters.in_flight) == (1, 0, 1)
        # It is not delivered, and the others are not held up.
        await consumer.ack(got[1:])
        assert await consumer.poll() == []
        settings = proto.TopicSettings(dead_letter="reachable")
        await consumer.ask(alter_topic=proto.AlterTopic(name="orders", settings=settings))
        (letter,) = await dead_letters(consumer, 1, topic="reachable")
        assert letter.value == b"a"
        await consumer.until(lambda counters: counters.floor == 2)
        await consumer.close()


@on_loop
async def test_a_dead_letter_topic_that_forgot_the_producer_gets_the_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b", b"c")
        got = await consumer.poll()
        await consumer.reject(got[:1], "one")
        await dead_letters(consumer, 1)
        await until(lambda: not carries(consumer))
        await consumer.ask(delete_topic=proto.DeleteTopic(name=DLQ))
        await consumer.reject(got[1:], "the others")
        letters = await dead_letters(consumer, 2)
        assert [letter.value for letter in letters] == [b"b", b"c"]
        await consumer.until(lambda counters: counters.floor == 3)
        await consumer.close()


@pytest.mark.parametrize(("batches", "arrived"), [(1, 1), (WINDOW_BATCHES + 1, 0)])
@on_loop
async def test_a_number_with_another_batch_is_no_proof_that_a_letter_is_stored(
    tmp_path: Path, batches: int, arrived: int
) -> None:
    """But one that is older than all that the target remembers is."""
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        got = await consumer.poll()
        await consumer.ask(create_topic=proto.CreateTopic(name=DLQ, partitions=1))
        dispatcher = server.broker.consumers.dispatchers.leading("orders", b"", 0)
        producer = producer_of(BatchSource(dispatcher.hosted.id, "orders", 0, GROUP))
        epoch = dispatcher.with_leases(lambda leases: leases.dead_letters.dead_epoch(GROUP))
        frames = [
            encode_batch(
                [b"other"],
                origin=Origin(producer_id=producer, producer_epoch=epoch, sequence=number),
            )
            for number in range(batches)
        ]
        for at in range(0, batches, 500):
            await consumer.ask(*frames[at : at + 500], produce=proto.Produce(topic=DLQ))
        await consumer.reject(got, "bad")
        await consumer.until(lambda counters: counters.floor == 1)
        letters = await dead_letters(consumer, batches + arrived)
        assert [letter.value for letter in letters if letter.value != b"other"] == [b"a"] * arrived
        await consumer.close()


@on_loop
async def test_a_message_that_fits_only_without_its_story_moves_without(tmp_path: Path) -> None:
    async with serving(tmp_path, message_bytes_max=2_000) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        huge = bytes(1_700)
        await consumer.store(b"small", headers=[{"n": b"1"}])
        await consumer.store(huge)
        await consumer.store(b"last")
        await consumer.reject(await consumer.poll(), "x" * 500)
        letters = await dead_letters(consumer, 3)
        assert [letter.value for letter in letters] == [b"small", huge, b"last"]
        assert ["quiver-reason" in letter.headers for letter in letters] == [True, False, True]
        await consumer.until(lambda counters: counters.floor == 3)
        assert len(await consumer.fetch(DLQ)) == 3
        await consumer.close()


@on_loop
async def test_redriven_messages_are_where_they_came_from_as_they_were(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(partitions=2)
        for partition in range(2):
            await consumer.store(
                b"a%d" % partition, b"b%d" % partition, partition=partition, priority=partition,
                keys=[b"k", b"l"], headers=[{"n": b"1"}, {}],
            )  # fmt: skip
        await consumer.reject(await consumer.poll(partitions=[0, 1]), "later")
        for partition in range(2):
            await dead_letters(consumer, 2, partition=partition)
        await until(lambda: not carries(consumer))
        for partition in range(2):
            body = proto.Redrive(topic=DLQ, partition=partition)
            answer = await consumer.ask(redrive=body)
            assert answer.redriven.messages == 2
        again = []
        while len(again) < 4:
            again += await consumer.poll(partitions=[0, 1], wait_ms=10_000)
        assert sorted(values(again)) == [b"a0", b"a1", b"b0", b"b1"]
        for one in again:
            which = one.value[0] - ord("a")
            assert one.partition == one.message.priority == int(one.value[1:])
            assert one.message.key == (b"k", b"l")[which]
            assert dict(one.message.headers) == ({"n": b"1"}, {})[which]
            assert one.delivery == 1
        # Done with: neither listed, nor redriven again.
        await until(lambda: not carries(consumer))
        assert not (await consumer.ask(list_dead=proto.ListDead(topic=DLQ))).dead_listed.intervals
        answer = await consumer.ask(redrive=proto.Redrive(topic=DLQ))
        assert answer.redriven.messages == 0
        await consumer.close()


@on_loop
async def test_dead_letters_are_listed_redriven_in_part_and_purged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(*[b"%d" % number for number in range(6)])
        await consumer.reject(await consumer.poll(), "later")
        await dead_letters(consumer, 6)

        async def listed() -> list[tuple[int, int]]:
            answer = await consumer.ask(list_dead=proto.ListDead(topic=DLQ))
            return [(part.start, part.end) for part in answer.dead_listed.intervals]

        assert await listed() == [(0, 6)]
        part = [proto.Interval(start=1, end=2)]
        await consumer.ask(redrive=proto.Redrive(topic=DLQ, intervals=part))
        assert values(await consumer.poll(wait_ms=10_000)) == [b"1"]
        part = [proto.Interval(start=3, end=5)]
        purged = await consumer.ask(redrive=proto.Redrive(topic=DLQ, intervals=part, purge=True))
        assert purged.redriven.messages == 2
        assert await listed() == [(0, 1), (2, 3), (5, 6)]
        await consumer.close()


@on_loop
async def test_a_redrive_to_a_topic_that_is_gone_waits_for_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a")
        await consumer.reject(await consumer.poll(), "later")
        await dead_letters(consumer, 1)
        await until(lambda: not carries(consumer))
        await consumer.ask(delete_topic=proto.DeleteTopic(name="orders"))
        await consumer.ask(redrive=proto.Redrive(topic=DLQ))
        await until(lambda: carries(consumer))
        await consumer.make_topic()
        assert values(await consumer.poll(wait_ms=15_000)) == [b"a"]
        await consumer.close()


@on_loop
async def test_dead_letters_come_once_across_changes_of_leaders(tmp_path: Path) -> None:
    async with cluster(tmp_path, **PATIENT) as brokers:
        consumer = Consumer(brokers.running[1])
        await consumer.make_topic()
        count = 40
        await consumer.store(*[b"%d" % number for number in range(count)])
        got = await consumer.poll()
        await until(lambda: led(brokers))
        for one in got:
            # Through whoever leads: the broker that is asked passes it on.
            while await refusal(consumer.reject([one], "again")):  # noqa: ASYNC110  (no event)
                # Its leader went away meanwhile; what happened before happens no second time.
                await asyncio.sleep(0.05)
            if one.message.offset % 10 == 5:
                await move_leader(brokers, to=led(brokers).get(0, 0) % 3 + 1)
        letters = await dead_letters(consumer, count)
        await consumer.until(lambda counters: counters.floor == count)
        letters = await consumer.fetch(DLQ)
        assert [letter.headers["quiver-offset"] for letter in letters] == [
            b"%d" % number for number in range(count)
        ]
        await consumer.close()


@on_loop
async def test_what_has_no_home_stays_dead_and_can_be_purged(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer, stranger = Consumer(server), Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")
        await consumer.reject(await consumer.poll(), "later")
        await dead_letters(consumer, 2)
        stranger.topic = DLQ
        await stranger.store(b"homeless")
        gone = {"quiver-topic": b"gone", "quiver-partition": b"0"}
        await stranger.store(b"evicted", headers=[gone])
        answer = await consumer.ask(redrive=proto.Redrive(topic=DLQ))
        assert answer.redriven.messages == 4
        again = await consumer.poll(wait_ms=10_000)
        while len(again) < 2:
            again += await consumer.poll(wait_ms=10_000)
        assert values(again) == [b"a", b"b"]
        await until(lambda: not carries(consumer))
        listed = (await consumer.ask(list_dead=proto.ListDead(topic=DLQ))).dead_listed
        assert [(part.start, part.end) for part in listed.intervals] == [(2, 4)]
        purged = await consumer.ask(redrive=proto.Redrive(topic=DLQ, purge=True))
        assert purged.redriven.messages == 2
        # What arrived did so once.
        assert len(await consumer.fetch("orders")) == 4
        await consumer.close()
        await stranger.close()


@on_loop
async def test_what_dies_as_the_carrier_leaves_is_carried_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await consumer.store(b"a", b"b")
        first, second = await consumer.poll()
        movers = server.broker.consumers.dead_letters
        dispatcher = server.broker.consumers.dispatchers.leading("orders", b"", 0)
        # A mover that has seen that there is nothing, and is about to go.
        leaving = asyncio.get_running_loop().create_task(asyncio.sleep(0.2))
        movers._moving[dispatcher] = leaving
        leaving.add_done_callback(lambda _: movers._moved(dispatcher))
        await consumer.reject([first], "now")
        assert carries(consumer) == 1
        assert [letter.value for letter in await dead_letters(consumer, 1)] == [b"a"]
        await consumer.ack([second])
        await until(lambda: not carries(consumer))
        await consumer.close()


async def bury_some(consumer: Consumer, *messages: bytes) -> None:
    """Dead letters of these messages, which are moved."""
    await consumer.store(*messages)
    await consumer.reject(await consumer.poll(), "bad")
    await dead_letters(consumer, len(messages))
    await until(lambda: not carries(consumer))


@on_loop
async def test_letters_go_back_to_their_group_again_if_that_was_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has them, and that the letters are redriven cannot be noted: they are redriven
    again, and what was acknowledged meanwhile does not come again."""
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await bury_some(consumer, b"a", b"b", b"c")
        bury, lost = DeadLetterRecords.bury, []

        def lose(self: DeadLetterRecords, group: str, *rest: Any) -> None:
            if group == REDRIVE_GROUP and len(lost) < 3:
                lost.append(group)
                raise Timeout("lost")
            bury(self, group, *rest)

        monkeypatch.setattr(DeadLetterRecords, "bury", lose)
        redrive = proto.Redrive(topic=DLQ, to=TO_GROUP)
        asked = asyncio.create_task(consumer.ask(redrive_to=redrive))
        back = await consumer.poll(wait_ms=10_000)
        assert values(back) == [b"a", b"b", b"c"]
        await consumer.ack(back)
        assert (await asked).redriven.messages == 3
        await until(lambda: not carries(consumer))
        assert await consumer.poll() == []
        assert (await consumer.describe()).done == len(lost) == 3
        assert not (await consumer.ask(list_dead=proto.ListDead(topic=DLQ))).dead_listed.intervals
        await consumer.close()


@on_loop
async def test_a_group_or_topic_that_is_gone_keeps_its_letters_dead(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        await bury_some(consumer, b"a", b"b")
        await consumer.ask(delete_group=proto.DeleteGroup(topic="orders", group=GROUP))
        redrive = proto.Redrive(topic=DLQ, to=TO_GROUP)
        for _ in range(2):
            redriven = (await consumer.ask(redrive_to=redrive)).redriven
            assert (redriven.messages, redriven.stayed) == (0, 2)
            if "orders" in server.broker.metadata.view.topics:
                await consumer.ask(delete_topic=proto.DeleteTopic(name="orders"))
        listed = (await consumer.ask(list_dead=proto.ListDead(topic=DLQ))).dead_listed
        assert [(part.start, part.end) for part in listed.intervals] == [(0, 2)]
        await consumer.close()


@on_loop
async def test_below_its_feature_level_letters_go_to_all_groups_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic(max_deliveries=2, retry_base_ms=10)
        server.broker.metadata.level = 1
        await consumer.store(b"a")
        leader = server.broker.consumers.dispatchers.leading("orders", b"", 0)
        for _ in range(2):
            failed = await consumer.poll(wait_ms=10_000)
            await consumer.nack(failed, delay_ms=0, reason="why")
            groups = leader.hosted.replica.groups
            assert groups is not None
            assert not len(groups.by_name[GROUP].reasons)
        (letter,) = await dead_letters(consumer, 1)
        assert letter.headers["quiver-reason"] == b"failed 2 times; the last time: why"
        # The catalog has changed since, and was read again.
        server.broker.metadata.level = 1
        for to in (TO_GROUP, "orders"):
            asking = consumer.ask(redrive_to=proto.Redrive(topic=DLQ, to=to))
            assert await refusal(asking) == "InvalidRequest"
        wanted = proto.LetterFilter(group=GROUP)
        back = await consumer.ask(redrive_to=proto.Redrive(topic=DLQ, filter=wanted))
        assert back.redriven.messages == 1
        assert values(await consumer.poll(wait_ms=10_000)) == [b"a"]
        await consumer.close()


@on_loop
async def test_a_filter_looks_at_so_many_letters_in_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "_SCANNED_BYTES", 1)
    monkeypatch.setattr(fetch, "_BYTES_DEFAULT", 1)
    async with serving(tmp_path) as server:
        consumer = Consumer(server)
        await consumer.make_topic()
        for number in range(4):
            await consumer.store(b"%d" % number)
            await consumer.reject(await consumer.poll(), f"{number % 2}")
        await dead_letters(consumer, 4)
        await until(lambda: not carries(consumer))
        wanted = proto.LetterFilter(reason="1")
        found, first = [], 0
        while True:
            ask = proto.ListDead(topic=DLQ, filter=wanted, first=first)
            listed = (await consumer.ask(list_dead=ask)).dead_listed
            found.append([(part.start, part.end) for part in listed.intervals])
            if not listed.next:
                break
            assert listed.next > first
            first = listed.next
        assert [part for portion in found for part in portion] == [(1, 2), (3, 4)]
        assert len(found) > 1
        part = [proto.Interval(start=0, end=2)]
        purge = proto.Redrive(topic=DLQ, filter=wanted, intervals=part, purge=True)
        nothing = (await consumer.ask(redrive_to=purge)).redriven
        assert (nothing.messages, nothing.next) == (0, 1)
        purge.first = 1
        assert (await consumer.ask(redrive_to=purge)).redriven.messages == 1
        await consumer.close()
