"""Server-sent events: messages as they come, resumed, given back, for clients that are slow."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from quivermq.addresses import split_address
from quivermq.transports import Server
from quivermq.transports.http.stream import (
    REMEMBERED_EVENTS_MAX,
    REMEMBERED_STREAMS_MAX,
    SentEvents,
    _Sent,
)
from tests.transports.stage import PATIENCE_S, on_served_loop, serving, until
from tests.transports.test_http_api import (
    ANYWHERE,
    BILLING,
    ORDERS,
    client_of,
    eventually,
    make_orders,
    members,
    ok,
    post,
    refusal,
    shown,
)


class Events:
    """What a stream says."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        """The id and the data of the next event; comments are passed over."""
        found: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if line and name:
                    found[name] = value
                elif "data" in found:
                    return found.get("id", found.get("event", "")), json.loads(found["data"])
        raise EOFError("the stream has ended")


@asynccontextmanager
async def stream(
    server: Server, last: str | None = None, **parameters: Any
) -> AsyncIterator[Events]:
    """A stream on a connection of its own."""
    headers = {} if last is None else {"last-event-id": last}
    async with (
        client_of(server) as client,
        client.stream("GET", f"{BILLING}/stream", params=parameters, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


@on_served_loop
async def test_messages_are_pushed_and_acknowledged(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, "a")
        async with stream(server) as events:
            _, first = await events.next()
            assert (first["value"], first["delivery_count"]) == ("a", 1)
            # What comes while it listens.
            await post(client, f"{ORDERS}/messages", messages=[{"value": "b"}])
            _, second = await events.next()
            assert second["value"] == "b"
            for message in (first, second):
                lease = {name: message[name] for name in ("partition", "lease")}
                await post(client, f"{BILLING}/ack", leases=[lease])
        group = await shown(client, BILLING)
        assert (group["done"], group["in_flight"]) == ("2", "0")


@on_served_loop
async def test_what_did_not_arrive_comes_again_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, "a", "b", "c", "d")
        async with stream(server, visibility=600) as events:
            seen = [await events.next() for _ in range(4)]
        await until(lambda: not members(server))
        # The client has seen two of them when its connection breaks.
        async with stream(server, last=seen[1][0], visibility=600) as events:
            again = [await events.next() for _ in range(2)]
        assert [message["value"] for _, message in again] == ["c", "d"]
        assert [message["delivery_count"] for _, message in again] == [1, 1]
        # The first two are still leased to it.
        leases = [
            {"partition": 0, "lease": message["lease"], "offsets": [message["offset"]]}
            for _, message in seen[:2]
        ]
        await post(client, f"{BILLING}/ack", leases=leases)


@on_served_loop
async def test_an_id_that_says_nothing_is_no_reason_to_fail(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, "a")
        for last in ("", "nonsense", "0123456789abcdef-7", "x-" + "9" * 400):
            async with stream(server, last=last, ack="auto", start="earliest") as events:
                await post(client, f"{ORDERS}/messages", messages=[{"value": "b"}])
                assert (await events.next())[1]["lease"] == ""


@on_served_loop
async def test_a_client_that_leaves_is_noticed(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client)
        async with stream(server):
            await until(lambda: members(server))
        await until(lambda: not members(server))
        await post(client, f"{ORDERS}/messages", messages=[{"value": "a"}])
        polled = await post(client, f"{BILLING}/poll")
        assert [one["delivery_count"] for one in polled["messages"]] == [1]


@on_served_loop
async def test_a_client_that_reads_nothing_is_waited_for_then_disconnected(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, http=ANYWHERE, http_timeout_ms=1_000) as server,
        client_of(server) as client,
    ):
        await make_orders(client)
        large = [{"value": "x" * 10_000} for _ in range(90)]
        for _ in range(10):
            await post(client, f"{ORDERS}/messages", messages=large)
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        place.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(place, split_address(server.http))
        asked = f"GET {BILLING}/stream?max_messages=10&visibility=600 HTTP/1.1\r\nhost: x\r\n\r\n"
        await loop.sock_sendall(place, asked.encode())
        connections = server._http.serving.connections  # type: ignore[union-attr]
        await until(lambda: any(one.is_write_paused for one in connections))
        assert sum(one.unwritten_bytes for one in connections) < 1 << 20
        await until(lambda: not any(one.is_write_paused for one in connections))
        place.close()
        # What never left is there for others at once, and not only when its lease ends.
        group = await shown(client, BILLING)
        assert 0 < int(group["in_flight"]) < 900
        await eventually(
            lambda: post(client, f"{BILLING}/poll", wait=0), lambda found: found["messages"]
        )


@on_served_loop
async def test_a_stream_of_nothing_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        answer = await client.get(f"{BILLING}/stream")
        assert await refusal(answer) == (404, "TopicNotFound")


@on_served_loop
async def test_a_stream_of_a_topic_that_is_deleted_ends_with_the_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, "a")
        async with stream(server) as events:
            await events.next()
            await ok(await client.delete(ORDERS), 204)
            name, problem = await events.next()
            assert name == "error"
            assert problem["error"]["code"] == "TopicNotFound"


@on_served_loop
async def test_a_broker_that_stops_ends_streams_and_polls(tmp_path: Path) -> None:
    """In time, though no message comes; no task is left behind."""
    async with serving(tmp_path, http=ANYWHERE) as server:
        client = client_of(server)
        await make_orders(client)
        streaming = asyncio.create_task(client.get(f"{BILLING}/stream"))
        polling = asyncio.create_task(client.post(f"{BILLING}/poll", json={"wait": 60}))
        await until(lambda: members(server) == 2)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < PATIENCE_S
    outcomes = await asyncio.gather(streaming, polling, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, httpx.TransportError | httpx.Response)
    await client.aclose()


def test_only_so_much_is_remembered_of_streams() -> None:
    events = SentEvents()
    name, sent = events.open()
    for number in range(REMEMBERED_EVENTS_MAX + 10):
        sent.append(_Sent(number, 0, "1" * 32, number))
    assert len(sent) == REMEMBERED_EVENTS_MAX
    assert [one.number for one in events.take_after(f"{name}-{REMEMBERED_EVENTS_MAX + 7}")] == [
        REMEMBERED_EVENTS_MAX + 8,
        REMEMBERED_EVENTS_MAX + 9,
    ]
    assert events.take_after(f"{name}-0") == []
    for _ in range(REMEMBERED_STREAMS_MAX):
        events.open()
    first, kept = events.open()
    kept.append(_Sent(1, 0, "1" * 32, 1))
    for _ in range(REMEMBERED_STREAMS_MAX):
        events.open()
    assert events.take_after(f"{first}-0") == []
