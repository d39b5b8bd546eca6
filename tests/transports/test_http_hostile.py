"""HTTP requests that mean ill, or are wrong: each is refused in the usual shape, none does harm."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from quivermq.transports.http.bodies import LISTED_MAX, MESSAGES_MAX, OFFSETS_MAX
from quivermq.transports.http.gate import SMALL_BODY_BYTES_MAX
from tests.transports.browser import Wire
from tests.transports.stage import on_served_loop, serving
from tests.transports.test_http_api import (
    ANYWHERE,
    BILLING,
    ORDERS,
    client_of,
    http,
    make_orders,
    ok,
    refusal,
    shown,
)

JSON = {"content-type": "application/json"}
LEASE = {"partition": 0, "lease": "1" * 32}
MESSAGES = f"{ORDERS}/messages"

BAD_BODIES: tuple[tuple[str, bytes], ...] = (
    (MESSAGES, b""),
    (MESSAGES, b"{"),
    (MESSAGES, b"null"),
    (MESSAGES, b"[]"),
    (MESSAGES, b'"text"'),
    (MESSAGES, b"{}"),
    (MESSAGES, b'{"messages":[]}'),
    (MESSAGES, b'{"messages":[{}]}'),
    (MESSAGES, b'{"messages":[{"value":null}]}'),
    (MESSAGES, b'{"messages":[{"value":5}]}'),
    (MESSAGES, b'{"messages":[{"value":"a"}],"encoding":"utf16"}'),
    (MESSAGES, b'{"messages":[{"value":"\\ud800"}]}'),
    (MESSAGES, b'{"messages":[{"value":"a","delay":NaN}]}'),
    (MESSAGES, b'{"messages":[{"value":"a","delay":1e400}]}'),
    (MESSAGES, b'{"messages":[{"value":"a","delay":-1}]}'),
    (MESSAGES, b'{"messages":[{"value":"a","priority":true}]}'),
    (MESSAGES, b'{"messages":[{"value":"a","priority":' + b"9" * 5_000 + b"}]}"),
    (MESSAGES, b'{"messages":[{"value":"a","\xff":1}]}'),
    (MESSAGES, b'{"messages":' + b"[" * 100_000),
    (MESSAGES, b'{"messages":[{"value":"a","headers":{"a":1}}]}'),
    (f"{BILLING}/poll", b"{"),
    (f"{BILLING}/poll", b"[" * 100_000),
    (f"{BILLING}/poll", b'{"max_messages":0}'),
    (f"{BILLING}/poll", b'{"max_messages":' + b"9" * 5_000 + b"}"),
    (f"{BILLING}/poll", b'{"wait":Infinity}'),
    (f"{BILLING}/poll", b'{"wait":61}'),
    (f"{BILLING}/poll", b'{"visibility":0}'),
    (f"{BILLING}/poll", b'{"unknown":1}'),
    (f"{BILLING}/poll", b'{"\\ud800":1}'),
    (f"{BILLING}/ack", b"{}"),
    (f"{BILLING}/ack", b'{"leases":[]}'),
    (f"{BILLING}/ack", b'{"leases":[{"partition":0,"lease":"zz"}]}'),
    (f"{BILLING}/ack", b'{"leases":[{"partition":0,"lease":"%s","offsets":[-1]}]}' % (b"1" * 32)),
    (f"{BILLING}/extend", json.dumps({"leases": [LEASE], "seconds": 1e12}).encode()),
    (f"{BILLING}/commit", b'{"partition":0,"offset":"99999999999999999999"}'),
    (f"{BILLING}/commit", b'{"partition":0,"offset":9007199254740993}'),
    (f"{BILLING}/commit", b'{"partition":-1,"offset":"0"}'),
    (f"{BILLING}/seek", b'{"to":"yesterday"}'),
    (f"{BILLING}/seek", b'{"to":"@99999999999999999999"}'),
    ("/v1/topics", b'{"name":".."}'),
    ("/v1/topics", b'{"name":"a/b"}'),
    ("/v1/topics", b'{"name":"a\\u0000b"}'),
    ("/v1/topics", b'{"name":""}'),
    ("/v1/topics", b'{"name":"_hidden"}'),
    ("/v1/topics", json.dumps({"name": "x" * 10_000}).encode()),
    ("/v1/topics", b'{"name":"x","partitions":0}'),
    ("/v1/topics", b'{"name":"x","partitions":100000000}'),
    ("/v1/topics", b'{"name":"x","retention":{"max_bytes":"0"}}'),
    ("/v1/topics", b'{"name":"x","rate_limit":{"per_second":0}}'),
)


@on_served_loop
async def test_bodies_that_are_wrong_are_refused(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        for path, body in BAD_BODIES:
            answer = await client.post(path, content=body, headers=JSON)
            assert await refusal(answer) == (400, "InvalidRequest"), (path, body[:80])
        assert [one["name"] for one in (await shown(client, "/v1/topics"))["topics"]] == ["orders"]
        assert (await shown(client, ORDERS))["partitions"][0]["end_offset"] == "0"


BAD_NAMES = ("%2e%2e", "..%2f..", "a%2fb", "a%00b", "x" * 10_000, "%ff", "a%20b", "%f0%9f%98%80")


@on_served_loop
async def test_names_that_are_none_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        for name in BAD_NAMES:
            for path in (
                f"/v1/topics/{name}",
                f"/v1/topics/{name}/groups",
                f"/v1/topics/{name}/partitions/0/messages",
                f"/v1/topics/orders/groups/{name}",
            ):
                # Not by a client that would put the path in order first.
                wire = await Wire.to(server)
                wire.say(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
                page = await wire.answer()
                assert page.status in {400, 404}, (path[:80], page.text)
                assert page.json["error"]["code"] in {"InvalidRequest", "TopicNotFound"}
                await wire.close()


@pytest.mark.parametrize("number", ["-1", "1.5", "x", "9" * 30, "1e3", "", "%20", "0x10"])
@pytest.mark.parametrize("path", ["partitions/{}/messages", "partitions/0/messages?offset={}"])
def test_numbers_in_paths(number: str, path: str, refusing: Any) -> None:
    status = refusing(f"{ORDERS}/{path.format(number)}")
    # Without a number there is another path, or none; without an offset, the first is meant.
    assert status in ({400, 404} if number else {200, 400, 404}), path


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The status of any path: all are asked at once, at one broker."""
    found: dict[str, int] = {}

    @on_served_loop
    async def ask() -> None:
        async with http(tmp_path_factory.mktemp("broker")) as client:
            await make_orders(client)
            for number in ("-1", "1.5", "x", "9" * 30, "1e3", "", "%20", "0x10"):
                for path in (
                    f"{ORDERS}/partitions/{number}/messages",
                    f"{ORDERS}/partitions/0/messages?offset={number}",
                ):
                    found[path] = (await client.get(path)).status_code

    ask()
    return found.__getitem__


