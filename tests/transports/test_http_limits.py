"""HTTP clients that are slow, greedy or talk nonsense."""

import asyncio
import gc
import socket
from pathlib import Path

import pytest

from quivermq.addresses import split_address
from quivermq.transports import Server
from tests.tls.stage import Certificates
from tests.transports.browser import Wire, get
from tests.transports.stage import (
    Talker,
    hears_only_the_end,
    make_topic,
    on_loop,
    on_served_loop,
    serving,
    store,
    until,
)

ANYWHERE = "127.0.0.1:0"
HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\n"


async def refusal(server: Server, said: bytes) -> tuple[int, str]:
    """The status and the code of an answer after which the connection is closed."""
    wire = await Wire.to(server)
    wire.say(said)
    page = await wire.answer()
    assert page.headers["connection"] == "close"
    assert page.headers["content-type"] == "application/json"
    assert await wire.is_ended()
    await wire.close()
    return page.status, page.json["error"]["code"]


@pytest.mark.parametrize(
    "said",
    [
        HEALTH + b"x: " + b"y" * 40_000,
        HEALTH + b"x: y\r\n" * 8_000,
        b"GET /" + b"y" * 40_000,
    ],
)
@on_served_loop
async def test_headers_without_an_end_are_refused(tmp_path: Path, said: bytes) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        assert await refusal(server, said) == (431, "TooLarge")


@on_served_loop
async def test_a_body_above_the_limit_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_body_bytes_max=1_000) as server:
        small = HEALTH + b"content-length: 900\r\n\r\n" + b"x" * 900
        wire = await Wire.to(server)
        for _ in range(3):
            wire.say(small)
            assert (await wire.answer()).status == 200
        await wire.close()
        # It is refused however it comes: announced, or in pieces.
        pieces = b"3e8\r\n" + b"x" * 1_000 + b"\r\n5\r\nxxxxx"
        for body in (
            b"content-length: 2000\r\n\r\n" + b"x" * 2_000,
            b"transfer-encoding: chunked\r\n\r\n" + pieces,
        ):
            assert await refusal(server, HEALTH + body) == (413, "TooLarge")


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\x01\x02 nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        # The parser takes these as requests; only their address is none.
        b"CONNECT other:443 HTTP/1.1\r\nhost: other\r\n\r\n",
        b"GET http://[/health HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
@on_served_loop
async def test_nonsense_is_refused(tmp_path: Path, said: bytes) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        assert await refusal(server, said) == (400, "InvalidRequest")


@on_served_loop
async def test_a_refusal_is_never_taken_for_the_answer_to_an_earlier_request(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_body_bytes_max=1_000) as server:
        wire = await Wire.to(server)
        wire.say(HEALTH + b"\r\n" + HEALTH + b"content-length: 2000\r\n\r\n" + b"x" * 2_000)
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).status == 413
        assert await wire.is_ended()
        await wire.close()


@pytest.mark.parametrize(
    "said",
    [
        b"GET /health HTTP/1.0\r\n\r\nnonsense\r\n\r\n",
        HEALTH + b"connection: close\r\n\r\n\r\n\r\n",
    ],
)
@on_served_loop
async def test_what_stands_behind_the_last_request_is_not_heard(
    tmp_path: Path, said: bytes
) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        wire = await Wire.to(server)
        wire.say(said)
        assert (await wire.answer()).status == 200
        assert await wire.is_ended()
        await wire.close()


@pytest.mark.parametrize("said", [b"", HEALTH, HEALTH + b"content-length: 5\r\n\r\nx"])
@on_served_loop
async def test_a_request_that_does_not_end_is_given_up(tmp_path: Path, said: bytes) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_timeout_ms=600) as server:
        wire = await Wire.to(server)
        wire.say(said)
        # A body that nobody waited for gets no second answer.
        assert (await wire.answer()).status == (200 if b"content-length" in said else 408)
        assert await wire.is_ended()
        await wire.close()


@on_served_loop
async def test_one_byte_after_another_is_no_request(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_timeout_ms=600) as server:
        wire = await Wire.to(server)
        dripping = asyncio.create_task(drip(wire))
        assert (await wire.answer()).status == 408
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        await wire.close()


