"""Sessions of the gRPC API: one stream for produce, pushes, settlements and heartbeats."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quivermq.transports.grpc import session as session_module
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import (
    Stub,
    calling,
    eventually,
    in_flight,
    make_topic,
    plain,
    store,
)
from tests.transports.stage import PATIENCE_S, on_served_loop, until

Code = grpc.StatusCode


class Talk:
    """A session as a client has it: answers by the id of their request."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._numbers = count(1)
        self.heard: list[api.Response] = []

    async def say(self, **body: Any) -> int:
        number = next(self._numbers)
        await self.call.write(api.Request(id=number, **body))
        return number

    async def hear(self, number: int, *kinds: str) -> api.Response:
        """The next response under an id, of one of these kinds if any are named."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for response in self.heard:
                    is_wanted = not kinds or response.WhichOneof("body") in kinds
                    if response.id == number and is_wanted:
                        self.heard.remove(response)
                        return response
                response = await self.call.read()
                assert response is not grpc.aio.EOF, await self.call.code()
                self.heard.append(response)

    async def ask(self, **body: Any) -> api.Response:
        return await self.hear(await self.say(**body))

    async def subscribe(self, **fields: Any) -> int:
        number = await self.say(subscribe=api.Subscribe(topic="orders", **fields))
        assert (await self.hear(number, "done", "error")).WhichOneof("body") == "done"
        return number

    async def pushed(self, number: int) -> api.Delivery:
        (delivery,) = (await self.hear(number, "push", "error")).push.deliveries
        return delivery

    async def ended(self) -> grpc.aio.AioRpcError:
        """The error that ends the stream."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    continue
            except grpc.aio.AioRpcError as error:
                return error
        raise AssertionError("it ended without an error")


@asynccontextmanager
async def talking(stub: Stub, group: str = "g") -> AsyncIterator[Talk]:
    talk = Talk(stub.Session())
    hello = api.Hello(client="test", group=group, consumer="me")
    assert (await talk.ask(hello=hello)).WhichOneof("body") == "welcome"
    try:
        yield talk
    finally:
        talk.call.cancel()


@on_served_loop
async def test_one_stream_produces_pushes_and_settles(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        async with talking(stub) as talk:
            request = api.ProduceRequest(topic="orders", messages=plain(b"a", b"b", b"c", b"d"))
            produced = (await talk.ask(produce=request)).produced
            assert [position.offset for position in produced.positions] == [0, 1, 2, 3]
            subscription = await talk.subscribe(credit=10)
            delivery = await talk.pushed(subscription)
            assert [message.value for message in delivery.messages] == [b"a", b"b", b"c", b"d"]
            lease = delivery.lease

            def some(*offsets: int) -> dict[str, Any]:
                selection = api.Selection(lease=lease, offsets=offsets)
                return {"topic": "orders", "selections": [selection]}

            extend = api.ExtendRequest(topic="orders", leases=[lease])
            for body in (
                {"extend": extend},
                {"ack": api.AckRequest(**some(0))},
                {"reject": api.RejectRequest(reason="bad", **some(1))},
                {"release": api.ReleaseRequest(**some(2))},
                {"nack": api.NackRequest(delay_ms=0, **some(3))},
                {"heartbeat": api.Heartbeat()},
            ):
                assert (await talk.ask(**body)).WhichOneof("body") == "done", body
            counts: dict[int, int] = {}
            while len(counts) < 2:
                again = await talk.pushed(subscription)
                counts |= {message.offset: message.delivery_count for message in again.messages}
            assert counts == {2: 1, 3: 2}
            error = (await talk.ask(ack=api.AckRequest(**some(0, 1)))).error
            assert error.code == "LeaseLost"


@on_served_loop
async def test_no_more_is_pushed_than_there_is_credit_for(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, *(b"%d" % n for n in range(10)))
        async with talking(stub) as talk:
            subscription = await talk.subscribe(credit=3)
            assert len((await talk.pushed(subscription)).messages) == 3
            # A push that should not be would come before the answer to a heartbeat sent later,
            # and nothing is leased for it.
            await talk.ask(heartbeat=api.Heartbeat())
            assert await in_flight(stub) == 3
            assert not talk.heard
            await talk.ask(credit=api.Credit(subscription=subscription, messages=4))
            found = 0
            while found < 4:
                found += len((await talk.pushed(subscription)).messages)
            assert await in_flight(stub) == 7
            too_much = api.Credit(subscription=subscription, messages=1_000_000)
            assert (await talk.ask(credit=too_much)).error.code == "InvalidRequest"
            end = api.Unsubscribe(subscription=subscription)
            assert (await talk.ask(unsubscribe=end)).WhichOneof("body") == "done"
            assert (await talk.ask(unsubscribe=end)).error.code == "InvalidRequest"
            # What was pushed stays leased.
            assert await in_flight(stub) == 7


@pytest.mark.parametrize("how", ["cancel", "done"])
@on_served_loop
async def test_what_was_pushed_goes_back_when_the_stream_ends(tmp_path: Path, how: str) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub, partitions=2)
        await store(stub, b"a", b"b")
        async with talking(stub) as talk:
            await talk.pushed(await talk.subscribe(credit=10))
            assert await in_flight(stub) == 2
            if how == "done":
                await talk.call.done_writing()
                assert await talk.call.code() == Code.OK

        async def is_back() -> bool:
            return await in_flight(stub) == 0

        await eventually(is_back)
        async with talking(stub) as talk:
            delivery = await talk.pushed(await talk.subscribe(credit=10))
            assert [message.delivery_count for message in delivery.messages] == [1, 1]


