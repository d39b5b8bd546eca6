"""A gateway in front of one broker: users, limits, TLS, clients that read slowly, and its end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

import quivermq
from quivermq.batches import encode_batch
from quivermq.errors import (
    ConnectionFailed,
    Forbidden,
    InvalidRequest,
    NotEnoughReplicas,
    Overloaded,
    Timeout,
    Unauthenticated,
)
from quivermq.node import Gateway, check_exposure
from quivermq.node.gateway.broker_pool import LANE_REQUESTS_MAX
from quivermq.settings import BrokerSettings
from quivermq.tls import make_certificates
from quivermq.transports import GatewayServer, Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.wire import error_from_proto, proto
from tests.transports.gateway_stage import SECRET, WITH_USERS, connect, gated, gateway_of
from tests.transports.grpc_stage import Stub, refusal
from tests.transports.stage import Talker, make_topic, on_loop, serving, store, until

Client = quivermq.aio.AsyncClient


@asynccontextmanager
async def guarded(
    folder: Path, **changes: Any
) -> AsyncIterator[tuple[Server, GatewayServer, Client]]:
    """A broker with users, a gateway, and the admin's client of the gateway."""
    async with gated(folder, **WITH_USERS, **changes) as (server, gate):
        async with connect(server) as anonymous:
            token = await anonymous.users.add("root")
            await anonymous.users.grant("root", "admin")
        async with connect(gate, token) as admin:
            await admin.create_topic("orders")
            yield server, gate, admin


async def user(admin: Client, name: str, *grants: tuple[str, str]) -> str:
    token: str = await admin.users.add(name)
    for action, topic in grants:
        await admin.users.grant(name, action, topic=topic)
    return token


# Users.


@on_loop
async def test_a_user_may_do_at_a_gateway_what_it_was_granted(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, gate, admin):
        await admin.create_topic("other")
        token = await user(admin, "bob", ("produce", "ord"), ("consume", "orders"))
        async with connect(gate, token) as bob:
            await bob.produce("orders", b"one")
            (message,) = await bob.poll("orders", group="g", wait=10.0)
            await message.ack()
            assert [topic.name for topic in await bob.topics()] == ["orders"]
            for attempt in (
                lambda: bob.produce("other", b"x"),
                lambda: bob.poll("other", group="g"),
                lambda: bob.topic("other"),
                lambda: bob.delete_topic("orders"),
                bob.users.all,
            ):
                with pytest.raises(Forbidden, match="bob"):
                    await attempt()
        for wrong in (None, "qv_wrong", token + "x"):
            with pytest.raises(Unauthenticated):
                async with connect(gate, wrong):
                    pass
        assert [each.name for each in await admin.users.all()] == ["bob", "root"]


@on_loop
async def test_nobody_is_an_admin_for_being_on_the_gateways_machine(tmp_path: Path) -> None:
    async with gated(tmp_path, **WITH_USERS) as (server, gate):
        with pytest.raises(Unauthenticated):
            async with connect(gate):
                pass
        async with connect(server) as anonymous:
            await anonymous.users.add("root")


@on_loop
async def test_http_and_grpc_of_a_gateway_ask_for_tokens(tmp_path: Path) -> None:
    doors = {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"}
    async with guarded(tmp_path, **doors) as (_, gate, admin):
        token = await user(admin, "bob", ("produce", "orders"))
        async with httpx.AsyncClient(base_url=f"http://{gate.http}") as http:
            body = {"messages": [{"value": "x"}]}
            path = "/v1/topics/orders/messages"
            signed = {"authorization": f"Bearer {token}"}
            assert (await http.post(path, json=body)).status_code == 401
            assert (await http.post(path, json=body, headers=signed)).status_code == 200
            answer = await http.delete("/v1/topics/orders", headers=signed)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "Forbidden")
        async with grpc.aio.insecure_channel(gate.grpc) as channel:
            stub = Stub(channel)
            request = api.ProduceRequest(topic="orders", messages=[api.NewMessage(value=b"y")])
            error = await refusal(stub.Produce(request))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            metadata = (("authorization", f"Bearer {token}"),)
            await stub.Produce(request, metadata=metadata)
            error = await refusal(
                stub.DeleteTopic(api.DeleteTopicRequest(topic="orders"), metadata=metadata)
            )
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED


@on_loop
async def test_a_user_that_is_removed_is_disconnected_from_gateways(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, gate, admin):
        token = await user(admin, "bob", ("consume", ""))
        async with connect(gate, token) as bob:
            await bob.topics()
            waiting = asyncio.create_task(bob.poll("orders", group="g", wait=60.0))
            await until(lambda: gate.gateway.open_requests)
            await admin.users.remove("bob")
            with pytest.raises(Unauthenticated):
                await waiting


