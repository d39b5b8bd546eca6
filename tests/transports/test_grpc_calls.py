"""The unary calls of the gRPC API, through real channels."""

import asyncio
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc
import grpc.aio
import pyarrow as pa
import pytest

import quivermq
from quivermq.errors import Overloaded
from quivermq.transports import Server
from quivermq.transports.grpc import calls, polling, reading
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import proto
from tests.transports.grpc_stage import (
    Stub,
    calling,
    eventually,
    in_flight,
    make_topic,
    metadata_of,
    plain,
    poll,
    refusal,
    store,
    whole,
)
from tests.transports.stage import PATIENCE_S, on_served_loop, serving, until

ROOT = Path(__file__).parents[2]
Code = grpc.StatusCode


@on_served_loop
async def test_a_message_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        sent = api.NewMessage(
            value=b"v", key=b"k", headers={"a": b"1"}, priority=3, timestamp_ms=1_234
        )
        keyless = api.NewMessage(value=b"w", key=b"")
        stored = await stub.Produce(api.ProduceRequest(topic="orders", messages=[sent, keyless]))
        offsets = [position.offset for position in stored.positions]
        assert sorted(offsets) == [0, 1]
        polled = await poll(stub)
        messages = {m.offset: m for d in polled.deliveries for m in d.messages}
        first, second = (messages[offset] for offset in offsets)
        assert (first.value, first.key, dict(first.headers)) == (b"v", b"k", {"a": b"1"})
        assert (first.priority, first.timestamp_ms, first.delivery_count) == (3, 1_234, 1)
        assert second.HasField("key")
        assert second.key == b""
        assert second.timestamp_ms > 1_700_000_000_000


@on_served_loop
async def test_each_settlement_does_what_it_says(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, *b"0 1 2 3 4 5".split())
        (delivery,) = (await poll(stub)).deliveries
        lease = delivery.lease
        settle = {"topic": "orders", "group": "g"}
        extend = api.ExtendRequest(leases=[lease], visibility_ms=60_000, **settle)
        await stub.Extend(extend)
        one = api.Selection(lease=lease, offsets=[0])
        await stub.Ack(api.AckRequest(selections=[one], **settle))
        two = api.Selection(lease=lease, ranges=[api.OffsetRange(start=1, end=3)])
        await stub.Nack(api.NackRequest(selections=[two], delay_ms=0, reason="shut", **settle))
        three = api.Selection(lease=lease, offsets=[3])
        await stub.Reject(api.RejectRequest(selections=[three], reason="bad", **settle))
        four = api.Selection(lease=lease, offsets=[4])
        await stub.Release(api.ReleaseRequest(selections=[four], **settle))
        (group,) = (await stub.ListGroups(api.ListGroupsRequest(topic="orders"))).groups
        assert (group.done, group.dead, group.in_flight) == (1, 1, 1)
        counts: dict[int, int] = {}
        told: set[tuple[int, int, str]] = set()
        while len(counts) < 3:
            found = await poll(stub, wait_ms=1_000)
            told |= {(r.start, r.end, r.reason) for d in found.deliveries for r in d.reasons}
            counts |= {m.offset: m.delivery_count for d in found.deliveries for m in d.messages}
        assert counts == {1: 2, 2: 2, 4: 1}
        assert told == {(1, 3, "shut")}
        dead = api.FetchRequest(topic="orders.dlq", wait_ms=10_000)

        async def letters() -> list[bytes]:
            try:
                return [message.value for message in (await stub.Fetch(dead)).messages]
            except grpc.aio.AioRpcError as error:
                assert error.code() == Code.NOT_FOUND
                return []

        assert await eventually(letters) == [b"3"]


@on_served_loop
async def test_a_lost_lease_is_named_in_the_details(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, b"a", b"b")
        (delivery,) = (await poll(stub)).deliveries
        seek = api.SeekRequest(topic="orders", group="g", earliest=True)
        assert dict((await stub.Seek(seek)).offsets) == {0: 0}
        ack = api.AckRequest(topic="orders", group="g", selections=whole(delivery))
        error = await refusal(stub.Ack(ack))
        assert error.code() == Code.FAILED_PRECONDITION
        assert metadata_of(error)["quiver-code"] == "LeaseLost"
        told = _details(error)
        assert [selection.lease for selection in told.lost] == [delivery.lease]


