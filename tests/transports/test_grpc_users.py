"""gRPC with users: who gets in, what each may do, and the end of a session whose user is gone."""

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quivermq.transports.grpc.call import host_of
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from tests.transports.grpc_stage import Stub, eventually, metadata_of, plain, refusal
from tests.transports.stage import on_served_loop
from tests.transports.test_grpc_session import Talk
from tests.transports.test_users import guarded, user

Code = grpc.StatusCode
GRPC = {"grpc": "127.0.0.1:0"}


def bearer(token: str) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {token}"),), "timeout": 20.0}


@on_served_loop
async def test_a_user_does_what_it_was_granted_and_nothing_else(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, **GRPC) as (server, admin),
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        stub = Stub(channel)
        as_bob = bearer(
            await user(admin, "bob", ("produce", "ord", ""), ("consume", "orders", "bill"))
        )
        one = api.ProduceRequest(topic="orders", messages=plain(b"one"))
        await stub.Produce(one, **as_bob)
        request = api.PollRequest(topic="orders", group="billing", wait_ms=5_000)
        (delivery,) = (await stub.Poll(request, **as_bob)).deliveries
        selections = [api.Selection(lease=delivery.lease)]
        ack = api.AckRequest(topic="orders", group="billing", selections=selections)
        await stub.Ack(ack, **as_bob)
        topics = (await stub.ListTopics(api.ListTopicsRequest(), **as_bob)).topics
        assert [topic.name for topic in topics] == ["orders"]
        for call, wrong in (
            (stub.Produce, api.ProduceRequest(topic="other", messages=plain(b"x"))),
            (stub.Poll, api.PollRequest(topic="orders", group="others")),
            (stub.Poll, api.PollRequest(topic="other", group="billing")),
            (stub.Fetch, api.FetchRequest(topic="other")),
            (stub.CreateTopic, api.CreateTopicRequest(topic="orders2")),
            (stub.DeleteTopic, api.DeleteTopicRequest(topic="orders")),
            (stub.DeleteGroup, api.DeleteGroupRequest(topic="orders", group="billing")),
        ):
            error = await refusal(call(wrong, **as_bob))
            assert error.code() == Code.PERMISSION_DENIED, wrong
            assert metadata_of(error)["quiver-code"] == "Forbidden"


@on_served_loop
async def test_without_a_right_token_nobody_gets_in(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, **GRPC) as (server, admin),
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        stub = Stub(channel)
        gone = await user(admin, "gone", ("produce", "", ""))
        await admin.users.remove("gone")
        produce = api.ProduceRequest(topic="orders", messages=plain(b"x"))
        for given in (bearer("wrong"), bearer(gone), {"metadata": (("authorization", "x"),)}):
            assert (await refusal(stub.Produce(produce, **given))).code() == Code.UNAUTHENTICATED
            session = Talk(stub.Session(metadata=given["metadata"]))
            assert (await session.ended()).code() == Code.UNAUTHENTICATED
        error = await refusal(stub.Produce(produce))
        assert error.code() in {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}


@on_served_loop
async def test_a_session_ends_with_its_user_and_gives_back_what_it_holds(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, **GRPC) as (server, admin),
        grpc.aio.insecure_channel(server.grpc) as channel,
    ):
        token = await user(admin, "bob", ("consume", "orders", "bill"))
        await admin.produce("orders", b"x")
        talk = Talk(Stub(channel).Session(**bearer(token)))
        await talk.ask(hello=api.Hello(client="test", group="billing"))
        await talk.pushed(await talk.subscribe(credit=5))
        produce = api.ProduceRequest(topic="orders", messages=plain(b"x"))
        assert (await talk.ask(produce=produce)).error.code == "Forbidden"
        await admin.users.remove("bob")
        assert (await talk.ended()).code() in {Code.UNAUTHENTICATED, Code.PERMISSION_DENIED}

        async def is_back() -> bool:
            return (await admin.group("orders", "billing")).in_flight == 0

        await eventually(is_back)


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1"),
        ("ipv6:%5B::1%5D:4711", "::1"),
        ("ipv6:[fe80::1%25eth0]:4711", "fe80::1%eth0"),
        ("unix:/tmp/x", ""),
    ],
)
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host