@on_served_loop
async def test_too_much_at_once_is_refused(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        many = {"messages": [{"value": ""}] * (MESSAGES_MAX + 1)}
        assert await refusal(await client.post(MESSAGES, json=many)) == (400, "InvalidRequest")
        leases = {"leases": [LEASE] * (LISTED_MAX + 1)}
        answer = await client.post(f"{BILLING}/ack", json=leases)
        assert await refusal(answer) == (400, "InvalidRequest")
        offsets = {"leases": [{**LEASE, "offsets": ["1"] * (OFFSETS_MAX + 1)}]}
        answer = await client.post(f"{BILLING}/ack", json=offsets)
        assert await refusal(answer) == (400, "InvalidRequest")
        large = {"leases": [LEASE], "messages": "x" * SMALL_BODY_BYTES_MAX}
        answer = await client.post(f"{BILLING}/ack", json=large)
        assert await refusal(answer) == (413, "TooLarge")
        body = {"messages": [{"value": "x" * (2 << 20)}]}
        answer = await client.post(MESSAGES, json=body)
        assert await refusal(answer) == (413, "TooLarge")


@on_served_loop
async def test_only_json_that_is_not_compressed_is_read(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        body = json.dumps({"messages": [{"value": "a"}]}).encode()
        for headers in (
            {**JSON, "content-encoding": "gzip"},
            {**JSON, "content-encoding": "deflate, br"},
        ):
            bomb = gzip.compress(b"\0" * (8 << 20))
            answer = await client.post(MESSAGES, content=bomb, headers=headers)
            assert await refusal(answer) == (415, "InvalidRequest")
        # A page of another site can send these without being asked.
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            answer = await client.post(MESSAGES, content=body, headers={"content-type": kind})
            assert await refusal(answer) == (415, "InvalidRequest")
            answer = await client.post(
                f"{BILLING}/poll", content=b"{}", headers={"content-type": kind}
            )
            assert await refusal(answer) == (415, "InvalidRequest")
        assert (await shown(client, ORDERS))["partitions"][0]["end_offset"] == "0"


@on_served_loop
async def test_pages_of_other_sites_get_nothing(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        cross = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        answer = await client.get(f"{BILLING}/stream", headers=cross)
        assert await refusal(answer) == (403, "Forbidden")
        asked = {
            "origin": "https://evil.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        }
        preflight = await client.options(MESSAGES, headers=asked)
        assert preflight.status_code == 405
        for answer in (
            preflight,
            await client.get(ORDERS, headers={"origin": "https://a.example"}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")]


@on_served_loop
async def test_a_token_is_not_taken_where_none_is_checked(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        answer = await client.get("/v1/topics", headers={"authorization": "Bearer x"})
        assert await refusal(answer) == (401, "Unauthenticated")


SMUGGLED = b"GET /v1/cluster HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % MESSAGES.encode()


@pytest.mark.parametrize(
    "said",
    [
        HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"content-length: 0\r\ncontent-length: 50\r\n\r\n" + SMUGGLED,
        HEAD + b"content-length: +5\r\n\r\nhello" + SMUGGLED,
        HEAD + b"content-length: 0x5\r\n\r\nhello" + SMUGGLED,
        HEAD + b"content-length : 5\r\n\r\nhello" + SMUGGLED,
        HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"transfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"transfer-encoding: chunked\r\n\r\n-1\r\n\r\n" + SMUGGLED,
        HEAD + b"host: y\r\ncontent-length: 0\r\n\r\n" + SMUGGLED,
        HEAD.replace(b"1.1", b"1.0") + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        HEAD + b"x: \0\r\ncontent-length: 0\r\n\r\n" + SMUGGLED,
    ],
)
@on_served_loop
async def test_no_request_is_smuggled_in_another(tmp_path: Path, said: bytes) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        wire = await Wire.to(server)
        wire.say(said)
        page = await wire.answer()
        assert page.status in {400, 501}
        assert page.headers["connection"] == "close"
        assert page.json["error"]["code"] == "InvalidRequest"
        # The second request is not answered.
        assert await wire.is_ended()
        await wire.close()


@on_served_loop
async def test_a_client_that_asks_whether_to_send_its_body_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client)
        body = b'{"messages":[{"value":"a"}]}'
        wire = await Wire.to(server)
        wire.say(HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
        assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        wire.say(body)
        assert (await wire.answer()).status == 200
        await wire.close()


@on_served_loop
async def test_a_head_request_has_no_body(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server:
        wire = await Wire.to(server)
        wire.say(b"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\nGET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 405")
        assert (await wire.answer()).status == 200
        await wire.close()


@on_served_loop
async def test_a_method_that_is_not_there_is_told_which_are(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        for path, allowed in (
            ("/v1/topics", "GET, POST"),
            (ORDERS, "DELETE, GET, PATCH"),
            (BILLING, "DELETE, GET"),
        ):
            answer = await client.put(path)
            assert await refusal(answer) == (405, "InvalidRequest")
            assert answer.headers["allow"] == allowed
        assert await ok(await client.get("/health"))
