"""HTTP: what is answered where, and in which words."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import quivermq
from quivermq import errors
from quivermq.errors import QuiverError
from quivermq.transports import Server
from quivermq.transports.http.statuses import status_of
from quivermq.wire import proto
from tests.transports.browser import Page, Wire, get
from tests.transports.stage import (
    PATIENT,
    Talker,
    make_topic,
    on_loop,
    serving,
    settings,
    store,
    until,
)

ANYWHERE = "127.0.0.1:0"


@on_loop
async def test_a_broker_that_runs_is_healthy(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, node_id=3) as server:
        page = await get(server, "/health")
        assert page.status == 200
        assert page.headers["content-type"] == "application/json"
        assert page.json == {
            "status": "ok",
            "node": 3,
            "cluster_id": server.broker.membership.cluster_id,
            "version": quivermq.__version__,
        }


@on_loop
async def test_a_broker_is_ready_once_it_is_a_member_and_sees_leaders(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        await make_topic(await Talker.in_memory(server), partitions=3)
        page = await get(server, "/ready")
        assert page.status == 200
        assert page.json == {"status": "ready", "node": 1, "leader": 1}


@on_loop
async def test_a_broker_without_a_majority_is_healthy_and_not_ready(tmp_path: Path) -> None:
    nobody = {2: "127.0.0.1:1", 3: "127.0.0.1:1"}
    server = Server(settings(tmp_path, http=ANYWHERE, peers=nobody))
    await server.start()
    try:
        assert (await get(server, "/health")).status == 200
        page = await get(server, "/ready")
        assert page.status == 503
        assert page.json["error"]["code"] == "NotEnoughReplicas"
        assert page.json["error"]["retriable"] is True
        assert "not registered" in page.json["error"]["message"]
    finally:
        await server.stop()


@on_loop
async def test_a_broker_that_is_not_let_in_says_why_it_is_not_ready(tmp_path: Path) -> None:
    async with (
        serving(tmp_path / "1", **PATIENT) as first,
        serving(tmp_path / "3", node_id=3, join=first.listen, **PATIENT),
    ):
        # These two are a majority, whether the next one gets to vote or not.
        metadata = first.broker.metadata
        await until(lambda: len(metadata.leading_replica().replica.configuration.voters) == 2)
        async with serving(tmp_path / "2", node_id=2, join=first.listen, **PATIENT):
            pass
        # It comes back with an empty directory, and nobody said that it may.
        lost = settings(tmp_path / "lost", node_id=2, join=first.listen, http=ANYWHERE)
        server = Server(lost)
        await server.start()
        try:
            await until(lambda: server.broker.membership.refusal)
            page = await get(server, "/ready")
            assert page.status == 503
            assert page.json["error"]["code"] == "Forbidden"
            assert server.broker.membership.refusal in page.json["error"]["message"]
        finally:
            await server.stop()


@on_loop
async def test_partitions_without_a_leader_are_named(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        await make_topic(await Talker.in_memory(server), partitions=12)
        for group in server.broker.scheduler.replicas.values():
            if not group.is_metadata:
                group.trouble = "the test stopped it"
        server.broker.leaders.keep_only([])
        page = await get(server, "/ready")
        assert page.status == 503
        message = page.json["error"]["message"]
        assert "12 partitions" in message
        assert "orders/0" in message
        assert "orders/11" not in message


@on_loop
async def test_the_cluster_is_shown_as_clients_see_it(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, zone="eu-1a") as server:
        talker = await Talker.in_memory(server)
        await make_topic(talker, partitions=2)
        page = await get(server, "/v1/cluster")
        assert page.status == 200
        seen = (await talker.ask(proto.Request(id=9, map=proto.MapQuery()))).map
        assert page.json == {
            "cluster_id": seen.cluster_id,
            "version": str(seen.version),
            "leader": 1,
            "node": 1,
            "nodes": [
                {
                    "id": 1,
                    "address": server.listen,
                    "zone": "eu-1a",
                    "machine": "127.0.0.1",
                    "peer_address": server.peer_listen,
                    "http_address": server.http,
                    "alive": True,
                    "leaders": 2,
                    "replicas": 2,
                    "state": "serving",
                    "version": quivermq.__version__,
                }
            ],
        }


@on_loop
async def test_topics_are_shown_with_64_bit_numbers_as_strings(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        talker = await Talker.in_memory(server)
        limits = proto.TopicSettings(retention_ms=90_500, retention_bytes=1 << 60, rate_burst=3)
        limits.rate_per_second = 0.5
        creation = proto.CreateTopic(name="letters", partitions=2, settings=limits)
        await talker.ask(proto.Request(id=5, create_topic=creation))
        await store(talker, b"a", b"b", topic="letters", partition=1)
        page = await get(server, "/v1/topics/letters")
        assert page.status == 200
        topic = page.json
        assert topic["name"] == "letters"
        assert topic["replication"] == 1
        assert topic["retention"]["max_age"] == 90.5
        assert topic["retention"]["max_bytes"] == str(1 << 60)
        assert topic["retention"]["max_messages"] is None
        assert topic["rate_limit"] == {"per_second": 0.5, "burst": 3}
        assert topic["dead_letter"] == "letters.dlq"
        first, second = topic["partitions"]
        assert (first["end_offset"], second["end_offset"]) == ("0", "2")
        assert second["leader"] == 1
        assert second["replicas"] == second["in_sync"] == [1]
        assert second["target"] == []
        assert int(second["size_bytes"]) > 0
        assert (await get(server, "/v1/topics")).json == {"topics": [topic]}


@on_loop
async def test_what_is_not_there_is_refused_in_the_usual_shape(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        missing = await get(server, "/v1/topics/nothing")
        assert missing.status == 404
        assert missing.json["error"]["code"] == "TopicNotFound"
        assert missing.json["error"]["retriable"] is False
        stray = await get(server, "/v2/anything")
        assert stray.status == 404
        assert stray.json["error"]["code"] == "InvalidRequest"
        assert "/docs" in stray.json["error"]["message"]
        wrong = await get(server, "/health", method="DELETE")
        assert wrong.status == 405
        assert wrong.headers["allow"] == "GET"
        assert wrong.json["error"]["code"] == "InvalidRequest"


@on_loop
async def test_a_failure_of_ours_is_a_500_in_the_usual_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(server.broker.service, "call", broken)
        page = await get(server, "/v1/cluster")
        assert page.status == 500
        assert page.json["error"]["code"] == "QuiverError"
        assert "a bug" in page.json["error"]["message"]


def test_every_error_has_a_fitting_status() -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, QuiverError)
    ]
    found = {kind.__name__: status_of(kind.__new__(kind)) for kind in kinds}
    assert found["TopicNotFound"] == 404
    assert found["TooLarge"] == 413
    assert found["Corrupt"] == found["UnknownError"] == found["QuiverError"] == 500
    for kind in kinds:
        # Who may try again is never told that it was its own fault, but for too much at once.
        if kind.retriable and kind is not errors.OutOfSequence:
            assert found[kind.__name__] in {429, 503, 504, 507}, kind


@on_loop
async def test_the_documents_name_every_route_and_load_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        openapi = (await get(server, "/openapi.json")).json
        assert set(openapi["paths"]) == {
            "/health",
            "/ready",
            "/metrics",
            "/v1/cluster",
            "/v1/events",
            "/v1/topics",
            "/v1/topics/{topic}",
            "/v1/topics/{topic}/messages",
            "/v1/topics/{topic}/partitions/{partition}/messages",
            "/v1/topics/{topic}/groups",
            "/v1/topics/{topic}/groups/{group}",
            *(
                f"/v1/topics/{{topic}}/groups/{{group}}/{name}"
                for name in (
                    "poll", "ack", "nack", "extend", "reject", "release", "commit", "seek",
                    "stream", "in-flight",
                )
            ),
            "/v1/dead-letters",
            "/v1/topics/{topic}/dead-letters",
            "/v1/topics/{topic}/dead-letters/{partition}/{offset}",
            "/v1/topics/{topic}/dead-letters/redrive",
            "/v1/topics/{topic}/dead-letters/purge",
            "/v1/topics/{topic}/delayed",
            "/v1/topics/{topic}/delayed/cancel",
        }  # fmt: skip
        models = openapi["components"]["schemas"]
        end = models["PartitionAnswer"]["properties"]["end_offset"]
        assert [each["type"] for each in end["anyOf"]] == ["string", "null"]
        page = await get(server, "/docs")
        assert page.status == 200
        assert page.headers["content-type"].startswith("text/html")
        for path in openapi["paths"]:
            assert path in page.text
        for model in models:
            assert model in page.text or model in {"HTTPValidationError", "ValidationError"}
        for loads in ("<script", "http://", "https://", "src=", "@import", "url("):
            assert loads not in page.text
        assert (await get(server, "/")).text == page.text


@on_loop
async def test_no_http_address_means_no_http(tmp_path: Path) -> None:
    async with serving(tmp_path, http="") as server:
        assert server.http == ""
        talker = await Talker.in_memory(server)
        seen = (await talker.ask(proto.Request(id=9, map=proto.MapQuery()))).map
        assert seen.brokers[0].http_address == ""


@on_loop
async def test_an_advertised_address_is_what_others_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE, advertise_http="broker.example:80") as server:
        nodes = (await get(server, "/v1/cluster")).json["nodes"]
        assert nodes[0]["http_address"] == "broker.example:80"


def test_a_broker_without_http_does_not_wait_for_its_libraries() -> None:
    script = (
        "import sys, quivermq.transports\n"
        "heavy = {'fastapi', 'starlette', 'h11', 'prometheus_client'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@on_loop
async def test_many_requests_on_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        wire = await Wire.to(server)
        for _ in range(3):
            wire.say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
            pages: list[Page] = [await wire.answer(), await wire.answer()]
            assert [page.status for page in pages] == [200, 200]
        await wire.close()


@on_loop
async def test_a_broker_that_stops_closes_idle_and_busy_connections(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        idle, used = await Wire.to(server), await Wire.to(server)
        used.say(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await used.answer()).status == 200
    assert await idle.is_ended()
    assert await used.is_ended()
    with pytest.raises(OSError, match=r"[Cc]onnect"):
        await Wire.to(server)
    await asyncio.gather(idle.close(), used.close())