def _details(error: grpc.aio.AioRpcError) -> api.Error:
    """As other languages read them: google.rpc.Status, with our own message in it."""
    from google.rpc.error_details_pb2 import ErrorInfo  # noqa: PLC0415
    from google.rpc.status_pb2 import Status  # noqa: PLC0415

    status = Status.FromString(metadata_of(error)["grpc-status-details-bin"])
    assert status.code == error.code().value[0]
    info, told = ErrorInfo(), api.Error()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(told)
    assert (info.reason, info.domain) == (told.code, "quivermq")
    assert info.metadata["retriable"] == str(told.retriable).lower()
    return told


@on_served_loop
async def test_refusals_have_a_status_and_their_details(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, b"a")
        for call, code, name in (
            (stub.Fetch(api.FetchRequest(topic="nope")), Code.NOT_FOUND, "TopicNotFound"),
            (poll(stub, group=""), Code.INVALID_ARGUMENT, "InvalidRequest"),
            (poll(stub, partitions=[7]), Code.INVALID_ARGUMENT, "InvalidRequest"),
            (poll(stub, format=9), Code.INVALID_ARGUMENT, "InvalidRequest"),
            (
                stub.CreateTopic(api.CreateTopicRequest(topic="orders", partitions=9)),
                Code.ALREADY_EXISTS,
                "TopicExists",
            ),
            (
                stub.Fetch(api.FetchRequest(topic="orders", offset=99)),
                Code.OUT_OF_RANGE,
                "OffsetOutOfRange",
            ),
            (
                stub.Produce(api.ProduceRequest(topic="orders")),
                Code.INVALID_ARGUMENT,
                "InvalidRequest",
            ),
            (
                stub.Ack(
                    api.AckRequest(
                        topic="orders", group="g", selections=[api.Selection(lease="\0")]
                    )
                ),
                Code.INVALID_ARGUMENT,
                "InvalidRequest",
            ),
        ):
            error = await refusal(call)
            assert (error.code(), metadata_of(error)["quiver-code"]) == (code, name)
            assert metadata_of(error)["quiver-retriable"] == "false"
            assert _details(error).message == error.details()
        told = _details(await refusal(stub.Fetch(api.FetchRequest(topic="orders", offset=99))))
        assert (told.earliest, told.end) == (0, 1)


@on_served_loop
async def test_a_failure_of_the_broker_is_internal_and_says_nothing_else(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, stub):

        async def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        server.broker.service.call = broken  # type: ignore[method-assign]
        error = await refusal(stub.Cluster(api.ClusterRequest()))
        assert error.code() == Code.INTERNAL
        assert metadata_of(error)["quiver-code"] == "QuiverError"


@on_served_loop
async def test_a_long_message_fits_into_the_trailers(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, stub):

        async def refuse(*_: object) -> None:
            raise Overloaded("ü" * 5_000)

        server.broker.service.call = refuse  # type: ignore[method-assign]
        error = await refusal(stub.Cluster(api.ClusterRequest()))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        assert metadata_of(error)["quiver-retriable"] == "true"
        assert set(error.details() or "") == {"ü"}


@on_served_loop
async def test_a_token_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        token = (("authorization", "Bearer x"),)
        error = await refusal(stub.Cluster(api.ClusterRequest(), metadata=token))
        assert error.code() == Code.UNAUTHENTICATED


