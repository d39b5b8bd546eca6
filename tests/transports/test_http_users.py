"""HTTP with users: who gets in with which token, and what ends when a user is gone."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from quivermq.transports import Server
from tests.transports.stage import PATIENCE_S, on_served_loop, until
from tests.transports.test_http_api import (
    ANYWHERE,
    BILLING,
    ORDERS,
    members,
    post,
    refusal,
    shown,
)
from tests.transports.test_users import guarded, user


def client_of(server: Server, token: str | None = None) -> httpx.AsyncClient:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    url = f"http://{server.http}"
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_S)


@on_served_loop
async def test_a_user_does_what_it_was_granted_and_nothing_else(tmp_path: Path) -> None:
    async with guarded(tmp_path, http=ANYWHERE) as (server, admin):
        token = await user(admin, "bob", ("produce", "ord", ""), ("consume", "orders", "bill"))
        async with client_of(server, token) as bob:
            await post(bob, f"{ORDERS}/messages", messages=[{"value": "a"}])
            polled = await post(bob, f"{BILLING}/poll")
            assert [one["value"] for one in polled["messages"]] == ["a"]
            await post(bob, f"{BILLING}/ack", leases=polled["leases"])
            assert [one["name"] for one in (await shown(bob, "/v1/topics"))["topics"]] == ["orders"]
            one = {"messages": [{"value": "a"}]}
            for answer in (
                await bob.post("/v1/topics/other/messages", json=one),
                await bob.post(f"{ORDERS}/groups/other/poll", json={"wait": 0}),
                await bob.post("/v1/topics", json={"name": "new"}),
                await bob.delete(ORDERS),
            ):
                assert await refusal(answer) == (403, "Forbidden"), answer.request.url


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Basic Ym9iOmJvYg==", "Bearer"])
@on_served_loop
async def test_nobody_gets_in_without_a_token_that_is_known(
    tmp_path: Path, authorization: str | None
) -> None:
    async with guarded(tmp_path, http=ANYWHERE) as (server, _), client_of(server) as client:
        headers: dict[str, Any] = {} if authorization is None else {"authorization": authorization}
        for path in ("/v1/topics", ORDERS, f"{BILLING}/stream", "/v1/cluster", "/metrics"):
            answer = await client.get(path, headers=headers)
            assert await refusal(answer) == (401, "Unauthenticated"), path
        for path in ("/health", "/ready", "/docs"):
            assert (await client.get(path, headers=headers)).status_code == 200


@on_served_loop
async def test_a_stream_and_a_poll_end_with_their_user(tmp_path: Path) -> None:
    async with guarded(tmp_path, http=ANYWHERE) as (server, admin):
        token = await user(admin, "bob", ("consume", "orders", ""))
        async with client_of(server, token) as bob:
            streaming = asyncio.create_task(bob.get(f"{BILLING}/stream"))
            polling = asyncio.create_task(bob.post(f"{BILLING}/poll", json={"wait": 60}))
            await until(lambda: members(server) == 2)
            await admin.users.remove("bob")
            (ended,) = await asyncio.gather(streaming, return_exceptions=True)
            assert isinstance(ended, httpx.TransportError), ended
            assert await refusal(await polling) == (401, "Unauthenticated")
            await until(lambda: not members(server))
            assert await refusal(await bob.get(ORDERS)) == (401, "Unauthenticated")


@on_served_loop
async def test_callers_at_the_same_time_are_not_taken_for_each_other(tmp_path: Path) -> None:
    one = {"messages": [{"value": "a"}]}
    async with guarded(tmp_path, http=ANYWHERE) as (server, admin):
        reader = await user(admin, "reader", ("consume", "", ""))
        writer = await user(admin, "writer", ("produce", "", ""))
        async with client_of(server, reader) as reading, client_of(server, writer) as writing:
            for _ in range(5):
                asked = [
                    each.post(f"{ORDERS}/messages", json=one)
                    for each in (reading, writing, reading, writing)
                ]
                answers = await asyncio.gather(*asked)
                assert [answer.is_success for answer in answers] == [False, True, False, True]
                assert answers[0].status_code == answers[2].status_code == 403
