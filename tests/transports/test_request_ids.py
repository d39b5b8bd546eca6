"""Ids of requests and connections: in answers, in error bodies, and in the log."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from quivermq.cli.log_lines import _JsonLines
from quivermq.errors import Forbidden, InvalidRequest
from quivermq.transports.grpc.generated.quiver.v1 import quiver_pb2 as api
from quivermq.transports.http.operating import OperatingRoutes
from quivermq.wire import proto
from tests.transports.browser import Wire
from tests.transports.grpc_stage import calling
from tests.transports.stage import Talker, on_loop, on_served_loop, serving, until
from tests.transports.test_http_api import ANYWHERE, client_of
from tests.transports.test_users import connect, guarded, user


class Lines(logging.Handler):
    """The lines of the log, as JSON has them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(_JsonLines(1))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def found(self, part: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.texts) if part in line["message"]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    ours, handler = logging.getLogger("quivermq"), Lines()
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)
    yield handler
    ours.removeHandler(handler)
    ours.setLevel(before)


@on_served_loop
async def test_http_answers_carry_the_id_that_is_in_the_log(tmp_path: Path, lines: Lines) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        for path in ("/health", "/v1/topics", "/nothing", "/v1/topics/missing"):
            own = f"mine:{path}"
            answer = await client.get(path, headers={"x-request-id": own})
            assert answer.headers["x-request-id"] == own
            if answer.is_error:
                assert answer.json()["error"]["request_id"] == own
            await until(lambda path=path: lines.found(f"GET {path} was answered"))
            (line,) = lines.found(f"GET {path} was answered")
            assert line["request"] == own
            assert line["connection"].startswith("http-")
        forged = await client.get("/v1/topics/missing", headers={"x-request-id": "a b;\tc"})
        chosen = forged.headers["x-request-id"]
        assert chosen != "a b;\tc"
        assert forged.json()["error"]["request_id"] == chosen
        assert chosen != (await client.get("/health")).headers["x-request-id"]
    # All of one connection, whichever request.
    assert len({line["connection"] for line in lines.found("was answered")}) == 1


@on_served_loop
async def test_http_that_is_none_gets_an_id_too(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        wire = await Wire.to(server)
        wire.say(b"NONSENSE\r\n\r\n")
        answer = await wire.answer()
        assert answer.status == 400
        assert answer.json["error"]["request_id"] == answer.headers["x-request-id"]
        await wire.close()


@on_served_loop
async def test_a_failure_is_logged_with_the_id_that_the_client_has(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(OperatingRoutes, "cluster", fail)
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        answer = await client.get("/v1/cluster")
    assert answer.status_code == 500
    (line,) = lines.found("GET /v1/cluster failed")
    assert line["request"] == answer.json()["error"]["request_id"]
    assert "ValueError: a bug" in line["exception"]


@on_loop
async def test_a_failure_at_tcp_is_logged_with_request_and_connection(
    tmp_path: Path, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:

        async def fail(_: proto.Request) -> proto.Response:
            raise ValueError("a bug")

        monkeypatch.setitem(server.broker.service._handlers, "stats", fail)
        first, second = await Talker.in_memory(server), await Talker.in_memory(server)
        for talker, number in ((first, 17), (second, 18)):
            answer = await talker.ask(proto.Request(id=number, stats=proto.Stats()))
            assert answer.error.code == "QuiverError"
            talker.close()
    one, other = lines.found("a stats request failed")
    assert (one["request"], other["request"]) == ("17", "18")
    assert one["connection"].startswith("tcp-")
    assert one["connection"] != other["connection"]


@on_served_loop
async def test_grpc_carries_the_id_in_its_trailing_metadata(tmp_path: Path, lines: Lines) -> None:
    async with calling(tmp_path) as (_, stub):
        call = stub.Cluster(api.ClusterRequest(), metadata=(("x-request-id", "mine-1"),))
        await call
        assert dict(await call.trailing_metadata())["x-request-id"] == "mine-1"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Fetch(api.FetchRequest(topic="nope"))
        found = dict(refused.value.trailing_metadata() or ())
        assert found["quiver-code"] == "TopicNotFound"
        (line,) = lines.found("a call is refused with TopicNotFound")
        assert line["request"] == found["x-request-id"]
        assert line["connection"]


@on_served_loop
async def test_no_token_is_logged_at_any_door_whatever_the_level(
    tmp_path: Path, lines: Lines
) -> None:
    async with guarded(tmp_path, http=ANYWHERE, grpc=ANYWHERE) as (server, admin):
        token = await user(admin, "bob", ("consume", "orders", "b"))
        async with connect(server, token) as bob:
            with pytest.raises(Forbidden):
                await bob.produce("orders", b"x")
        headers = {"authorization": f"Bearer {token}"}
        async with client_of(server) as client:
            assert (await client.get("/v1/topics", headers=headers)).status_code == 200
            wrong = {"authorization": f"Bearer {token}x"}
            assert (await client.get("/v1/topics", headers=wrong)).status_code == 401
            await client.get(f"/v1/topics/{token}", headers=headers)
        async with grpc.aio.insecure_channel(server.grpc) as channel:
            call = channel.unary_unary("/quiver.v1.Quiver/Cluster")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"\xff", metadata=(("authorization", f"Bearer {token}"),))
        await admin.users.add("bob", new_token=True)
        await until(lambda: lines.found('"add_user"'))
    assert len(lines.texts) > 5
    whole = "\n".join(lines.texts)
    assert token[3:] not in whole
    for secret in (each for each in whole.split() if "qv_" in each):
        assert "qv_***" in secret


@on_loop
async def test_the_level_is_changed_by_admins_for_one_logger_or_all(
    tmp_path: Path, lines: Lines
) -> None:
    peers = logging.getLogger("quivermq.peers")
    async with guarded(tmp_path) as (server, admin):
        assert (await admin.set_log_level())[1]["quivermq"] == "debug"
        await admin.set_log_level("error", logger="peers", broker=1)
        found = await admin.set_log_level("warning")
        assert found == {1: {"quivermq": "warning", "quivermq.peers": "error"}}
        assert not peers.isEnabledFor(logging.WARNING)
        assert await admin.set_log_level("default", logger="quivermq.peers") == {
            1: {"quivermq": "warning"}
        }
        assert await admin.set_log_level("default") == {1: {"quivermq": "info"}}
        for level, name in (("loud", ""), ("info", "nothing"), ("info", "asyncio")):
            with pytest.raises(InvalidRequest):
                await admin.set_log_level(level, logger=name)
        with pytest.raises(InvalidRequest, match="no broker 9"):
            await admin.set_log_level("info", broker=9)
        async with connect(server, await user(admin, "bob", ("admin", "orders", ""))) as bob:
            with pytest.raises(Forbidden, match="bob"):
                await bob.set_log_level("debug")
        audited = [json.loads(one["message"]) for one in lines.found('"set_log_level"')]
        assert ("bob", "Forbidden") in {(one["user"], one["outcome"]) for one in audited}
        levels = server.broker.log_levels
        levels.toggle_debug()
        assert logging.getLogger("quivermq").level == logging.DEBUG
        levels.toggle_debug()
        assert logging.getLogger("quivermq").level == logging.INFO
