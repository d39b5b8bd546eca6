"""The rules of a conversation, whatever carries it."""

import asyncio
import struct
from pathlib import Path

import pytest

import quivermq
from quivermq.batches import encode_batch
from quivermq.transports import Server, client_connections
from quivermq.transports.session import Session
from quivermq.wire import HELLO_BYTES_MAX, PROTOCOL, packet, proto
from tests.node.replica_stage import stuck
from tests.transports.stage import (
    UNKNOWN_BODY,
    Talker,
    make_topic,
    on_loop,
    serving,
    store,
    until,
    waiting_fetch,
)

PING = proto.Request(id=99, ping=proto.Ping())


def connection_of(server: Server) -> client_connections.ClientConnection:
    """The broker's end of the only talker's connection."""
    assert server.client_connections is not None
    connections = server.client_connections.connections
    (connection,) = [one for one in connections if one.session.client == "talker"]
    return connection


def session_of(server: Server) -> Session:
    return connection_of(server).session


async def still_talks(talker: Talker) -> bool:
    return (await talker.ask(PING)).WhichOneof("body") == "done"


@on_loop
async def test_a_welcome_tells_the_limits(tmp_path: Path) -> None:
    async with serving(tmp_path, node_id=7, requests_max=5, batch_bytes_max=1 << 20) as server:
        talker = await Talker.in_memory(server, hello=False)
        greeting = proto.Hello(protocol=PROTOCOL, client="t")
        welcome = (await talker.ask(proto.Request(id=12, hello=greeting))).welcome
        assert welcome.node == 7
        assert welcome.version == quivermq.__version__
        assert welcome.cluster_id == server.broker.membership.cluster_id
        assert welcome.requests_max == 5
        assert welcome.batch_bytes_max == 1 << 20
        assert welcome.packet_bytes_max > welcome.batch_bytes_max
        assert {"produce", "fetch"} <= set(welcome.features)


@pytest.mark.parametrize(
    "envelope",
    [
        PING.SerializeToString(),
        proto.Request(id=99, cancel=proto.Cancel(id=1)).SerializeToString(),
        proto.Request(id=99).SerializeToString() + UNKNOWN_BODY,
    ],
)
@on_loop
async def test_the_first_request_must_be_hello(tmp_path: Path, envelope: bytes) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server, hello=False)
        talker.say_envelope(envelope)
        answer = await talker.hear(99)
        assert answer.error.code == "InvalidRequest"
        assert "hello" in answer.error.message
        await talker.until_lost()


@on_loop
async def test_a_token_that_is_not_checked_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server, hello=False)
        greeting = proto.Hello(protocol=PROTOCOL, client="t", token="secret")
        answer = await talker.ask(proto.Request(id=1, hello=greeting))
        assert answer.error.code == "Unauthenticated"
        assert "without one" in answer.error.message
        await talker.until_lost()


@on_loop
async def test_another_protocol_is_refused_in_answer_to_its_hello(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server, hello=False)
        greeting = proto.Hello(protocol=PROTOCOL + 1)
        answer = await talker.ask(proto.Request(id=1, hello=greeting))
        assert answer.error.code == "UnsupportedFormat"
        await talker.until_lost()


@on_loop
async def test_an_unknown_request_is_refused_by_its_id_and_talk_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        talker.say_envelope(proto.Request(id=41).SerializeToString() + UNKNOWN_BODY)
        answer = await talker.hear(41)
        assert answer.error.code == "UnsupportedFormat"
        assert quivermq.__version__ in answer.error.message
        assert not answer.error.retriable
        assert await still_talks(talker)


@on_loop
async def test_an_envelope_that_is_none_ends_the_talk(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        talker.say_envelope(b"\xff\xff\xff")
        assert (await talker.hear(0)).error.code == "InvalidRequest"
        await talker.until_lost()


@on_loop
async def test_a_packet_above_the_limit_ends_the_talk(tmp_path: Path) -> None:
    async with serving(tmp_path, batch_bytes_max=1 << 20) as server:
        talker = await Talker.in_memory(server)
        talker.transport.write((3 << 20).to_bytes(4, "big") + bytes(4))
        assert (await talker.hear(0)).error.code == "TooLarge"
        await talker.until_lost()


@on_loop
async def test_before_a_hello_no_packet_may_be_large(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server, hello=False)
        talker.transport.write((HELLO_BYTES_MAX + 1).to_bytes(4, "big") + bytes(4))
        assert (await talker.hear(0)).error.code == "TooLarge"
        await talker.until_lost()


@on_loop
async def test_a_damaged_batch_is_refused_and_talk_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        produce = proto.Request(id=5, produce=proto.Produce(topic="orders"))
        content = bytearray(packet(produce.SerializeToString(), [encode_batch([b"value"])])[0])
        content[-1] ^= 1
        talker.transport.write(bytes(content))
        assert (await talker.hear(5)).error.code == "Corrupt"
        assert await still_talks(talker)


@on_loop
async def test_one_open_request_too_many_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, requests_max=3) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        for number in (10, 11, 12):
            talker.say(waiting_fetch(number))
        refused = await talker.ask(waiting_fetch(13))
        assert refused.error.code == "Overloaded"
        assert refused.error.retriable
        assert server.broker.counters.overloaded == 1
        # What makes room gets through, and then there is room.
        talker.say(proto.Request(cancel=proto.Cancel(id=11)))
        talker.say(waiting_fetch(14))
        await store(await Talker.in_memory(server), b"x")
        assert (await talker.hear(14)).fetched.next_offset == 1


