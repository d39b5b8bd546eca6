"""The HTTP API through a real socket: topics, messages, groups, dead letters, delayed messages."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from quivermq.client import partition_of
from quivermq.transports import Server
from tests.transports.stage import PATIENCE_S, PATIENT, on_served_loop, serving, until

ANYWHERE = "127.0.0.1:0"
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
ORDERS = "/v1/topics/orders"
BILLING = f"{ORDERS}/groups/billing"


def client_of(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{server.http}", timeout=PATIENCE_S)


@asynccontextmanager
async def http(folder: Path, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a broker of its own."""
    async with (
        serving(folder, http=ANYWHERE, **changes) as server,
        client_of(server) as client,
    ):
        yield client


async def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> Any:
    return await ok(await client.post(path, json=body))


async def shown(client: httpx.AsyncClient, path: str) -> Any:
    return await ok(await client.get(path))


async def eventually(look: Callable[[], Awaitable[Any]], fits: Callable[[Any], bool]) -> None:
    """Wait for what an answer shows."""
    async with asyncio.timeout(PATIENCE_S):
        while not fits(await look()):  # noqa: ASYNC110  (there is no event for it)
            await asyncio.sleep(0.01)


async def refusal(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert set(error) == {"code", "message", "retriable", "request_id"}
    assert error["request_id"] == answer.headers["x-request-id"]
    return answer.status_code, error["code"]


async def make_orders(client: httpx.AsyncClient, *values: str, **settings: Any) -> None:
    await ok(await client.post("/v1/topics", json={"name": "orders", **settings}), 201)
    if values:
        messages = [{"value": value} for value in values]
        await post(client, f"{ORDERS}/messages", messages=messages)


@on_served_loop
async def test_a_topic_is_created_altered_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        body = {
            "name": "orders",
            "partitions": 2,
            "retention": {"max_age": 60, "max_bytes": str(1 << 40)},
            "rate_limit": {"per_second": 0.5},
            "retry": {"base": 5},
        }
        made = await ok(await client.post("/v1/topics", json=body), 201)
        assert [each["partition"] for each in made["partitions"]] == [0, 1]
        assert made["retention"]["max_age"] == 60
        assert made["retention"]["max_bytes"] == str(1 << 40)
        assert made["rate_limit"] == {"per_second": 0.5, "burst": 1}
        assert made["retry"] == {"first": 0, "base": 5, "longest": 60}
        # Once more changes nothing; with other settings it is another topic.
        again = await ok(await client.post("/v1/topics", json=body), 201)
        assert again["id"] == made["id"]
        other = await client.post("/v1/topics", json={**body, "max_deliveries": 9})
        assert await refusal(other) == (409, "TopicExists")
        altered = await ok(
            await client.patch(
                ORDERS, json={"partitions": 3, "rate_limit": None, "max_deliveries": 7}
            )
        )
        assert len(altered["partitions"]) == 3
        assert altered["rate_limit"] is None
        assert altered["max_deliveries"] == 7
        assert altered["retention"] == made["retention"]
        fewer = await client.patch(ORDERS, json={"partitions": 1})
        assert await refusal(fewer) == (400, "InvalidRequest")
        assert [one["name"] for one in (await ok(await client.get("/v1/topics")))["topics"]] == [
            "orders"
        ]
        assert await ok(await client.delete(ORDERS), 204) is None
        assert await refusal(await client.get(ORDERS)) == (404, "TopicNotFound")
        assert await refusal(await client.delete(ORDERS)) == (404, "TopicNotFound")
        assert await refusal(await client.patch(ORDERS, json={})) == (404, "TopicNotFound")


@on_served_loop
async def test_messages_are_stored_where_the_receipts_say(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, partitions=3)
        messages = [
            {"value": "a", "key": "k1"},
            {"value": "b", "key": "k2", "headers": {"trace": "1"}, "priority": 5},
            {"value": "c", "partition": 1},
            {"value": b64encode(b"\xff\x00").decode(), "encoding": "base64", "partition": 2},
            {"value": "e", "partition": 1},
        ]
        receipts = (await post(client, f"{ORDERS}/messages", messages=messages))["receipts"]
        assert [one["partition"] for one in receipts] == [
            partition_of(b"k1", 3), partition_of(b"k2", 3), 1, 2, 1,
        ]  # fmt: skip
        found = {}
        for partition in range(3):
            page = await ok(await client.get(f"{ORDERS}/partitions/{partition}/messages"))
            for message in page["messages"]:
                found[message["partition"], message["offset"]] = message
        first, second, third, fourth, fifth = (
            found[one["partition"], one["offset"]] for one in receipts
        )
        assert (first["value"], first["key"], first["headers"]) == ("a", "k1", {})
        assert (second["value"], second["priority"]) == ("b", 5)
        assert second["headers"] == {"trace": "1"}
        assert (third["value"], third["key"]) == ("c", None)
        assert fifth["value"] == "e"
        # No byte is lost where bytes are no text.
        assert (fourth["encoding"], fourth["value"]) == ("base64", "/wA=")


@on_served_loop
async def test_nothing_is_stored_if_one_message_is_none(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        for bad in (
            {"value": "!", "encoding": "base64"},
            {"value": "x", "partition": 7},
            {"value": "x", "priority": 8},
        ):
            body = {"messages": [{"value": "good"}, bad]}
            answer = await client.post(f"{ORDERS}/messages", json=body)
            assert await refusal(answer) == (400, "InvalidRequest"), bad
        topic = await ok(await client.get(ORDERS))
        assert topic["partitions"][0]["end_offset"] == "0"


@on_served_loop
async def test_messages_are_read_by_offset_by_time_and_as_they_come(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b", "c")
        place = f"{ORDERS}/partitions/0/messages"
        page = await ok(await client.get(place, params={"offset": "1", "limit": 1}))
        assert [one["value"] for one in page["messages"]] == ["b"]
        assert (page["next_offset"], page["start_offset"], page["end_offset"]) == ("2", "0", "3")
        stamp = page["messages"][0]["timestamp"]
        page = await ok(await client.get(place, params={"time": f"@{stamp}"}))
        assert page["messages"][0]["value"] == "a"
        page = await ok(await client.get(place, params={"time": "2999-01-01T00:00:00+00:00"}))
        assert (page["messages"], page["next_offset"]) == ([], "3")
        assert await refusal(await client.get(place, params={"offset": "9"})) == (
            416, "OffsetOutOfRange",
        )  # fmt: skip
        both = await client.get(place, params={"offset": "1", "time": "@1"})
        assert await refusal(both) == (400, "InvalidRequest")
        waiting = asyncio.create_task(client.get(place, params={"offset": "3", "wait": 30}))
        await post(client, f"{ORDERS}/messages", messages=[{"value": "d"}])
        page = await ok(await waiting)
        assert [one["value"] for one in page["messages"]] == ["d"]


@on_served_loop
async def test_a_poll_answers_what_ack_takes(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b", "c")
        polled = await post(client, f"{BILLING}/poll", max_messages=2)
        assert [one["value"] for one in polled["messages"]] == ["a", "b"]
        (lease,) = polled["leases"]
        assert lease["offsets"] == ["0", "1"]
        assert {one["lease"] for one in polled["messages"]} == {lease["lease"]}
        group = await ok(await client.get(BILLING))
        assert (group["in_flight"], group["lag"], group["mode"]) == ("2", "1", "shared")
        # The answer as it is, and then as much of it as was not said.
        await ok(await client.post(f"{BILLING}/ack", json=polled))
        rest = await post(client, f"{BILLING}/poll")
        assert [one["value"] for one in rest["messages"]] == ["c"]
        await post(client, f"{BILLING}/ack", leases=rest["leases"])
        group = await ok(await client.get(BILLING))
        assert (group["in_flight"], group["done"], group["lag"]) == ("0", "3", "0")
        assert await post(client, f"{BILLING}/poll", wait=0) == {"messages": [], "leases": []}


@on_served_loop
async def test_messages_are_settled_one_by_one(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "ack", "nack", "reject", "release", "extend", max_deliveries=2)
        polled = await post(client, f"{BILLING}/poll", visibility=60)
        (lease,) = polled["leases"]
        for number, how in enumerate(("ack", "nack", "reject", "release")):
            one = {**lease, "offsets": [str(number)]}
            more = {"nack": {"delay": 0, "reason": "shut"}, "reject": {"reason": "no stock"}}.get(
                how, {}
            )
            await post(client, f"{BILLING}/{how}", leases=[one], **more)
        await post(client, f"{BILLING}/extend", leases=[lease], seconds=90)
        again = await post(client, f"{BILLING}/poll")
        assert {(one["value"], one["delivery_count"]) for one in again["messages"]} == {
            ("nack", 2), ("release", 1),
        }  # fmt: skip
        told = {one["value"]: one["last_reason"] for one in again["messages"]}
        assert told == {"nack": "shut", "release": None}
        # A second failure is one too many; what was rejected is there already.
        await post(client, f"{BILLING}/nack", leases=again["leases"], delay=0)

        async def letters() -> list[Any]:
            found = await ok(await client.get(f"{ORDERS}/dead-letters"))
            return found["letters"]

        await eventually(letters, lambda found: len(found) == 2)
        assert {one["value"]: one["reason"] for one in await letters()} == {
            "nack": "failed 2 times; before that: shut",
            "reject": "no stock",
        }


@on_served_loop
async def test_a_lease_that_is_not_there_is_lost(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b")
        polled = await post(client, f"{BILLING}/poll")
        (lease,) = polled["leases"]
        foreign = {**lease, "lease": "1" * 32}
        none = {**lease, "lease": "0" * 32}
        for leases in ([foreign], [none], [{**lease, "offsets": ["7"]}]):
            answer = await client.post(f"{BILLING}/ack", json={"leases": leases})
            assert await refusal(answer) == (409, "LeaseLost")
        # What is good of a request is done.
        answer = await client.post(f"{BILLING}/ack", json={"leases": [lease, foreign]})
        assert await refusal(answer) == (409, "LeaseLost")
        assert (await ok(await client.get(BILLING)))["done"] == "2"
        await post(client, f"{BILLING}/seek", to="earliest")
        short = await post(client, f"{BILLING}/poll", visibility=0.05)
        await eventually(lambda: shown(client, BILLING), lambda found: found["in_flight"] == "0")
        answer = await client.post(f"{BILLING}/nack", json=short)
        assert await refusal(answer) == (409, "LeaseLost")


@on_served_loop
async def test_a_poll_waits_until_a_message_comes(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client, partitions=2)
        waiting = asyncio.create_task(post(client, f"{BILLING}/poll", wait=60))
        await until(lambda: members(server))
        await post(client, f"{ORDERS}/messages", messages=[{"value": "late"}])
        assert [one["value"] for one in (await waiting)["messages"]] == ["late"]


def members(server: Server) -> int:
    """Consumers that wait for messages of the group."""
    return sum(
        len(list(dispatcher.waiting.consumers("billing")))
        for dispatcher in server.broker.consumers.dispatchers
    )


@on_served_loop
async def test_a_client_that_leaves_a_poll_takes_nothing_with_it(tmp_path: Path) -> None:
    async with serving(tmp_path, http=ANYWHERE) as server, client_of(server) as client:
        await make_orders(client)
        async with client_of(server) as leaving:
            waiting = asyncio.create_task(leaving.post(f"{BILLING}/poll", json={"wait": 60}))
            await until(lambda: members(server))
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        # Well before the poll would have ended by itself.
        async with asyncio.timeout(PATIENCE_S / 2):
            await until(lambda: not members(server))
        await post(client, f"{ORDERS}/messages", messages=[{"value": "a"}])
        polled = await post(client, f"{BILLING}/poll")
        assert [one["delivery_count"] for one in polled["messages"]] == [1]


@on_served_loop
async def test_with_auto_ack_there_is_nothing_to_settle(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a")
        polled = await post(client, f"{BILLING}/poll", ack="auto")
        assert polled["leases"] == []
        assert polled["messages"][0]["lease"] == ""
        assert (await ok(await client.get(BILLING)))["done"] == "1"


@on_served_loop
async def test_groups_are_listed_sought_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b")
        await post(client, f"{BILLING}/poll")
        await post(client, f"{ORDERS}/groups/reader/commit", partition=0, offset="1")
        groups = (await ok(await client.get(f"{ORDERS}/groups")))["groups"]
        assert [(one["name"], one["mode"]) for one in groups] == [
            ("billing", "shared"), ("reader", "single"),
        ]  # fmt: skip
        assert groups[1]["partitions"][0]["committed"] == "1"
        beyond = await client.post(
            f"{ORDERS}/groups/reader/commit", json={"partition": 0, "offset": "99"}
        )
        assert await refusal(beyond) == (416, "OffsetOutOfRange")
        for to, offset in (("latest", "2"), ("1", "1"), ("@0", "0")):
            sought = await post(client, f"{BILLING}/seek", to=to)
            assert sought == {"offsets": [{"partition": 0, "offset": offset}]}
        assert await ok(await client.delete(BILLING), 204) is None
        assert await refusal(await client.get(BILLING)) == (404, "InvalidRequest")
        gone = await client.get("/v1/topics/nothing/groups")
        assert await refusal(gone) == (404, "TopicNotFound")


@on_served_loop
async def test_what_is_in_flight_is_listed(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b")
        await post(client, f"{BILLING}/poll", visibility=60)
        (held,) = (await ok(await client.get(f"{BILLING}/in-flight")))["in_flight"]
        assert (held["partition"], held["offset"], held["count"], held["deliveries"]) == (
            0, "0", "2", 1,
        )  # fmt: skip
        assert held["held"] + held["left"] == 60.0
        unknown = await client.get(f"{ORDERS}/groups/nobody/in-flight")
        assert await refusal(unknown) == (404, "InvalidRequest")


@on_served_loop
async def test_dead_letters_are_shown_redriven_and_purged(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b", "c")
        letters = f"{ORDERS}/dead-letters"
        assert await ok(await client.get(letters)) == {"letters": [], "is_complete": True}
        polled = await post(client, f"{BILLING}/poll")
        await post(client, f"{BILLING}/reject", leases=polled["leases"], reason="no stock")
        await eventually(lambda: shown(client, letters), lambda found: len(found["letters"]) == 3)
        page = await ok(await client.get(letters, params={"limit": 2}))
        assert page["is_complete"] is False
        first, second = page["letters"]
        assert (first["value"], first["reason"], first["group"]) == ("a", "no stock", "billing")
        assert (first["topic"], first["original_offset"]) == ("orders", "0")
        one = await ok(await client.get(f"{letters}/{second['partition']}/{second['offset']}"))
        assert one == second
        rest = await ok(await client.get(letters, params={"partition": 0, "offset": 2}))
        assert [each["value"] for each in rest["letters"]] == ["c"]
        some = {"partition": 0, "offsets": [first["offset"]]}
        redriven = {"messages": "1", "stayed": "0"}
        assert await post(client, f"{letters}/redrive", **some) == redriven
        back = await post(client, f"{BILLING}/poll")
        assert [(each["value"], each["offset"]) for each in back["messages"]] == [("a", "0")]
        # The one that was put back may count until the broker has noted that it arrived.
        purged = await post(client, f"{letters}/purge")
        assert int(purged["messages"]) in {2, 3}
        assert (await ok(await client.get(letters)))["letters"] == []
        assert (await client.get(f"{letters}/0/99")).status_code == 416


@on_served_loop
async def test_dead_letters_are_chosen_and_sent_where_one_likes(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, "a", "b", "c")
        await ok(await client.post("/v1/topics", json={"name": "elsewhere"}), 201)
        letters = f"{ORDERS}/dead-letters"
        polled = await post(client, f"{BILLING}/poll")
        (lease,) = polled["leases"]
        for number, reason in enumerate(("no stock", "no price", "no price")):
            one = {**lease, "offsets": [str(number)]}
            await post(client, f"{BILLING}/reject", leases=[one], reason=reason)
        await eventually(lambda: shown(client, letters), lambda found: len(found["letters"]) == 3)

        async def values(path: str, **wanted: Any) -> list[str]:
            found = await ok(await client.get(path, params=wanted))
            return [letter["value"] for letter in found["letters"]]

        assert await values("/v1/dead-letters") == ["a", "b", "c"]
        assert await values("/v1/dead-letters", reason="stock", group="billing") == ["a"]
        assert await values(letters, reason="price", limit=1) == ["b"]
        assert await values(letters, since="2026-01-01T00:00:00Z", older_than=0) == ["a", "b", "c"]
        assert await values(letters, since="2999-01-01") == await values(letters, key="k") == []
        assert await values(letters, older_than=3600) == []
        assert (await client.get(letters, params={"since": "2026-99"})).status_code == 400
        away = await post(client, f"{letters}/redrive", to="elsewhere", reason="stock")
        assert away["messages"] == "1"
        path = "/v1/topics/elsewhere/partitions/0/messages"
        found = await ok(await client.get(path, params={"wait": 10}))
        assert [(one["value"], one["headers"]) for one in found["messages"]] == [("a", {})]
        back = await post(client, f"{letters}/redrive", to="all", group="billing", rate=1000)
        assert back["messages"] == "2"
        gone = await client.post(f"{letters}/redrive", json={"to": "nowhere"})
        assert await refusal(gone) == (404, "TopicNotFound")


@on_served_loop
async def test_delayed_messages_are_listed_and_cancelled(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        messages = [{"value": "later", "delay": 1000}, {"value": "now"}]
        receipts = (await post(client, f"{ORDERS}/messages", messages=messages))["receipts"]
        polled = await post(client, f"{BILLING}/poll")
        assert [one["value"] for one in polled["messages"]] == ["now"]
        (found,) = (await ok(await client.get(f"{ORDERS}/delayed")))["delayed"]
        assert (found["offset"], found["count"]) == (receipts[0]["offset"], 1)
        body = {"partition": 0, "offsets": [found["offset"]]}
        assert await post(client, f"{ORDERS}/delayed/cancel", **body) == {"messages": "1"}
        assert (await ok(await client.get(f"{ORDERS}/delayed"))) == {"delayed": []}


def stream_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@on_served_loop
async def test_an_arrow_stream_is_stored(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        table = pa.table({"value": ["a", "b", "c"], "key": [b"1", None, b"3"]})
        answer = await client.post(
            f"{ORDERS}/messages", content=stream_of(table), headers=ARROW, params={"priority": 4}
        )
        assert (await ok(answer))["batches"] == [{"partition": 0, "first_offset": "0", "count": 3}]
        page = await ok(await client.get(f"{ORDERS}/partitions/0/messages"))
        assert [(one["key"], one["value"], one["priority"]) for one in page["messages"]] == [
            ("1", "a", 4), (None, "b", 4), ("3", "c", 4),
        ]  # fmt: skip


HARMFUL = (
    b"",
    b"nonsense" * 100,
    stream_of(pa.table({"value": pa.array([b"x" * 1000] * 50)}), compression="zstd"),
    stream_of(pa.table({"value": pa.array(["x"] * 5).dictionary_encode()})),
    stream_of(pa.table({"value": pa.nulls(1_000)})),
    stream_of(pa.table({"value": pa.array(["x"], pa.string_view())})),
    stream_of(pa.table({"other": ["x"]})),
    stream_of(pa.table({"value": ["x"], "more": ["y"]})),
    stream_of(pa.table({"value": [1, 2]})),
    stream_of(pa.table({"value": pa.array([], pa.binary())})),
    stream_of(pa.table({"value": ["x" * 500]}))[:-300],
)


@on_served_loop
async def test_an_arrow_stream_that_could_harm_is_refused(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client)
        for number, body in enumerate(HARMFUL):
            answer = await client.post(f"{ORDERS}/messages", content=body, headers=ARROW)
            assert await refusal(answer) == (400, "InvalidRequest"), number
        topic = await shown(client, ORDERS)
        assert topic["partitions"][0]["end_offset"] == "0"


@on_served_loop
async def test_any_broker_answers_for_the_whole_cluster(tmp_path: Path) -> None:
    """Partitions that other brokers lead are produced to, polled and settled all the same."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(tmp_path / "1", http=ANYWHERE, **PATIENT))
        second = await stack.enter_async_context(
            serving(tmp_path / "2", node_id=2, join=first.listen, http=ANYWHERE, **PATIENT)
        )
        one = await stack.enter_async_context(client_of(first))
        two = await stack.enter_async_context(client_of(second))
        await make_orders(one, partitions=4, replication=1)
        topic = await ok(await two.get(ORDERS))
        assert {each["leader"] for each in topic["partitions"]} == {1, 2}
        messages = [{"value": str(number), "partition": number} for number in range(4)]
        await post(one, f"{ORDERS}/messages", messages=messages)
        found: set[str] = set()
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 4:
                polled = await post(two, f"{BILLING}/poll", wait=5)
                found |= {each["value"] for each in polled["messages"]}
                # Settled at the other broker.
                if polled["leases"]:
                    await post(one, f"{BILLING}/ack", leases=polled["leases"])
        assert found == {"0", "1", "2", "3"}
        for client in (one, two):
            assert (await ok(await client.get(BILLING)))["done"] == "4"
            page = await ok(await client.get(f"{ORDERS}/partitions/3/messages"))
            assert [each["value"] for each in page["messages"]] == ["3"]


@on_served_loop
async def test_messages_have_a_content_type_a_time_and_a_time_to_live(tmp_path: Path) -> None:
    async with http(tmp_path) as client:
        await make_orders(client, partitions=1)
        assert not (await shown(client, ORDERS))["drop_expired"]
        messages = [
            {"value": "brief", "ttl": 0.001, "content_type": "text/plain"},
            {"value": "[1]", "content_type": "application/json", "timestamp": "5", "ttl": 3600},
            {"value": "eA==", "encoding": "base64", "timestamp": 6},
        ]
        await post(client, f"{ORDERS}/messages", messages=messages)
        read = (await shown(client, f"{ORDERS}/partitions/0/messages"))["messages"]
        kinds = [(each["content_type"], each["timestamp"]) for each in read]
        assert kinds[0][0] == "text/plain"
        assert kinds[1:] == [("application/json", "5"), (None, "6")]
        # By then the time of one is over.
        await asyncio.sleep(0.05)
        polled = await post(client, f"{BILLING}/poll", wait=5)
        found = [(each["value"], each["content_type"]) for each in polled["messages"]]
        assert found == [("[1]", "application/json"), ("x", None)]
        dead = f"{ORDERS}/dead-letters"
        await eventually(lambda: shown(client, dead), lambda answer: bool(answer["letters"]))
        (letter,) = (await shown(client, dead))["letters"]
        assert (letter["reason"], letter["content_type"]) == ("expired", "text/plain")
        altered = await ok(await client.patch(ORDERS, json={"drop_expired": True}))
        assert altered["drop_expired"]
        for wrong in ({"ttl": 0}, {"content_type": ""}, {"timestamp": -1}, {"ttl": 1, "delay": 2}):
            answer = await client.post(
                f"{ORDERS}/messages", json={"messages": [{"value": "v", **wrong}]}
            )
            assert answer.status_code == 400, (wrong, answer.text)
