"""Users at the TCP door of one broker: tokens, grants, revocation, limits, and attacks on them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.errors import (
    Forbidden,
    InvalidRequest,
    Overloaded,
    QuiverError,
    Unauthenticated,
)
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, error_from_proto, proto
from tests.transports.stage import Talker, on_loop, on_served_loop, serving, until

Client = quivermq.aio.AsyncClient


@asynccontextmanager
async def guarded(folder: Path, **changes: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A broker with users, and its admin's client; the topics `orders` and `other`."""
    async with serving(folder, users=True, **changes) as server:
        async with connect(server) as anonymous:
            token = await anonymous.users.add("root")
            await anonymous.users.grant("root", "admin")
        async with connect(server, token) as admin:
            await admin.create_topic("orders")
            await admin.create_topic("other")
            yield server, admin


def connect(server: Server, token: str | None = None) -> Any:
    return quivermq.aio.connect(server.listen, token=token, timeout=5.0)


async def user(admin: Client, name: str, *grants: tuple[str, str, str]) -> str:
    token = await admin.users.add(name)
    for action, topic, group in grants:
        await admin.users.grant(name, action, topic=topic, group=group)
    return token


async def refused(talker: Talker, request: proto.Request, *frames: Any) -> QuiverError:
    answer = await talker.ask(request, *frames)
    assert answer.WhichOneof("body") == "error", answer
    return error_from_proto(answer.error)


async def signed_in(server: Server, token: str) -> Talker:
    talker = await Talker.by_socket(server, hello=False)
    hello = proto.Hello(protocol=PROTOCOL, client="talker", token=token)
    answer = await talker.ask(proto.Request(id=1, hello=hello))
    assert answer.WhichOneof("body") == "welcome", answer
    return talker