@on_loop
async def test_too_many_bytes_at_once_wait_and_are_all_stored(tmp_path: Path) -> None:
    async with serving(tmp_path, request_bytes_max=100_000) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        produce = proto.Produce(topic="orders")
        for number in range(100, 120):
            talker.say(proto.Request(id=number, produce=produce), encode_batch([b"x" * 90_000]))
            # One packet at a time: many at once are refused, which is another test.
            await asyncio.sleep(0)
        answers = [await talker.hear(number) for number in range(100, 120)]
        stored = [one for one in answers if one.WhichOneof("body") == "produced"]
        refused = [one.error.code for one in answers if one.WhichOneof("body") == "error"]
        assert set(refused) <= {"Overloaded"}
        offsets = [one.produced.batches[0].first_offset for one in stored]
        assert offsets == list(range(len(stored)))
        assert len(stored) > 1
        talker.close()


@on_loop
async def test_a_client_that_said_too_much_is_listened_to_again_when_it_is_answered(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, request_bytes_max=1) as server:
        talker = await Talker.by_socket(server)
        await make_topic(talker)
        for _ in range(3):
            await store(talker, b"x")
        talker.close()


@on_loop
async def test_an_id_that_is_in_use_ends_the_talk(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        talker.say(waiting_fetch(10))
        assert (await talker.ask(waiting_fetch(10))).error.code == "InvalidRequest"
        await talker.until_lost()


@on_loop
async def test_a_cancelled_request_is_never_answered_and_its_id_is_free(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        talker.say(waiting_fetch(10))
        talker.say(proto.Request(cancel=proto.Cancel(id=10)))
        answer = await talker.ask(proto.Request(id=10, map=proto.MapQuery()))
        assert answer.WhichOneof("body") == "map"
        await store(talker, b"x")
        assert await still_talks(talker)
        assert talker.heard == []


@on_loop
async def test_a_cancel_of_what_is_not_open_means_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        talker.say(proto.Request(cancel=proto.Cancel(id=1234)))
        assert await still_talks(talker)


@on_loop
async def test_requests_of_a_lost_connection_are_given_up(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        before = len(asyncio.all_tasks())
        talker.say(waiting_fetch(10))
        await until(lambda: len(asyncio.all_tasks()) > before)
        talker.close()
        await until(lambda: len(asyncio.all_tasks()) == before)


@pytest.mark.parametrize("drop", [b"", b"\0"])
@on_loop
async def test_a_connection_without_a_hello_is_closed(tmp_path: Path, drop: bytes) -> None:
    async with serving(tmp_path, hello_timeout_ms=150) as server:
        talker = await Talker.in_memory(server, hello=False)
        talker.transport.write(struct.pack(">II", 50_004, 50_000) if drop else b"")
        while not talker.lost.is_set():
            # One byte after another is no hello either.
            talker.transport.write(drop)
            await asyncio.sleep(0.01)
        assert talker.heard == []


@on_loop
async def test_bytes_that_are_no_hello_win_no_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.client_connections is not None
        settings = server.client_connections.settings
        limit_s = settings.hello_timeout_s
        session = Session(
            server.broker.service,
            server.broker.access,
            settings,
            str,
            write=lambda _: None,
            unread=int,
            hang_up=lambda: None,
            now=0.0,
        )
        session.receiver.get_buffer()[:1] = b"\0"
        session.received(1, now=limit_s - 0.1)
        assert not session.is_overdue(limit_s - 0.05)
        assert session.is_overdue(limit_s + 0.05)


@on_loop
async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_timeout_ms=200) as server:
        talker = await Talker.in_memory(server)
        await talker.until_lost()


@on_loop
async def test_a_connection_with_an_open_request_is_not_idle(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        session = session_of(server)
        talker.say(waiting_fetch(10))
        assert await still_talks(talker)
        long_after = asyncio.get_running_loop().time() + 2 * session.settings.idle_timeout_s
        assert not session.is_overdue(long_after)
        talker.say(proto.Request(cancel=proto.Cancel(id=10)))
        assert await still_talks(talker)
        assert session.is_overdue(long_after)


@on_loop
async def test_one_address_cannot_have_all_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_max=5) as server:
        assert server.client_connections is not None
        talkers = []
        # The broker may be a client of itself.
        while len(server.client_connections.connections) < 4:
            talkers.append(await Talker.by_socket(server))
        late = await Talker.by_socket(server, hello=False)
        answer = await late.hear(0)
        assert answer.error.code == "Overloaded"
        assert "127.0.0.1" in answer.error.message
        await late.until_lost()
        # From elsewhere there is still a place.
        elsewhere = await Talker.by_socket(server, local_addr=("127.0.0.2", 0))
        for talker in [*talkers, elsewhere]:
            assert await still_talks(talker)
            talker.close()


@on_loop
async def test_an_answer_that_no_client_takes_is_refused_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quivermq.transports.session.BROKER_ENVELOPE_BYTES_MAX", 300)
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        answer = await talker.ask(proto.Request(id=5, stats=proto.Stats()))
        assert answer.error.code == "TooLarge"
        assert await still_talks(talker)


@on_loop
async def test_one_client_too_many_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_max=4) as server:
        assert server.client_connections is not None
        talkers = []
        while len(server.client_connections.connections) < 4:
            talkers.append(await Talker.in_memory(server))
        late = await Talker.in_memory(server, hello=False)
        answer = await late.hear(0)
        assert answer.error.code == "Overloaded"
        await late.until_lost()
        assert server.broker.counters.overloaded == 1
        talkers[0].close()
        await until(lambda: len(server.client_connections.connections) == 3)  # type: ignore[union-attr]
        assert await still_talks(await Talker.in_memory(server))


@on_loop
async def test_a_broker_that_stops_closes_its_connections(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        talker.say(waiting_fetch(10))
        await still_talks(talker)
    await talker.until_lost()
    assert server.broker.counters.connections == 0


@on_loop
async def test_a_broker_that_stops_answers_open_produces_before_it_hangs_up(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, fsync="always") as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker)
        with stuck(server.broker.disk_thread):
            body = proto.Produce(topic="orders")
            talker.say(proto.Request(id=10, produce=body), encode_batch([b"x"]))
            await still_talks(talker)
            stopping = asyncio.create_task(server.stop())
            await until(lambda: talker.heard or talker.lost.is_set())
        await stopping
    assert [(answer.id, answer.error.code) for answer in talker.heard] == [(10, "Timeout")]


@on_loop
async def test_connections_that_do_not_end_by_themselves_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connections, "_LINGER_S", 0.02)
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        talker.transport.pause_reading()
        talker.say(PING)
        session = session_of(server)
        await until(lambda: session.backlog.unread)
        assert server.client_connections is not None
        await server.client_connections.close()
        assert not server.client_connections.connections