@on_loop
async def test_the_audit_log_names_users_of_gateways_and_where_they_come_from(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (_, gate, admin):
        token = await user(admin, "bob")
        async with connect(gate, token) as bob:
            with pytest.raises(Forbidden):
                await bob.create_topic("mine")

        async def recorded() -> list[dict[str, Any]]:
            read = admin.read("_audit", partition=0, start="earliest")
            return [json.loads(message.value) async for message in read]

        found: list[dict[str, Any]] = []
        while not any(each["user"] == "bob" for each in found):
            found = await recorded()
        (refused,) = [each for each in found if each["user"] == "bob"]
        assert refused["outcome"] == "Forbidden"
        assert (refused["address"], refused["door"], refused["node"]) == ("127.0.0.1", "tcp", 0)
        created = [each for each in found if each["action"] == "create_topic"]
        # By the gateway, and not by the broker that it was passed on to as well.
        assert [each["user"] for each in created] == ["root", "bob"]


@on_loop
async def test_limits_of_a_user_hold_at_a_gateway(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _, admin):
        token = await user(admin, "bob", ("produce", ""))
        limited = {**WITH_USERS, "user_connections_max": 1}
        async with gateway_of(server.listen, **limited) as second, connect(second, token):
            with pytest.raises(Overloaded, match="bob"):
                async with connect(second, token, timeout=1.5):
                    pass


@on_loop
async def test_a_gateway_with_another_secret_or_none_is_no_gateway(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _, _admin):
        other = {"users": True, "cluster_secret": "another secret of many characters"}
        for settings in (other, {}):
            async with gateway_of(server.listen, **settings) as gate:
                await gate.gateway.watch.looked.wait()
                assert isinstance(gate.gateway.unready, Unauthenticated)


@on_loop
async def test_a_broker_with_users_refuses_a_gateway_without(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, **WITH_USERS) as server,
        gateway_of(server.listen, cluster_secret=SECRET) as gate,
    ):
        await until(lambda: gate.gateway.is_ready)
        async with connect(gate) as client:
            with pytest.raises(Unauthenticated, match="--users"):
                await client.topics()


