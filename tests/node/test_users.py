"""Users in a cluster of three: requests that are passed on, and strangers who pose as brokers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quivermq
from quivermq.addresses import split_address
from quivermq.batches import DEFAULT_LIMITS
from quivermq.errors import ConnectionFailed, Forbidden, Unauthenticated
from quivermq.node.access_control import NO_USERS, CatchUp
from quivermq.node.cluster_secret import CLIENT_LISTENER, NONCE_BYTES, BrokerProof, ClusterSecret
from quivermq.node.forwarding import Forwarding
from quivermq.transports import Server
from quivermq.wire import PROTOCOL, Receiver, packet, parse_peer_hello, proto
from tests.node.cluster_stage import Brokers, cluster, free_addresses
from tests.tls.stage import Certificates
from tests.transports.stage import Talker, on_loop, on_served_loop, settings, until

SECRET = "the secret of this cluster"
GUARDED = {"users": True, "cluster_secret": SECRET, "tick_ms": 50, "election_ticks": 10}


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[tuple[Brokers, Any]]:
    """Three brokers with users, and their admin's client."""
    async with cluster(folder, **GUARDED) as brokers:
        async with connect(brokers, 1) as anonymous:
            token = await anonymous.users.add("root")
            await anonymous.users.grant("root", "admin")
        async with connect(brokers, 1, token) as admin:
            yield brokers, admin


def connect(brokers: Brokers, node: int, token: str | None = None) -> Any:
    return quivermq.aio.connect(brokers.running[node].listen, token=token, timeout=10.0)


async def hello_of(brokers: Brokers, node: int, token: str) -> Talker:
    talker = await Talker.by_socket(brokers.running[node], hello=False)
    hello = proto.Hello(protocol=PROTOCOL, client="talker", token=token)
    answer = await talker.ask(proto.Request(id=1, hello=hello))
    assert answer.WhichOneof("body") == "welcome", answer
    return talker


