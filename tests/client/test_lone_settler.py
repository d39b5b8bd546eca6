"""The straight way of an acknowledgement does what the general way does, or leaves it to that."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

import quivermq
import quivermq.aio
from quivermq.client.shared import lone_settler
from quivermq.client.shared.settle import Settler
from quivermq.errors import Forbidden, LeaseLost, NotLeader, Overloaded, QuiverError
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import DROP


@pytest.fixture
def stand_in() -> Iterator[GroupStandIn]:
    with GroupStandIn() as started:
        yield started


@contextmanager
def only_straight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the general way was taken")

    with monkeypatch.context() as patched:
        patched.setattr(Settler, "_settle_group", refuse)
        yield


def test_an_acknowledgement_is_one_request_and_forgets_the_lease(
    stand_in: GroupStandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce_many("t", [b"v"] * 5)
    found = client.poll("t", group="g")
    with only_straight(monkeypatch):
        found[2].ack()
        client.ack([found[0], found[4]])
        client.ack([found[1], found[3]])
    assert stand_in.lot().done == set(range(5))
    assert stand_in.count("settle") == 3
    assert {settle.consumer for settle in stand_in.settles} == {stand_in.polls[0].consumer}
    assert not client._core.consuming.held_leases.is_any


def test_what_came_too_late_is_named(
    stand_in: GroupStandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.produce_many("t", [b"v"] * 3)
    found = client.poll("t", group="g")
    with only_straight(monkeypatch):
        found[1].ack()
        with pytest.raises(LeaseLost) as raised:
            found[1].ack()
    assert list(raised.value.lost) == [("t", 0, 1, 2)]


@pytest.mark.parametrize(
    "script",
    [[DROP], [NotLeader("not yet"), DROP], [Overloaded("busy")]],
)
def test_the_general_way_goes_on_with_an_attempt_that_failed(
    script: list[str | QuiverError], stand_in: GroupStandIn, client: quivermq.Client
) -> None:
    client.produce_many("t", [b"v"] * 3)
    found = client.poll("t", group="g")
    stand_in.script("settle", *script)
    client.ack(found)
    assert stand_in.lot().done == {0, 1, 2}
    assert stand_in.count("settle") == len(script) + 1


def test_a_refusal_is_raised_at_once(stand_in: GroupStandIn, client: quivermq.Client) -> None:
    client.produce_many("t", [b"v"] * 3)
    found = client.poll("t", group="g")
    stand_in.script("settle", Forbidden("not you"))
    with pytest.raises(Forbidden, match="not you"):
        client.ack(found)
    assert stand_in.count("settle") == 1
    assert client._core.consuming.held_leases.is_any


def test_what_is_not_plain_is_left_to_the_general_way(
    stand_in: GroupStandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = lone_settler.PLAIN_INTERVALS_MAX
    client.produce_many("t", [b"v"] * (2 * most + 10))
    found = client.poll("t", group="g", max_messages=2 * most + 10)
    with only_straight(monkeypatch):
        client.ack(found[: 2 * most : 2])
        for settle in (
            lambda: client.ack(found[1 : 2 * most + 4 : 2]),
            lambda: client.nack(found[-1:]),
            lambda: client.release(found[-1:]),
            lambda: client.extend(found[-1:], 30.0),
            lambda: client.reject(found[-1:]),
        ):
            with pytest.raises(AssertionError, match="general way"):
                settle()
    client.ack(found[1 : 2 * most + 4 : 2])
    assert len(stand_in.lot().done) == 2 * most + 2


@pytest.mark.parametrize("trouble", [DROP, NotLeader("not yet"), Overloaded("busy")], ids=str)
def test_on_an_event_loop_the_general_way_goes_on_with_what_failed(
    stand_in: GroupStandIn, trouble: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def consume() -> None:
        async with quivermq.aio.connect(stand_in.address) as client:
            await client.produce_many("t", [b"v"] * 4)
            found = await client.poll("t", group="g")
            with only_straight(monkeypatch):
                await client.ack(found[:1])
            stand_in.script("settle", trouble)
            await client.ack(found[1:3])
            with only_straight(monkeypatch):
                await found[3].ack()
                with pytest.raises(LeaseLost):
                    await found[3].ack()

    asyncio.run(consume())
    assert stand_in.lot().done == set(range(4))