@on_loop
async def test_only_who_knows_the_secret_is_told_of_users(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (server, _, admin):
        ask = proto.Request(list_user_records=proto.ListUserRecords())
        core = admin._core  # type: ignore[attr-defined]
        with pytest.raises(Forbidden, match="only brokers"):
            await core.router.ask_any(ask, core.router.attempts("asking"))
        del server


# Brokers that do not answer.


@on_loop
async def test_a_gateway_whose_brokers_do_not_answer_serves_once_they_do(tmp_path: Path) -> None:
    async with gateway_of("127.0.0.1:1", http="127.0.0.1:0") as gate:
        await gate.gateway.watch.looked.wait()
        async with httpx.AsyncClient(base_url=f"http://{gate.http}") as http:
            assert (await http.get("/health")).status_code == 200
            answer = await http.get("/ready")
            assert answer.status_code == 503
            assert "127.0.0.1:1" in answer.json()["error"]["message"]
        async with connect(gate, timeout=0.5) as client:
            # A last attempt may be cut off by the end of the time: then it is a `Timeout`.
            with pytest.raises((ConnectionFailed, NotEnoughReplicas, Timeout)):
                await client.produce("orders", b"x")
    async with serving(tmp_path / "first") as server:
        address = server.listen
    async with gateway_of(f"127.0.0.1:1,{address}") as gate:
        assert not gate.gateway.is_ready
        async with serving(tmp_path / "first", listen=address):
            await until(lambda: gate.gateway.is_ready)
            async with connect(gate) as client:
                await client.create_topic("orders")


def test_a_gateway_is_not_open_to_strangers_and_has_no_peers() -> None:
    strange = {"gateway": True, "join": "a:1", "peer_listen": "0.0.0.0:7700"}
    check_exposure(BrokerSettings(**strange))
    with pytest.raises(InvalidRequest, match="--users"):
        check_exposure(BrokerSettings(**strange, listen="0.0.0.0:7600"))


def test_a_gateway_needs_brokers() -> None:
    with pytest.raises(ValueError, match="--join HOST:PORT"):
        BrokerSettings(gateway=True)
    with pytest.raises(ValueError, match="only a gateway"):
        BrokerSettings(join="a:1,b:2")
    assert BrokerSettings(gateway=True, join="a:1, b:2").join == "a:1,b:2"
    with pytest.raises(InvalidRequest):
        Gateway(BrokerSettings())


# Many and slow clients.


def waiting_poll(number: int) -> proto.Request:
    body = proto.Poll(topic="orders", partitions=[0], group="g", consumer=number, messages_max=10)
    body.wait_ms = 60_000
    return proto.Request(id=number, poll=body, timeout_ms=60_000)


@on_loop
async def test_very_many_polls_wait_and_hold_up_nothing(tmp_path: Path) -> None:
    async with gated(tmp_path) as (_, gate):
        talker = await Talker.by_socket(gate)
        await make_topic(talker)
        count = 3 * LANE_REQUESTS_MAX + 50
        for number in range(100, 100 + count):
            talker.say(waiting_poll(number))
        await until(lambda: gate.gateway.open_requests >= count)
        await store(talker, b"x")
        await until(lambda: len(talker.heard) == 1)
        (polled,) = talker.heard
        assert polled.polled.leased[0].pieces[0].count == 1
        # The others are given up with their client.
        talker.close()
        await until(lambda: gate.gateway.open_requests == 0)


@on_loop
async def test_a_client_that_takes_no_answers_is_asked_for_no_more(tmp_path: Path) -> None:
    limits = {"unread_bytes_max": 4 << 20, "segment_bytes": 64 << 20}
    async with gated(tmp_path, **limits) as (_, gate):
        quick = await Talker.by_socket(gate)
        await make_topic(quick)
        large = b"x" * (1 << 20)
        for _ in range(16):
            await store(quick, large)
        slow = await Talker.by_socket(gate)
        slow.transport.pause_reading()
        fetch = proto.Fetch(topic="orders", bytes_max=4 << 20)
        for number in range(10, 60):
            slow.say(proto.Request(id=number, fetch=fetch, timeout_ms=60_000))
        connections = gate.client_connections
        assert connections is not None
        stuck = list(connections.connections)[-1]
        await until(lambda: stuck.session.backlog.unread)
        # Others are served; what waits for the slow one stays bounded.
        for _ in range(20):
            await store(quick, b"y")
            assert stuck.session.backlog.unread < 12 << 20
        slow.close()
        quick.close()


@on_loop
async def test_batches_of_a_producer_keep_their_order(tmp_path: Path) -> None:
    async with gated(tmp_path) as (_, gate), connect(gate) as client:
        await client.create_topic("orders")
        async with client.producer(linger=0.0, batch_bytes=200) as producer:
            sent = [await producer.send("orders", b"%04d" % n) for n in range(500)]
            await producer.flush()
            offsets = [(await each).offset for each in sent]
        assert offsets == list(range(500))
        read = client.read("orders", partition=0)
        assert [m.value async for m in read] == [b"%04d" % n for n in range(500)]


@on_loop
async def test_a_request_that_clients_may_not_forge_is_refused_at_a_gateway(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (_, gate, admin):
        token = await user(admin, "bob", ("produce", "orders"))
        talker = await Talker.by_socket(gate, hello=False)
        hello = proto.Hello(protocol=2, client="talker", token=token)
        await talker.ask(proto.Request(id=1, hello=hello))
        produce = proto.Produce(topic="orders")
        for forged in (
            proto.Request(id=5, produce=produce, user="root"),
            proto.Request(id=5, produce=produce, forwarded=True),
        ):
            answer = await talker.ask(forged, encode_batch([b"x"]))
            assert isinstance(error_from_proto(answer.error), Forbidden), answer
        talker.close()


# TLS.


@on_loop
async def test_tls_at_the_gateway_and_towards_the_brokers(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    files = {"tls_cert": str(tmp_path / "server.pem"), "tls_key": str(tmp_path / "server.key")}
    authority = str(tmp_path / "ca.pem")
    async with serving(tmp_path / "data", **files, tls_ca=authority) as server:
        # TLS on both sides; on the side of the brokers only; and a gateway that knows of none.
        async with gateway_of(server.listen, **files, tls_ca=authority) as gate:
            await until(lambda: gate.gateway.is_ready)
            async with connect(gate, tls=authority) as client:
                await client.create_topic("orders")
            with pytest.raises(ConnectionFailed):
                async with connect(gate, tls=False, timeout=1.5):
                    pass
        async with gateway_of(server.listen, tls_ca=authority) as gate:
            await until(lambda: gate.gateway.is_ready)
            async with connect(gate, tls=False) as client:
                await client.produce("orders", b"x")
        async with gateway_of(server.listen) as gate:
            await gate.gateway.watch.looked.wait()
            assert "TLS" in str(gate.gateway.unready)


@on_loop
async def test_tls_ends_at_a_gateway_whose_brokers_have_none(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    files = {"tls_cert": str(tmp_path / "server.pem"), "tls_key": str(tmp_path / "server.key")}
    async with (
        serving(tmp_path / "data") as server,
        gateway_of(server.listen, **files) as gate,
    ):
        await until(lambda: gate.gateway.is_ready)
        async with connect(gate, tls=str(tmp_path / "ca.pem")) as client:
            await client.create_topic("orders")


# Its end.


@on_loop
async def test_a_gateway_that_stops_ends_what_waits_and_takes_nothing_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        gate = GatewayServer(
            BrokerSettings(gateway=True, join=server.listen, listen="127.0.0.1:0", http="", grpc="")
        )
        await gate.start()
        talker = await Talker.by_socket(gate)
        await make_topic(talker)
        talker.say(waiting_poll(50))
        await until(lambda: gate.gateway.open_requests)
        await gate.stop()
        await talker.until_lost()
        # The broker is told: nothing waits there for nobody.
        connections = server.client_connections
        assert connections is not None
        await until(lambda: not any(c.session.client == "gateway" for c in connections.connections))