@on_served_loop
async def test_requests_are_answered_after_the_client_has_said_all(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        async with talking(stub) as talk:
            numbers = [
                await talk.say(produce=api.ProduceRequest(topic="orders", messages=plain(b"x")))
                for _ in range(50)
            ]
            await talk.call.done_writing()
            for number in numbers:
                assert (await talk.hear(number)).WhichOneof("body") == "produced"
            assert await talk.call.read() is grpc.aio.EOF


@on_served_loop
async def test_pushes_can_be_arrow(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        await store(stub, b"a", b"b")
        async with talking(stub) as talk:
            options = {"credit": 10, "format": api.FORMAT_ARROW, "auto_ack": True}
            delivery = await talk.pushed(await talk.subscribe(**options))
            assert delivery.batches[0].count == 2
            assert not delivery.lease
            assert await in_flight(stub) == 0


@on_served_loop
async def test_a_session_begins_with_hello(tmp_path: Path) -> None:
    async with calling(tmp_path, hello_timeout_ms=300) as (_, stub):
        rude = Talk(stub.Session())
        await rude.say(heartbeat=api.Heartbeat())
        assert (await rude.ended()).code() == Code.INVALID_ARGUMENT
        silent = Talk(stub.Session())
        assert (await silent.ended()).code() == Code.DEADLINE_EXCEEDED
        token = (("authorization", "Bearer x"),)
        assert (await Talk(stub.Session(metadata=token)).ended()).code() == Code.UNAUTHENTICATED


@on_served_loop
async def test_a_silent_session_is_ended(tmp_path: Path) -> None:
    async with calling(tmp_path, idle_timeout_ms=500) as (_, stub), talking(stub) as talk:
        for _ in range(3):
            await talk.ask(heartbeat=api.Heartbeat())
        error = await talk.ended()
        assert error.code() == Code.DEADLINE_EXCEEDED
        assert "heartbeats" in (error.details() or "")


@on_served_loop
async def test_what_makes_no_sense_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        async with talking(stub, group="") as talk:
            for body in (
                {"subscribe": api.Subscribe(topic="orders", credit=1)},
                {"credit": api.Credit(subscription=99)},
                {"hello": api.Hello()},
                {"ack": api.AckRequest(topic="orders")},
                {"produce": api.ProduceRequest(topic="orders")},
                {},
            ):
                assert (await talk.ask(**body)).error.code == "InvalidRequest", body
            missing = api.ProduceRequest(topic="nope", messages=plain(b"x"))
            assert (await talk.ask(produce=missing)).error.code == "TopicNotFound"
            await talk.call.write(api.Request(id=0, heartbeat=api.Heartbeat()))
            assert (await talk.hear(0)).error.code == "InvalidRequest"
            await talk.ask(heartbeat=api.Heartbeat())


@on_served_loop
async def test_a_session_has_only_so_many_subscriptions(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub):
        await make_topic(stub)
        async with talking(stub) as talk:
            numbers = [await talk.subscribe() for _ in range(session_module.SUBSCRIPTIONS_MAX)]
            more = api.Subscribe(topic="orders")
            assert (await talk.ask(subscribe=more)).error.code == "Overloaded"
            end = api.Unsubscribe(subscription=numbers[0])
            assert (await talk.ask(unsubscribe=end)).WhichOneof("body") == "done"
            await talk.subscribe()


@on_served_loop
async def test_a_subscription_to_no_topic_ends_with_an_error(tmp_path: Path) -> None:
    async with calling(tmp_path) as (_, stub), talking(stub) as talk:
        number = await talk.subscribe(credit=1)
        assert (await talk.hear(number)).error.code == "TopicNotFound"
        # Its id is free again.
        talk._numbers = count(number)
        await make_topic(stub)
        await store(stub, b"a")
        assert await talk.subscribe(credit=1) == number
        await talk.pushed(number)


@on_served_loop
async def test_no_more_is_read_while_too_much_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with calling(tmp_path, requests_max=3) as (_, stub):
        await make_topic(stub)
        begun = []
        release = asyncio.Event()

        async def held(call: Any, request: Any, group: str = "") -> None:
            begun.append(request)
            await release.wait()

        monkeypatch.setattr(session_module, "settle_request", held)
        async with talking(stub) as talk:
            numbers = [await talk.say(ack=api.AckRequest(topic="orders")) for _ in range(8)]
            await until(lambda: len(begun) >= 3)
            # Others are served meanwhile; this session's fourth request is not looked at.
            await store(stub, b"a")
            assert len(begun) == 3
            release.set()
            for number in numbers:
                assert (await talk.hear(number)).WhichOneof("body") == "done"


@on_served_loop
async def test_a_client_that_takes_nothing_holds_little(tmp_path: Path) -> None:
    """Its pushes stop when the window of the connection is full; then it is given up, and what it
    held goes to others."""
    async with calling(tmp_path, idle_timeout_ms=1_500) as (_, stub):
        await make_topic(stub)
        for _ in range(12):
            await store(stub, *(b"x" * 10_000 for _ in range(100)))
        async with talking(stub) as talk:
            await talk.subscribe(credit=100_000)
            held: list[int] = []

            async def is_given_up() -> bool:
                # Heartbeats, so that it is not for its silence.
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await talk.call.write(api.Request(id=10_000, heartbeat=api.Heartbeat()))
                held.append(await in_flight(stub))
                return held[-1] == 0 < max(held)

            await eventually(is_given_up)
            assert max(held) < 1_200
            assert "took no answer" in ((await talk.ended()).details() or "")


@on_served_loop
async def test_sessions_end_when_the_broker_stops(tmp_path: Path) -> None:
    async with calling(tmp_path) as (server, stub):
        await make_topic(stub)
        async with talking(stub) as talk:
            await talk.subscribe(credit=1)
            await server.stop()
            assert (await talk.ended()).code() == Code.UNAVAILABLE