@on_served_loop
async def test_a_user_does_what_it_was_granted_and_nothing_else(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob", ("produce", "ord", ""), ("consume", "orders", "bill"))
        async with connect(server, token) as bob:
            await bob.produce("orders", b"one")
            (message,) = await bob.poll("orders", group="billing", wait=5.0)
            await message.ack()
            assert [topic.name for topic in await bob.topics()] == ["orders"]
            assert [group.name for group in await bob.groups("orders")] == ["billing"]
            for attempt in (
                lambda: bob.produce("other", b"x"),
                lambda: bob.poll("orders", group="others"),
                lambda: bob.poll("other", group="billing"),
                lambda: bob.topic("other"),
                lambda: bob.create_topic("orders2"),
                lambda: bob.delete_topic("orders"),
                lambda: bob.delete_group("orders", "billing"),
                lambda: bob.users.add("eve"),
                lambda: bob.users.grant("bob", "admin"),
                bob.users.all,
                bob.rebalance,
            ):
                with pytest.raises(Forbidden, match="bob"):
                    await attempt()
        async with connect(server, await user(admin, "owner", ("admin", "orders", ""))) as owner:
            await owner.create_topic("orders-eu")
            await owner.produce("orders-eu", b"x")
            with pytest.raises(Forbidden):
                await owner.create_topic("my-orders")
            with pytest.raises(Forbidden):
                await owner.users.all()


@on_loop
async def test_groups_of_others_are_not_listed(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        await admin.produce("orders", b"x")
        await admin.poll("orders", group="secret", wait=5.0)
        await admin.poll("orders", group="billing", wait=5.0)
        token = await user(admin, "bob", ("consume", "orders", "bill"))
        async with connect(server, token) as bob:
            assert [group.name for group in await bob.groups("orders")] == ["billing"]
            with pytest.raises(Forbidden):
                await bob.group("orders", "secret")


@on_loop
async def test_without_a_token_or_with_a_wrong_one_no_one_gets_in(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob")
        for wrong in (None, "", "qv_", token[:-1], token + "x", token.upper(), "x" * 10_000, "é\0"):
            with pytest.raises(Unauthenticated):
                async with connect(server, wrong):
                    pass
        async with connect(server, token):
            pass
        with pytest.raises(Unauthenticated):
            await asyncio.to_thread(quivermq.connect, server.listen, token="qv_wrong")


@on_loop
async def test_the_variable_gives_a_token_and_an_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarded(tmp_path) as (server, admin):
        monkeypatch.setenv("QUIVER_TOKEN", await user(admin, "bob", ("consume", "", "")))
        async with connect(server) as bob:
            assert await bob.topic("orders")
        with pytest.raises(Unauthenticated):
            async with connect(server, "qv_wrong"):
                pass


@on_loop
async def test_a_token_without_users_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with pytest.raises(Unauthenticated, match="has no users"):
            async with connect(server, "qv_some"):
                pass


@on_loop
async def test_the_first_admin_is_made_on_the_machine_and_then_the_door_closes(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, users=True) as server:
        async with connect(server) as anonymous, connect(server) as other:
            token = await anonymous.users.add("root")
            await anonymous.users.grant("root", "consume")
            await other.create_topic("orders")
            await anonymous.users.grant("root", "admin")
            with pytest.raises(Unauthenticated):
                await other.create_topic("more")
            with pytest.raises(Unauthenticated):
                await anonymous.users.add("eve")
        async with connect(server, token) as root:
            assert [each.name for each in await root.users.all()] == ["root"]
    # Nor does a broker that has just started, and knows little, let anyone in.
    async with serving(tmp_path, users=True) as server:
        with pytest.raises(Unauthenticated):
            async with connect(server):
                pass


@on_loop
async def test_a_caller_from_elsewhere_is_never_the_first_admin(tmp_path: Path) -> None:
    async with serving(tmp_path, users=True) as server:
        # A connection without an address, as from a transport that does not tell it.
        talker = await Talker.in_memory(server, hello=False)
        hello = proto.Hello(protocol=PROTOCOL, client="talker")
        error = await refused(talker, proto.Request(id=1, hello=hello))
        assert isinstance(error, Unauthenticated)
        await talker.until_lost()


@on_loop
async def test_nothing_is_answered_before_hello(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _):
        for request in (
            proto.Request(id=5, ping=proto.Ping()),
            proto.Request(id=5, map=proto.MapQuery()),
            proto.Request(id=5, prove=proto.Prove(proof=bytes(32))),
        ):
            talker = await Talker.by_socket(server, hello=False)
            assert isinstance(await refused(talker, request), InvalidRequest)
            await talker.until_lost()


@on_loop
async def test_a_stream_ends_within_a_second_of_the_removal_of_its_user(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob", ("consume", "", ""), ("produce", "", ""))
        talker = await signed_in(server, token)
        waiting = proto.Fetch(topic="orders", wait_ms=60_000)
        talker.say(proto.Request(id=7, fetch=waiting))
        async with connect(server, token) as bob:
            subscription = bob.subscribe("orders", group="g")
            await bob.produce("orders", b"one")
            got = [message.value async for message in first(subscription, 1)]
            assert got == [b"one"]
            begun = time.monotonic()
            await admin.users.remove("bob")
            await admin.produce("orders", b"two")
            await talker.until_lost()
            assert time.monotonic() - begun < 5.0
            late: list[bytes] = []
            with pytest.raises(Unauthenticated):
                await gather_values(subscription, late)
            assert not late, "what came after the removal is not delivered"
            with pytest.raises(Unauthenticated):
                await bob.produce("orders", b"x")
            await subscription.close()


async def gather_values(subscription: Any, values: list[bytes]) -> None:
    async for message in subscription:
        values += [message.value]


async def first(subscription: Any, count: int) -> AsyncIterator[Any]:
    async for message in subscription:
        await message.ack()
        yield message
        count -= 1
        if not count:
            return


@pytest.mark.parametrize("how", ["revoke", "token"])
@on_loop
async def test_less_to_do_or_another_token_ends_connections(tmp_path: Path, how: str) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob", ("consume", "", ""), ("produce", "", ""))
        talker = await signed_in(server, token)
        async with connect(server, token) as bob:
            await bob.produce("orders", b"x")
            if how == "revoke":
                await admin.users.revoke("bob", "produce")
                with pytest.raises(Forbidden):
                    await bob.produce("orders", b"y")
            else:
                fresh = await admin.users.add("bob", new_token=True)
                with pytest.raises(Unauthenticated):
                    await bob.produce("orders", b"y")
                async with connect(server, fresh) as again:
                    await again.produce("orders", b"z")
            await talker.until_lost()


@on_loop
async def test_another_grant_leaves_connections_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        talker = await signed_in(server, await user(admin, "bob"))
        produce = proto.Request(id=2, new_producer=proto.NewProducer())
        assert isinstance(await refused(talker, produce), Forbidden)
        await admin.users.grant("bob", "produce", topic="orders")
        answer = await talker.ask(produce)
        assert answer.WhichOneof("body") == "producer_granted"
        talker.close()


@on_loop
async def test_a_token_expires_also_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await admin.users.add("bob", expires=1.5)
        await admin.users.grant("bob", "consume")
        talker = await signed_in(server, token)
        talker.say(proto.Request(id=7, fetch=proto.Fetch(topic="orders", wait_ms=60_000)))
        await talker.until_lost()
        with pytest.raises(Unauthenticated):
            async with connect(server, token):
                pass


@on_loop
async def test_no_one_poses_as_a_broker(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob", ("consume", "", ""))
        talker = await signed_in(server, token)
        number = 10
        forged = [
            proto.Request(forwarded=True, create_topic=proto.CreateTopic(name="mine")),
            proto.Request(user="root", create_topic=proto.CreateTopic(name="mine")),
            proto.Request(forwarded=True, user="root", create_topic=proto.CreateTopic(name="mine")),
            proto.Request(forwarded=True, fetch=proto.Fetch(topic="orders")),
            proto.Request(register_broker=proto.RegisterBroker(id=9)),
            proto.Request(reconfigure=proto.Reconfigure(topic="orders")),
            proto.Request(take_tokens=proto.TakeTokens(topic="orders", wanted=1)),
            proto.Request(describe_partitions=proto.DescribePartitions()),
        ]
        for request in forged:
            number += 1
            request.id = number
            assert isinstance(await refused(talker, request), Forbidden), request
        # Not even an admin.
        register = proto.Request(id=2, register_broker=proto.RegisterBroker(id=9))
        root = await signed_in(server, await user(admin, "boss", ("admin", "", "")))
        assert isinstance(await refused(root, register), Forbidden)
        talker.close()
        root.close()


@on_loop
async def test_a_second_hello_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with guarded(tmp_path, user_connections_max=1) as (server, admin):
        bob = await user(admin, "bob", ("produce", "", ""))
        talker = await signed_in(server, bob)
        eve = proto.Hello(protocol=PROTOCOL, client="talker", token=await user(admin, "eve"))
        assert (await talker.ask(proto.Request(id=2, hello=eve))).HasField("welcome")
        ids = proto.Request(id=3, new_producer=proto.NewProducer())
        assert isinstance(await refused(talker, ids), Forbidden), "it is eve from here on"
        (await signed_in(server, bob)).close()
        await admin.users.remove("eve")
        await talker.until_lost()


@on_loop
async def test_many_hellos_at_once_end_the_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _):
        talker = await Talker.by_socket(server, hello=False)
        hello = proto.Hello(protocol=PROTOCOL, client="talker", token="qv_unknown")
        for number in range(1, 100):
            talker.say(proto.Request(id=number, hello=hello))
        await talker.until_lost()
        assert len(talker.heard) < 3


@on_loop
async def test_a_proof_without_the_secret_ends_the_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _):
        for proof in (b"", bytes(32), None):
            talker = await Talker.by_socket(server, hello=False)
            hello = proto.Hello(protocol=PROTOCOL, client="broker 2", nonce=bytes(32))
            answer = await talker.ask(proto.Request(id=1, hello=hello))
            assert answer.WhichOneof("body") == "challenge"
            # Its own proof, sent back, is none either.
            sent = answer.challenge.proof if proof is None else proof
            request = proto.Request(id=1, prove=proto.Prove(proof=sent))
            assert isinstance(await refused(talker, request), Unauthenticated)
            await talker.until_lost()
        talker = await Talker.by_socket(server, hello=False)
        hello = proto.Hello(protocol=PROTOCOL, client="broker 2", nonce=b"short")
        talker.say(proto.Request(id=1, hello=hello))
        await talker.until_lost()
        # A challenge that is not answered leads nowhere.
        talker = await Talker.by_socket(server, hello=False)
        hello.nonce = bytes(32)
        await talker.ask(proto.Request(id=1, hello=hello))
        creation = proto.Request(id=2, create_topic=proto.CreateTopic(name="mine"))
        assert isinstance(await refused(talker, creation), InvalidRequest)
        await talker.until_lost()


@on_loop
async def test_a_secret_alone_keeps_the_work_of_brokers_to_brokers(tmp_path: Path) -> None:
    async with serving(tmp_path, cluster_secret="0123456789abcdef") as server:
        talker = await Talker.by_socket(server)
        register = proto.Request(id=2, register_broker=proto.RegisterBroker(id=9))
        assert isinstance(await refused(talker, register), Forbidden)
        creation = proto.CreateTopic(name="orders")
        assert (await talker.ask(proto.Request(id=3, create_topic=creation))).HasField("done")
        forged = proto.Request(id=4, forwarded=True, create_topic=creation)
        assert isinstance(await refused(talker, forged), Forbidden)
        talker.close()


@on_loop
async def test_a_user_takes_no_more_than_its_share(tmp_path: Path) -> None:
    limits = {"user_connections_max": 2, "user_requests_per_second": 20}
    async with guarded(tmp_path, **limits) as (server, admin):
        token = await user(admin, "bob", ("produce", "orders", ""))
        talkers = [await signed_in(server, token) for _ in range(2)]
        third = await Talker.by_socket(server, hello=False)
        hello = proto.Hello(protocol=PROTOCOL, client="talker", token=token)
        assert isinstance(await refused(third, proto.Request(id=1, hello=hello)), Overloaded)
        await third.until_lost()
        # Of both connections together.
        for number in range(2, 62):
            talkers[number % 2].say(proto.Request(id=number, new_producer=proto.NewProducer()))
        answers = [await talkers[number % 2].hear(number) for number in range(2, 62)]
        codes = [answer.error.code for answer in answers]
        assert codes.count("Overloaded") >= 20
        assert codes.count("") >= 20
        talkers[0].close()
        await until(lambda: len(server.broker.access._accounts["bob"].callers) == 1)
        (await signed_in(server, token)).close()
        talkers[1].close()


@on_loop
async def test_bytes_are_counted_both_ways(tmp_path: Path) -> None:
    async with guarded(tmp_path, user_bytes_per_second=100_000) as (server, admin):
        token = await user(admin, "bob", ("admin", "", ""))
        async with connect(server, token) as bob:
            begun = time.monotonic()
            for _ in range(3):
                await bob.produce("orders", bytes(50_000))
            # The client waits, and comes back: nothing is lost by it.
            read = [message async for message in bob.read("orders", start=0, stop=3)]
            assert len(read) == 3
            await bob.topics()
            # 300,000 bytes, of which 100,000 are the burst, and the last 150,000 are owed until
            # the next request.
            assert time.monotonic() - begun > 1.5


@on_loop
async def test_the_audit_log_tells_who_did_what_from_where(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        token = await user(admin, "bob", ("consume", "", ""))
        with pytest.raises(Unauthenticated):
            async with connect(server, "qv_wrong"):
                pass
        async with connect(server, token) as bob:
            with pytest.raises(Forbidden):
                await bob.delete_topic("orders")
            with pytest.raises(Forbidden):
                await bob.produce("orders", b"x")
            with pytest.raises(Forbidden):
                [message async for message in bob.read("_audit", start=0)]
        await admin.delete_topic("other")
        wanted = {
            ("", "add_user", "ok"),
            ("", "grant_user", "ok"),
            ("root", "create_topic", "ok"),
            ("root", "add_user", "ok"),
            ("", "sign_in", "Unauthenticated"),
            ("bob", "delete_topic", "Forbidden"),
            ("root", "delete_topic", "ok"),
        }
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        while not wanted <= found.keys():
            async for message in admin.read("_audit", start=0):
                record = json.loads(message.value)
                found[record["user"], record["action"], record["outcome"]] = record
        deleted = found["root", "delete_topic", "ok"]
        assert deleted["detail"] == {"name": "other"}
        assert (deleted["address"], deleted["door"], deleted["node"]) == ("127.0.0.1", "tcp", 1)
        assert abs(deleted["time_ms"] / 1000 - time.time()) < 60
        assert "qv_" not in json.dumps(list(found.values()))
        # Nobody writes into it, changes or deletes it.
        with pytest.raises(InvalidRequest):
            await admin.delete_topic("_audit")
        with pytest.raises(InvalidRequest):
            await admin.alter_topic("_audit", retention=quivermq.Retention(max_age=1))


@on_loop
async def test_refusals_are_recorded_at_a_rate_and_the_rest_counted(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        talker = await signed_in(server, await user(admin, "bob"))
        for number in range(2, 502):
            talker.say(proto.Request(id=number, new_producer=proto.NewProducer()))
        for number in range(2, 502):
            await talker.hear(number)
        await asyncio.sleep(0.2)
        await refused(talker, proto.Request(id=900, new_producer=proto.NewProducer()))
        talker.close()
        recorded = left_out = 0
        while recorded + left_out < 501:
            records = [json.loads(one.value) async for one in admin.read("_audit", start=0)]
            recorded = sum(one["user"] == "bob" for one in records)
            left_out = sum(one.get("left_out_before", 0) for one in records)
        assert recorded <= 250


@on_loop
async def test_produce_to_the_audit_log_is_for_brokers(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, admin):
        await until(lambda: "_audit" in server.broker.metadata.view.topics)
        with pytest.raises(Forbidden):
            await admin.produce("_audit", b"{}")