@on_loop
async def test_a_packet_stands_still_only_while_its_client_is_listened_to(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_timeout_ms=3_600_000) as server:
        talker = await Talker.in_memory(server)
        talker.transport.write(b"".join(packet(PING.SerializeToString()))[:-1])
        connection = connection_of(server)
        await until(lambda: connection.session.receiver.arrived_bytes)
        now = asyncio.get_running_loop().time()
        connection._is_paused = True
        for seconds in range(0, 60, 10):
            connection.sweep(now + seconds)
        connection._is_paused = False
        connection.sweep(now + 51)
        await asyncio.sleep(0.02)
        assert not talker.lost.is_set()
        connection.sweep(now + 60)
        await talker.until_lost()


@on_loop
async def test_a_service_that_is_closed_refuses(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        await server.broker.service.close()
        answer = await talker.ask(proto.Request(id=4, map=proto.MapQuery()))
        assert answer.error.code == "ConnectionFailed"
        assert answer.error.retriable


@on_loop
async def test_answers_of_every_kind_wait_for_room(tmp_path: Path) -> None:
    async with serving(tmp_path, unread_bytes_max=20_000) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=20)
        size = len(packet((await talker.ask(map_query(4))).SerializeToString())[0])
        talker.transport.pause_reading()
        asked = range(100, 300)
        # All at once, so that all of them are open before anything is answered.
        packets = [packet(map_query(number).SerializeToString())[0] for number in asked]
        talker.transport.write(b"".join(packets))
        session = session_of(server)
        await until(lambda: session.backlog.unread > 10_000)
        for _ in range(20):
            await asyncio.sleep(0)
            assert session.backlog.unread <= 20_000 + size
        talker.transport.resume_reading()
        await until(lambda: len(talker.heard) == len(asked))
        assert size * len(asked) > 60_000


def map_query(number: int) -> proto.Request:
    return proto.Request(id=number, map=proto.MapQuery())