@on_served_loop
async def test_a_poll_that_is_cancelled_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = asyncio.Event()

    async def held(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        waiting = stub.Poll(api.PollRequest(topic="orders", group="g", wait_ms=60_000))
        await until_group(stub)
        waiting.cancel()
        await store(stub, b"a")
        # With leases in hand, too.
        with monkeypatch.context() as patch:
            patch.setattr(calls, "add_deliveries", held)
            holding = stub.Poll(api.PollRequest(topic="orders", group="g"))
            async with asyncio.timeout(PATIENCE_S):
                await reached.wait()
            assert await in_flight(stub) == 1
            holding.cancel()
            await eventually(partial(nothing_in_flight, stub))
        (delivery,) = (await poll(stub)).deliveries
        assert [message.delivery_count for message in delivery.messages] == [1]


async def nothing_in_flight(stub: Stub) -> bool:
    return await in_flight(stub) == 0


async def until_group(stub: Stub) -> None:
    """Until a poll has begun the group."""

    async def groups() -> object:
        return (await stub.ListGroups(api.ListGroupsRequest(topic="orders", group="g"))).groups

    await eventually(groups)


@on_served_loop
async def test_a_poll_answers_before_its_deadline(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        request = api.PollRequest(topic="orders", group="g", wait_ms=60_000)
        assert not (await stub.Poll(request, timeout=1.5)).deliveries
        fetch = api.FetchRequest(topic="orders", wait_ms=60_000)
        assert not (await stub.Fetch(fetch, timeout=1.5)).messages


@on_served_loop
async def test_a_poll_creates_a_topic_where_brokers_do_so(tmp_path: Path) -> None:
    request = api.PollRequest(topic="orders", group="g")
    async with calling(tmp_path / "1") as (_, stub):
        assert (await refusal(stub.Poll(request))).code() == Code.NOT_FOUND
    async with calling(tmp_path / "2", auto_create_topics=True) as (_, stub):
        assert not (await stub.Poll(request)).deliveries
        await store(stub, b"a")


@on_served_loop
async def test_what_waits_ends_when_the_broker_stops(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, stub):
        await make_topic(stub)
        request = api.PollRequest(topic="orders", group="g", wait_ms=60_000)
        waiting = asyncio.ensure_future(refusal(stub.Poll(request)))
        await until_group(stub)
        await server.stop()
        error = await waiting
        assert error.code() == Code.UNAVAILABLE
        assert metadata_of(error)["quiver-retriable"] == "true"


@on_served_loop
async def test_topics_are_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        settings = api.TopicSettings(max_deliveries=3, retention_ms=60_000, group_idle_ms=0)
        creation = api.CreateTopicRequest(topic="orders", partitions=2, settings=settings)
        await stub.CreateTopic(creation)
        await stub.CreateTopic(creation)
        settings.max_deliveries = 4
        await stub.AlterTopic(api.AlterTopicRequest(topic="orders", settings=settings))
        await store(stub, b"a")
        (topic,) = (await stub.ListTopics(api.ListTopicsRequest())).topics
        assert (topic.name, topic.replication, topic.settings.max_deliveries) == ("orders", 1, 4)
        assert topic.settings.retention_ms == 60_000
        assert [(p.leader, p.start_offset, p.end_offset) for p in topic.partitions] == [
            (1, 0, 1),
            (1, 0, 0),
        ]
        await stub.DeleteTopic(api.DeleteTopicRequest(topic="orders"))
        assert not (await stub.ListTopics(api.ListTopicsRequest())).topics
        error = await refusal(stub.ListTopics(api.ListTopicsRequest(topics=["orders"])))
        assert error.code() == Code.NOT_FOUND


def test_the_settings_of_a_topic_are_those_of_the_protocol_of_brokers() -> None:
    public = {(f.name, f.type) for f in api.TopicSettings.DESCRIPTOR.fields}
    assert public == {(f.name, f.type) for f in proto.TopicSettings.DESCRIPTOR.fields}


@on_served_loop
async def test_offsets_are_committed_and_groups_sought_and_deleted(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=2)
        await store(stub, b"a", b"b", b"c")
        commit = api.CommitRequest(topic="orders", group="reader", partition=0, offset=2)
        await stub.Commit(commit)
        asked = api.CommittedRequest(topic="orders", group="reader")
        assert dict((await stub.Committed(asked)).offsets) == {0: 2}
        await poll(stub)
        place = {"topic": "orders", "group": "g"}
        latest = await stub.Seek(api.SeekRequest(latest=True, **place))
        assert dict(latest.offsets) == {0: 3, 1: 0}
        one = await stub.Seek(api.SeekRequest(offset=1, partitions=[0], **place))
        assert dict(one.offsets) == {0: 1}
        for wrong in (api.SeekRequest(offset=1, **place), api.SeekRequest(**place)):
            assert (await refusal(stub.Seek(wrong))).code() == Code.INVALID_ARGUMENT
        (delivery,) = (await poll(stub)).deliveries
        assert [message.offset for message in delivery.messages] == [1, 2]
        await stub.DeleteGroup(api.DeleteGroupRequest(**place))
        groups = (await stub.ListGroups(api.ListGroupsRequest(topic="orders"))).groups
        assert [(group.name, group.mode) for group in groups] == [("reader", "single")]


@on_served_loop
async def test_a_fetch_reads_by_offset_by_time_and_in_portions(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, b"a", b"b", b"c")
        (later,) = (await store(stub, b"d")).stored
        read = await stub.Fetch(api.FetchRequest(topic="orders", offset=1, max_messages=1))
        assert [message.value for message in read.messages] == [b"b"]
        assert (read.next_offset, read.start_offset, read.end_offset) == (2, 0, 4)
        everything = await stub.Fetch(api.FetchRequest(topic="orders"))
        assert [message.offset for message in everything.messages] == [0, 1, 2, 3]
        timed = api.FetchRequest(topic="orders", timestamp_ms=later.timestamp_ms)
        assert (await stub.Fetch(timed)).messages[-1].value == b"d"
        newest = api.FetchRequest(topic="orders", latest=True, wait_ms=10_000)
        waiting = asyncio.ensure_future(stub.Fetch(newest))
        while not waiting.done():
            await store(stub, b"e")
            await asyncio.sleep(0.01)
        assert waiting.result().messages[0].value == b"e"


@on_served_loop
async def test_a_producer_that_repeats_itself_stores_once(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=2)
        granted = await stub.NewProducer(api.NewProducerRequest())
        producer = api.Producer(id=granted.id, epoch=granted.epoch)
        request = api.ProduceRequest(
            topic="orders", partition=1, messages=plain(b"a", b"b"), producer=producer
        )
        for is_repeat in (False, True):
            (stored,) = (await stub.Produce(request)).stored
            assert (stored.first_offset, stored.count) == (0, 2)
            assert stored.is_repeat == is_repeat
        request.producer.sequence = 5
        error = await refusal(stub.Produce(request))
        assert metadata_of(error)["quiver-code"] == "OutOfSequence"
        assert _details(error).expected == 2
        request.ClearField("partition")
        assert (await refusal(stub.Produce(request))).code() == Code.INVALID_ARGUMENT


@on_served_loop
async def test_messages_of_a_key_go_where_every_client_puts_them(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=4)
        messages = [api.NewMessage(value=b"%d" % n, key=b"k%d" % n) for n in range(20)]
        stored = await stub.Produce(api.ProduceRequest(topic="orders", messages=messages))
        wanted = [quivermq.client.partition_of(b"k%d" % n, 4) for n in range(20)]
        assert [position.partition for position in stored.positions] == wanted
        found: dict[bytes, int] = {}
        for number in range(4):
            read = await stub.Fetch(api.FetchRequest(topic="orders", partition=number))
            for message in read.messages:
                found[message.value] = number
                place = stored.positions[int(message.value)]
                assert place.offset == message.offset
        assert found == {b"%d" % n: number for n, number in enumerate(wanted)}


@on_served_loop
async def test_delayed_and_auto_acknowledged_messages(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        late = api.NewMessage(value=b"late", delay_ms=60_000)
        await stub.Produce(
            api.ProduceRequest(topic="orders", messages=[*plain(b"now"), late, *plain(b"too")])
        )
        (delivery,) = (await poll(stub, auto_ack=True)).deliveries
        assert [message.value for message in delivery.messages] == [b"now", b"too"]
        assert not delivery.lease
        (group,) = (await stub.ListGroups(api.ListGroupsRequest(topic="orders"))).groups
        assert (group.done, group.delayed, group.in_flight) == (2, 1, 0)


@on_served_loop
async def test_dead_letters_are_listed_put_back_and_dropped(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, b"0", b"1", b"2")
        (delivery,) = (await poll(stub)).deliveries
        reject = api.RejectRequest(topic="orders", group="g", selections=whole(delivery))
        await stub.Reject(reject)
        asked = api.ListDeadLettersRequest(topic="orders.dlq")

        async def all_dead() -> list[tuple[int, int]]:
            try:
                letters = (await stub.ListDeadLetters(asked)).letters
            except grpc.aio.AioRpcError as error:
                assert error.code() == Code.NOT_FOUND
                return []
            found = [(part.start, part.end) for each in letters for part in each.ranges]
            return found if sum(end - start for start, end in found) == 3 else []

        assert await eventually(all_dead) == [(0, 3)]
        one = [api.OffsetRange(start=1, end=2)]
        (everywhere,) = (await stub.ListDeadLetters(api.ListDeadLettersRequest())).letters
        assert (everywhere.topic, everywhere.partition) == ("orders.dlq", 0)
        for wanted, count in (({"group": "g"}, 1), ({"reason": "x"}, 0), ({"key": b"k"}, 0)):
            few = api.ListDeadLettersRequest(topic="orders.dlq", filter=wanted)
            assert len((await stub.ListDeadLetters(few)).letters) == count
        back = api.RedriveRequest(topic="orders.dlq", partition=0, ranges=one, rate=100)
        assert (await stub.Redrive(back)).messages == 1
        lost = api.RedriveRequest(topic="orders.dlq", to="nowhere")
        assert (await refusal(stub.Redrive(lost))).code() == Code.NOT_FOUND
        nowhere = api.RedriveRequest(topic="orders.dlq", ranges=one)
        assert (await refusal(stub.Redrive(nowhere))).code() == Code.INVALID_ARGUMENT
        (again,) = (await poll(stub, wait_ms=10_000)).deliveries
        assert [(message.value, message.offset) for message in again.messages] == [(b"1", 1)]
        # The one that was put back may count until the broker has noted that it arrived.
        purged = await stub.Purge(api.PurgeRequest(topic="orders.dlq"))
        assert purged.messages in {2, 3}
        assert not (await stub.ListDeadLetters(asked)).letters


@on_served_loop
async def test_delayed_messages_are_listed_and_cancelled(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=2)
        for partition, delay_ms in ((1, 60_000), (0, 90_000), (0, 30_000)):
            late = [api.NewMessage(value=b"x", delay_ms=delay_ms)] * 2
            request = api.ProduceRequest(topic="orders", partition=partition, messages=late)
            await stub.Produce(request)
        asked = api.ListDelayedRequest(topic="orders")
        listed = (await stub.ListDelayed(asked)).delayed
        places = [(each.partition, each.first_offset, each.count) for each in listed]
        assert places == [(0, 2, 2), (1, 0, 2), (0, 0, 2)]
        cancel = api.CancelDelayedRequest(topic="orders", partition=0)
        assert (await refusal(stub.CancelDelayed(cancel))).code() == Code.INVALID_ARGUMENT
        cancel.ranges.add(start=1, end=4)
        assert (await stub.CancelDelayed(cancel)).messages == 3
        assert (await stub.CancelDelayed(cancel)).messages == 0


@on_served_loop
async def test_what_is_too_large_or_too_many_is_refused(tmp_path: Path) -> None:
    limits = {"message_bytes_max": 1_000, "batch_bytes_max": 100_000, "grpc_calls_max": 3}
    async with calling(tmp_path, **limits) as (server, stub):
        await make_topic(stub)
        error = await refusal(store(stub, b"x" * 2_000))
        assert metadata_of(error)["quiver-code"] == "TooLarge"
        many = api.ProduceRequest(topic="orders", messages=[api.NewMessage()] * 10_001)
        error = await refusal(stub.Produce(many))
        assert metadata_of(error)["quiver-code"] == "TooLarge"
        huge = api.ProduceRequest(topic="orders", arrow=b"x" * (2 << 20))
        assert (await refusal(stub.Produce(huge))).code() == Code.RESOURCE_EXHAUSTED
        heavy = (("x-heavy", "x" * 20_000),)
        error = await refusal(stub.Cluster(api.ClusterRequest(), metadata=heavy))
        assert error.code() == Code.RESOURCE_EXHAUSTED
        await _more_calls_than_may_be_open(server)


async def _more_calls_than_may_be_open(server: Server) -> None:
    """By connections of their own: on one of them the client waits for its turn."""
    async with AsyncExitStack() as channels:
        stubs = []
        for _ in range(6):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = grpc.aio.insecure_channel(server.grpc, options=options)
            stubs.append(Stub(await channels.enter_async_context(channel)))
        polls = (poll(stub, group=f"g{n}", wait_ms=2_000) for n, stub in enumerate(stubs))
        outcomes = await asyncio.gather(*polls, return_exceptions=True)
    refused = [one for one in outcomes if isinstance(one, grpc.aio.AioRpcError)]
    assert 1 <= len(refused) < 6
    assert {one.code() for one in refused} == {Code.RESOURCE_EXHAUSTED}


@on_served_loop
async def test_one_answer_has_only_so_many_plain_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, *(b"x" for _ in range(20)))
        monkeypatch.setattr(polling, "PLAIN_MESSAGES_MAX", 5)
        monkeypatch.setattr(reading, "PLAIN_MESSAGES_MAX", 5)
        (delivery,) = (await poll(stub, max_messages=20)).deliveries
        assert len(delivery.messages) == 5
        read = await stub.Fetch(api.FetchRequest(topic="orders", max_messages=20))
        assert (len(read.messages), read.next_offset) == (5, 5)


@on_served_loop
async def test_answers_wait_for_room_of_their_own_connection(tmp_path: Path) -> None:
    """Room is promised to a call until its answer is taken, and then others go on."""
    async with calling(tmp_path, unread_bytes_max=2_000) as (server, stub):
        await make_topic(stub)
        await store(stub, b"x" * 500)
        backlogs = server._grpc.calls.backlogs
        request = api.FetchRequest(topic="orders", format=api.FORMAT_ARROW)
        # A connection with answers that it does not take.
        (room, leave), (second, _), (third, _) = (backlogs.enter("stalled") for _ in range(3))
        await room(1_000)
        await second(1_000)
        waits = asyncio.ensure_future(third(1_000))
        await asyncio.gather(*(stub.Fetch(request, timeout=PATIENCE_S) for _ in range(20)))
        assert not waits.done()
        leave()
        await asyncio.wait_for(waits, PATIENCE_S)
        # Nothing is left of connections whose calls are over.
        await until(lambda: len(backlogs) == 1)


@on_served_loop
async def test_an_address_in_use_is_one_clear_error(tmp_path: Path) -> None:
    async with serving(tmp_path / "a", grpc="127.0.0.1:0") as server:
        with pytest.raises(quivermq.ConnectionFailed, match=r"cannot listen at .* for gRPC"):
            async with serving(tmp_path / "b", grpc=server.grpc):
                pass


def test_a_broker_without_grpc_imports_nothing_of_it(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from quivermq.settings import BrokerSettings
from quivermq.transports import Server
async def main():
    server = Server(BrokerSettings(data_dir={str(tmp_path)!r}, listen="127.0.0.1:0",
        peer_listen="127.0.0.1:0", http="", grpc=""))
    await server.start()
    await server.stop()
asyncio.run(main())
print(sorted(name for name in sys.modules if name.split(".")[0] in ("grpc", "grpc_health")))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == "[]\n"


def test_the_generated_code_is_what_make_proto_makes(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="the compiler is not installed")
    subprocess.run(
        [
            *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT / "proto")),
            *(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "quiver/v1/quiver.proto"),
        ],
        check=True,
    )
    kept = Path(api.__file__).parent
    for name in ("quiver_pb2.py", "quiver_pb2.pyi"):
        made = (tmp_path / "quiver" / "v1" / name).read_text()
        assert made == (kept / name).read_text(), f"{name}: run `make proto`"


@on_served_loop
async def test_a_waiting_poll_is_woken(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=3)
        waiting = asyncio.ensure_future(poll(stub, wait_ms=15_000, max_messages=50_000))
        await until_group(stub)
        await store(stub, b"a")
        (delivery,) = (await waiting).deliveries
        assert delivery.messages[0].value == b"a"


def test_arrow_types_of_the_documentation_are_those_of_frames() -> None:
    from quivermq.batches import Flag, schema_of  # noqa: PLC0415

    schema = schema_of(Flag.KEY | Flag.HEADERS | Flag.TIMESTAMP)
    assert schema.names == ["value", "key", "headers", "timestamp"]
    assert schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")


@on_served_loop
async def test_messages_have_a_content_type_and_a_time_to_live(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        typed = api.NewMessage(value=b"[1]", content_type="application/json", ttl_ms=3_600_000)
        brief = api.NewMessage(value=b"brief", ttl_ms=1)
        plain_one = api.NewMessage(value=b"plain", headers={"a": b"1"})
        sent = [brief, typed, plain_one]
        await stub.Produce(api.ProduceRequest(topic="orders", messages=sent, partition=0))
        # By then the time of one is over.
        await asyncio.sleep(0.05)
        polled = await poll(stub)
        messages = [message for each in polled.deliveries for message in each.messages]
        assert [(m.value, m.content_type) for m in messages] == [
            (b"[1]", "application/json"),
            (b"plain", ""),
        ]
        settings = api.TopicSettings(drop_expired=True)
        await stub.AlterTopic(api.AlterTopicRequest(topic="orders", settings=settings))
        listed = await stub.ListTopics(api.ListTopicsRequest(topics=["orders"]))
        assert listed.topics[0].settings.drop_expired
        wrong = api.NewMessage(value=b"v", ttl_ms=5, delay_ms=6)
        request = api.ProduceRequest(topic="orders", messages=[wrong])
        assert (await refusal(stub.Produce(request))).code() == Code.INVALID_ARGUMENT
