"""The event feed at the doors of one broker: what is told, who reads it, and how it goes on."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import quivermq.aio
from quivermq.errors import Forbidden, InvalidRequest, Unauthenticated
from quivermq.events import EVENTS_TOPIC
from quivermq.node import event_feed
from quivermq.transports import Server
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.http import events as http_events
from tests.tls.stage import Certificates
from tests.transports.grpc_stage import calling
from tests.transports.stage import PATIENCE_S, on_served_loop, serving, until
from tests.transports.test_http_api import ANYWHERE, client_of, refusal
from tests.transports.test_http_stream import Events
from tests.transports.test_users import connect, guarded, user


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_feed, "_LOOK_S", 0.05)
    monkeypatch.setattr(event_feed, "_REFUSALS_S", 0.3)
    monkeypatch.setattr(http_events, "BEAT_S", 0.3)


@asynccontextmanager
async def told(server: Server, last: str | None = None, **query: Any) -> AsyncIterator[Events]:
    """A stream of events, as a browser opens it."""
    headers = {"accept": "text/event-stream"}
    headers |= {} if last is None else {"last-event-id": last}
    async with (
        client_of(server) as client,
        client.stream("GET", "/v1/events", params=query, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Events(answer)


async def all_of(client: quivermq.aio.AsyncClient, **options: Any) -> list[quivermq.events.Event]:
    return [event async for event in client.events(**options)]


async def found(client: quivermq.aio.AsyncClient, kind: str) -> quivermq.events.Event:
    """The first event of a kind, once it is stored."""
    async with asyncio.timeout(PATIENCE_S):
        async for event in client.events(kinds=kind, follow=True):
            return event
    raise AssertionError("a stream that follows does not end")


@on_served_loop
async def test_a_stream_tells_what_happens_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, http=ANYWHERE, events=True) as server,
        connect(server) as client,
    ):
        # Before there is a topic.
        async with told(server, kind=["topic_created", "topic_altered"]) as events:
            await client.create_topic("orders")
            first, event = await events.next()
            assert (event["kind"], event["topic"]) == ("topic_created", "orders")
            assert event["detail"] == "topic orders was created: 1 partition, 1 replica each"
        await client.alter_topic("orders", max_deliveries=7)
        await client.delete_topic("orders")
        # What happened while nobody listened.
        seen: list[tuple[str, Any]] = []
        async with told(server, last=first) as events:
            while not seen or seen[-1][1]["kind"] != "topic_deleted":
                seen.append(await events.next())
        numbers = [int(number) for number, _ in seen]
        assert numbers == list(range(int(first) + 1, int(first) + 1 + len(seen)))
        assert "topic_altered" in {event["kind"] for _, event in seen}
        # From now on, unless it is asked for more.
        async with told(server) as events:
            await client.create_topic("fresh")
            _, event = await events.next()
            assert event["topic"] == "fresh"


@on_served_loop
async def test_a_stream_that_finds_nothing_says_where_it_is(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, http=ANYWHERE, events=True) as server,
        connect(server) as client,
        client_of(server) as http,
    ):
        await client.create_topic("orders")
        await found(client, "topic_created")
        query = {"kind": "broker_left", "since": "1h"}
        async with http.stream("GET", "/v1/events", params=query) as answer:
            async with asyncio.timeout(PATIENCE_S):
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        assert int(line.removeprefix("id: ")) >= 0
                        break
                    assert not line.startswith("data")


@on_served_loop
async def test_a_stream_ends_behind_the_last_event_if_it_is_told_to(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, http=ANYWHERE, events=True) as server,
        connect(server) as client,
        client_of(server) as http,
    ):
        query = {"follow": "false", "since": "1h"}
        assert "data" not in (await http.get("/v1/events", params=query)).text
        for number in range(3):
            await client.create_topic(f"t{number}")
        await until(lambda: server.broker.events and not server.broker.events.waiting)
        page = (await http.get("/v1/events", params=query)).text
        kinds = [json.loads(line[6:])["kind"] for line in page.splitlines() if line[:5] == "data:"]
        # Three, and the topic of the events itself.
        assert kinds.count("topic_created") == 4
        assert kinds.count("broker_joined") == 1
        stale = await http.get("/v1/events", params=query, headers={"last-event-id": "9" * 18})
        assert stale.status_code == 200
        assert (await http.get("/v1/events", params={"follow": "false"})).text.count("data:") == 0
        for bad in ({"since": "yesterday"}, {"kind": "nonsense"}, {"follow": "perhaps"}):
            assert await refusal(await http.get("/v1/events", params=bad)) == (
                400,
                "InvalidRequest",
            )


@on_served_loop
async def test_a_forged_event_does_not_break_the_stream(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, http=ANYWHERE, events=True) as server,
        connect(server) as client,
    ):
        await client.create_topic("orders")
        await found(client, "topic_created")
        async with told(server) as events:
            # Without users everybody may write it.
            await client.produce(EVENTS_TOPIC, b"\xff")
            lines = b'{"time": "t",\n\n"kind": "disk_full",\n"detail": "a\\nb"}'
            await client.produce(EVENTS_TOPIC, lines)
            _, event = await events.next()
            assert event["detail"] == "a\nb"


@on_served_loop
async def test_admins_read_the_feed_and_who_was_granted_it_and_nobody_writes_it(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path, http=ANYWHERE, events=True) as (server, admin):
        await found(admin, "topic_created")
        tokens = {
            "all": await user(admin, "all", ("consume", "", "")),
            "reader": await user(admin, "reader", ("consume", EVENTS_TOPIC, "")),
        }
        for name, status in (("all", 403), ("reader", 200)):
            headers = {"authorization": f"Bearer {tokens[name]}"}
            async with client_of(server) as client:
                query = {"follow": "false", "since": "1h"}
                answer = await client.get("/v1/events", params=query, headers=headers)
                assert answer.status_code == status, name
                assert (await client.get("/v1/events")).status_code == 401
        async with connect(server, tokens["all"]) as everyone:
            with pytest.raises(Forbidden):
                await all_of(everyone)
        async with connect(server, tokens["reader"]) as reader:
            assert "topic_created" in {event.kind for event in await all_of(reader)}
            with pytest.raises(InvalidRequest, match="no kind"):
                await all_of(reader, kinds="nonsense")
        with pytest.raises(Forbidden):
            await admin.produce(EVENTS_TOPIC, b"{}")


@on_served_loop
async def test_a_stream_ends_when_its_user_is_removed(tmp_path: Path) -> None:
    async with guarded(tmp_path, http=ANYWHERE, events=True) as (server, admin):
        await found(admin, "topic_created")
        token = await user(admin, "reader", ("consume", EVENTS_TOPIC, ""))
        headers = {"authorization": f"Bearer {token}"}
        async with (
            client_of(server) as client,
            client.stream("GET", "/v1/events", headers=headers) as answer,
        ):
            await admin.users.remove("reader")
            with pytest.raises((EOFError, httpx.RemoteProtocolError)):
                await Events(answer).next()


@on_served_loop
async def test_refusals_of_all_doors_become_one_event(tmp_path: Path) -> None:
    async with guarded(tmp_path, http=ANYWHERE, events=True) as (server, admin):
        token = await user(admin, "bob", ("consume", "orders", ""))
        await found(admin, "topic_created")
        refusals = server.broker.counters.refusals
        before = refusals.copy()
        async with client_of(server) as client:
            for _ in range(20):
                wrong = {"authorization": "Bearer wrong"}
                assert (await client.get("/v1/topics", headers=wrong)).status_code == 401
            mine = {"authorization": f"Bearer {token}"}
            for path in ("/v1/topics/other", "/v1/topics/other/groups/g"):
                assert (await client.get(path, headers=mine)).status_code == 403
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                async with connect(server, "wrong"):
                    pass
        # Each once, though HTTP asks the service through the logic of a client. The connection that
        # made the first admin may be told to end, too.
        since = refusals - before
        assert since["Forbidden"] == 2
        assert since["Unauthenticated"] in (25, 26)
        async with asyncio.timeout(PATIENCE_S):
            counts: dict[str, int] = {}
            events = 0
            async for event in admin.events(kinds="refusals", follow=True):
                assert event.broker == 1
                events += 1
                for code, count in event.counts.items():
                    counts[code] = counts.get(code, 0) + count
                if counts == dict(refusals):
                    break
        assert events < 10


@on_served_loop
async def test_certificates_that_are_replaced_are_told(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    certificates.make("next")
    folder = certificates.folder
    settings = certificates.settings(mutual=False)
    async with (
        serving(tmp_path / "data", events=True, **settings) as server,
        quivermq.aio.connect(server.listen, tls=certificates.ca) as client,
    ):
        await client.create_topic("orders")
        assert server.broker.tls is not None
        shutil.copy(folder / "next.key", settings["tls_cert"])
        server.broker.tls.reload()
        assert "stay as they were" in (await found(client, "certificates_refused")).detail
        shutil.copy(folder / "next.pem", settings["tls_cert"])
        shutil.copy(folder / "next.key", settings["tls_key"])
        server.broker.tls.reload()
        assert "valid until" in (await found(client, "certificates_loaded")).detail


@on_served_loop
async def test_damage_is_told_by_the_broker_that_has_it(tmp_path: Path) -> None:
    async with serving(tmp_path, events=True) as server, connect(server) as client:
        await client.create_topic("orders")
        hosted = next(
            each
            for each in server.broker.scheduler.replicas.values()
            if each.name.topic == "orders"
        )
        hosted.give_up(ValueError("a bug"))
        event = await found(client, "replica_stopped")
        assert (event.broker, event.topic, event.partition) == (1, "orders", 0)
        assert "a bug" in event.detail


@on_served_loop
async def test_a_file_of_the_data_directory_that_was_repaired_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path, events=True) as server, connect(server) as client:
        await client.create_topic("orders")
    shutil.copy(tmp_path / "logs.json", tmp_path / "identity.json")
    async with serving(tmp_path, events=True) as server, connect(server) as client:
        event = await found(client, "directory_damaged")
        assert event.broker == 1
        assert "made again from its other copy" in event.detail


@on_served_loop
async def test_a_broker_without_the_feed_has_no_topic(tmp_path: Path) -> None:
    async with serving(tmp_path, events=False) as server, connect(server) as client:
        await client.create_topic("orders")
        assert await all_of(client) == []
        assert EVENTS_TOPIC not in server.broker.metadata.view.topics


@on_served_loop
async def test_grpc_fetches_events_from_their_topic(tmp_path: Path) -> None:
    async with calling(tmp_path, events=True) as (server, stub), connect(server) as client:
        await client.create_topic("orders")
        await found(client, "topic_created")
        fetched = await stub.Fetch(api.FetchRequest(topic=EVENTS_TOPIC, wait_ms=1_000))
        kinds = [json.loads(message.value)["kind"] for message in fetched.messages]
        assert "topic_created" in kinds


@on_served_loop
async def test_a_stop_is_told_and_does_not_wait(tmp_path: Path) -> None:
    async with serving(tmp_path, events=True) as server, connect(server) as client:
        await client.create_topic("orders")
        await found(client, "topic_created")
    async with serving(tmp_path, events=True) as server, connect(server) as client:
        stopping = await found(client, "broker_stopping")
        started = await found(client, "broker_started")
        assert (stopping.broker, started.broker) == (1, 1)
        assert stopping.offset < started.offset