@on_served_loop
async def test_every_broker_knows_users_and_passes_requests_on_under_their_names(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as (brokers, admin):
        await admin.create_topic("orders", partitions=3, replication=3)
        token = await admin.users.add("bob")
        # Every broker at once: one that has not heard of the user asks before it refuses.
        talkers = {node: await hello_of(brokers, node, token) for node in (1, 2, 3)}
        await admin.users.grant("bob", "produce", topic="orders")
        for number, talker in talkers.items():
            ids = proto.Request(id=number + 10, new_producer=proto.NewProducer())
            answer = await talker.ask(ids)
            assert answer.WhichOneof("body") == "producer_granted", answer
        for number, talker in talkers.items():
            creation = proto.CreateTopic(name=f"mine{number}")
            answer = await talker.ask(proto.Request(id=20, create_topic=creation))
            assert answer.error.code == "Forbidden", answer
        await admin.users.remove("bob")
        for talker in talkers.values():
            await talker.until_lost()
        for node in (1, 2, 3):
            with pytest.raises(Unauthenticated):
                async with connect(brokers, node, token):
                    pass


@on_served_loop
async def test_users_the_secret_and_tls_work_together(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    given = {**GUARDED, **certificates.settings(mutual=True)}
    async with cluster(tmp_path, **given) as brokers:
        one, two = brokers.running[1], brokers.running[2]
        ca = str(certificates.ca)
        async with quivermq.aio.connect(one.listen, tls=ca) as anonymous:
            token = await anonymous.users.add("root")
            await anonymous.users.grant("root", "admin")
        # Passed on to the leader by one of the two.
        for server in (one, two):
            async with quivermq.aio.connect(server.listen, tls=ca, token=token) as root:
                await root.create_topic(f"orders{server.broker.settings.node_id}", replication=3)


@on_served_loop
async def test_what_brokers_pass_on_is_checked_again_where_it_is_answered(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (brokers, admin):
        await admin.users.add("bob")
        leader = next(
            server for server in brokers.running.values() if server.broker.metadata.is_leader
        )
        secret = ClusterSecret(SECRET.encode(), CLIENT_LISTENER)
        forwarding = Forwarding(
            lambda _: leader.listen, leader.broker.limits, "broker 9", secret=secret
        )

        async def ask(user: str, name: str) -> str:
            request = proto.Request(forwarded=True, user=user)
            request.create_topic.name = name
            response, _ = await forwarding.forward(1, request, (), 5.0)
            return response.error.code

        assert await ask("bob", "mine") == "Forbidden"
        assert await ask("nobody", "mine") == "Unauthenticated"
        # A broker that was started without users vouches for nobody.
        assert await ask(NO_USERS, "mine") == "Unauthenticated"
        assert await ask("root", "a") == ""
        assert await ask("", "b") == "", "the broker itself"
        await forwarding.close()


@on_served_loop
async def test_a_broker_with_another_secret_or_none_stays_outside(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (brokers, admin):
        known = brokers.running[1]
        for number, secret in enumerate(("another secret of some length", ""), 7):
            changes = {"join": known.listen, "node_id": number, "cluster_secret": secret}
            stranger = Server(settings(tmp_path / str(number), **changes))
            await stranger.start()
            try:
                await check_outside(stranger, brokers.addresses[1])
            finally:
                await stranger.stop()
            assert [node.id for node in (await admin.cluster(latest=True)).nodes] == [1, 2, 3]


async def check_outside(stranger: Server, peer_address: str) -> None:
    # It dials a broker as a peer, too.
    stranger.broker.links.know(1, peer_address)
    await until(lambda: stranger.broker.links.peers[1].refusal)
    assert "secret" in stranger.broker.links.peers[1].refusal
    await until(lambda: stranger.broker.membership.refusal)
    assert not stranger.broker.membership.is_registered
    assert stranger.broker.unready is not None


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(address)
    return await asyncio.open_connection(host, port)


async def hear(reader: asyncio.StreamReader, receiver: Receiver) -> proto.PeerHello:
    async with asyncio.timeout(10):
        while True:
            data = await reader.read(4096)
            assert data, "closed"
            buffer = receiver.get_buffer()
            buffer[: len(data)] = data
            for found in receiver.received(len(data)):
                return parse_peer_hello(found.envelope)


@on_served_loop
async def test_a_stranger_on_the_peer_port_gets_nowhere(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (brokers, _):
        server = brokers.running[1]
        term = server.broker.metadata.hosted.replica.term  # type: ignore[union-attr]
        known = brokers.running[2].broker.membership.hello()
        lead = proto.Leadership(partition=bytes(16), term=1 << 40)
        forged = proto.PeerPacket(alive=True, leads=[lead])
        # All that is known of a real broker, without the secret.
        for nonce, proof in (
            (b"", b""),
            (bytes(NONCE_BYTES), bytes(32)),
            (bytes(NONCE_BYTES), None),
        ):
            reader, writer = await dial(brokers.addresses[1])
            receiver = Receiver(1 << 20)
            known.nonce = nonce
            writer.writelines(packet(known.SerializeToString()))
            answer = await hear(reader, receiver)
            if nonce:
                assert answer.proof, "the other side proves itself first"
                assert not answer.node, "and says nothing of itself before it knows to whom"
                sent = answer.proof if proof is None else proof
                hello = proto.PeerHello(protocol=PROTOCOL, proof=sent)
                writer.writelines(packet(hello.SerializeToString()))
                writer.writelines(packet(forged.SerializeToString()))
                answer = await hear(reader, receiver)
            assert "secret" in answer.refusal
            assert await reader.read() == b"", "the connection is closed"
            writer.close()
        assert server.broker.leaders.node(bytes(16)) == 0
        assert server.broker.metadata.hosted.replica.term == term  # type: ignore[union-attr]


@on_loop
async def test_an_impostor_at_the_address_of_a_broker_is_not_sent_anything(tmp_path: Path) -> None:
    """It answers as a broker without the secret would, and waits for requests."""
    heard: list[bytes] = []
    answers = [
        proto.Response(id=1, welcome=proto.Welcome(protocol=PROTOCOL)),
        proto.Response(id=1, challenge=proto.Challenge(nonce=bytes(32), proof=bytes(32))),
        proto.Response(id=1, challenge=proto.Challenge()),
    ]
    connections = len(answers)

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(4096))
        writer.writelines(packet(answers.pop().SerializeToString()))
        heard.append(await reader.read(4096))
        writer.close()

    (address,) = free_addresses(1)
    host, port = split_address(address)
    server = await asyncio.start_server(impostor, host, port)
    secret = ClusterSecret(SECRET.encode(), CLIENT_LISTENER)
    forwarding = Forwarding(lambda _: address, DEFAULT_LIMITS, "broker 1", secret=secret)
    request = proto.Request(forwarded=True, produce=proto.Produce(topic="secret-topic"))
    for _ in range(connections):
        with pytest.raises((Unauthenticated, ConnectionFailed)):
            await forwarding.forward(2, request, (), 5.0)
    await until(lambda: len(heard) == 2 * connections)
    assert not any(b"secret-topic" in each for each in heard)
    assert not any(heard[1::2]), "nor is anything proved to it"
    await forwarding.close()
    server.close()
    await server.wait_closed()


@on_loop
async def test_many_that_are_refused_share_the_question_to_the_quorum() -> None:
    asked = 0

    async def catch_up() -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        if asked == 2:
            raise Forbidden("no quorum")

    shared = CatchUp(catch_up)
    first = asyncio.create_task(shared())
    await asyncio.sleep(0.005)
    # These come while the first question is under way: they share the second one.
    results = await asyncio.gather(*(shared() for _ in range(50)), return_exceptions=True)
    await first
    assert asked == 2
    assert all(isinstance(result, Forbidden) for result in results)
    await shared()
    assert asked == 3
    await shared.close()


def test_a_proof_answers_only_a_challenge() -> None:
    proof = BrokerProof(ClusterSecret(SECRET.encode(), CLIENT_LISTENER))
    with pytest.raises(Unauthenticated):
        proof.answer(proto.Response(welcome=proto.Welcome(protocol=PROTOCOL)))