async def drip(wire: Wire) -> None:
    wire.say(HEALTH + b"x: ")
    while True:
        wire.say(b"y")
        await asyncio.sleep(0.01)


@on_served_loop
async def test_one_client_too_many_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_connections_max=2) as server:
        wires = [await Wire.to(server), await Wire.to(server)]
        wires[0].say(HEALTH + b"\r\n")
        assert (await wires[0].answer()).status == 200
        assert await refusal(server, b"") == (503, "Overloaded")
        await wires[0].close()
        connections = server._http.serving.connections  # type: ignore[union-attr]
        await until(lambda: len(connections) == 1)
        assert (await get(server, "/health")).status == 200
        await wires[1].close()


@on_served_loop
async def test_one_address_cannot_have_all_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_connections_max=5) as server:
        wires = [await Wire.to(server) for _ in range(4)]
        for wire in wires:
            wire.say(HEALTH + b"\r\n")
            assert (await wire.answer()).status == 200
        assert await refusal(server, b"") == (503, "Overloaded")
        place = socket.create_connection(
            split_address(server.http), source_address=("127.0.0.2", 0)
        )
        other = Wire(*await asyncio.open_connection(sock=place))
        other.say(HEALTH + b"\r\n")
        assert (await other.answer()).status == 200
        for wire in [*wires, other]:
            await wire.close()


PLACE = {"topic": "orders", "group": "billing", "partition": "0", "offset": "0"}
ENDLESS = ("/v1/topics/{topic}/groups/{group}/stream", "/v1/events")


@on_served_loop
async def test_no_page_holds_the_loop(tmp_path: Path) -> None:
    """Each page of the API, many at once, with a topic of many partitions."""
    # The objects of all tests of this process are not the broker's to collect.
    gc.freeze()
    async with serving(tmp_path, http=ANYWHERE) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=200)
        documented = (await get(server, "/openapi.json")).json["paths"]
        paths = ["/docs", *(path for path in documented if "get" in documented[path])]
        for endless in ENDLESS:
            paths.remove(endless)
        assert "/v1/topics" in paths
        for path in paths:
            pages = [get(server, path.format(**PLACE)) for _ in range(10)]
            # There is no such group, and no such letter.
            expected = 404 if "{group}" in path or "{offset}" in path else 200
            for page in await asyncio.gather(*pages):
                assert page.status == expected, path
        # What took too long is found by the budget that all tests have.
        assert server.broker.counters.stalls.count == 0
        talker.close()


@on_served_loop
async def test_a_client_that_takes_no_answers_is_disconnected_and_the_broker_goes_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, http=ANYWHERE, http_timeout_ms=400) as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=50)
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        place.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(place, split_address(server.http))
        # Far more than the system takes on the way.
        await loop.sock_sendall(place, b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 400)
        connections = server._http.serving.connections  # type: ignore[union-attr]
        await until(lambda: any(one.is_write_paused for one in connections))
        while connections:
            await store(talker, b"x")
            assert sum(one.unwritten_bytes for one in connections) < 1 << 20
        place.close()


@on_served_loop
async def test_with_tls_the_same_limits_hold(tmp_path: Path) -> None:
    """Also for those who do not complete their handshake, or do not begin one."""
    certificates = Certificates(tmp_path / "tls")
    secure = {**certificates.settings(), "http_timeout_ms": 600}
    async with serving(tmp_path / "data", http=ANYWHERE, **secure) as server:
        place = split_address(server.http)
        encrypted = Wire(*await asyncio.open_connection(*place, ssl=certificates.client()))
        encrypted.say(HEALTH + b"\r\n")
        assert (await encrypted.answer()).status == 200
        encrypted.say(HEALTH)
        assert (await encrypted.answer()).status == 408
        await encrypted.close()
        plain = await Wire.to(server)
        plain.say(HEALTH + b"\r\n")
        page = await plain.answer()
        assert (page.status, page.json["error"]["code"]) == (400, "ConnectionFailed")
        assert "https" in page.json["error"]["message"]
        await plain.close()
        silent = await Wire.to(server)
        assert await silent.is_ended()
        await silent.close()


@on_loop
async def test_a_connection_that_was_accepted_and_is_made_after_the_end_is_closed(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        assert server._http is not None
        protocol = server._http._connection
    assert await hears_only_the_end(protocol)
