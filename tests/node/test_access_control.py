"""Who is let in, and what for, without sockets: each rule of `AccessControl` by itself."""

from typing import Any

import pytest

from quivermq.cluster import Grant, UserRecord, View, digest_of, found_cluster
from quivermq.errors import Forbidden, NotEnoughReplicas, Overloaded, QuiverError, Unauthenticated
from quivermq.node.access_control import NO_USERS, AccessControl
from quivermq.node.callers import BROKER, Allowance, Caller
from quivermq.node.time_slices import Slices
from quivermq.settings import BrokerSettings
from quivermq.wire import proto
from tests.cluster.catalogs import broker
from tests.transports.stage import on_loop

LOCAL, FAR = "127.0.0.1", "10.0.0.9"
ADMIN = UserRecord("root", digest_of("root-token"), 1, 0, (Grant("admin"),))
BOB = UserRecord("bob", digest_of("bob-token"), 1, 0, (Grant("produce", "orders"),))
PRODUCE = proto.Request(produce=proto.Produce(topic="orders"))
DELETE = proto.Request(delete_topic=proto.DeleteTopic(name="orders"))
REGISTER = proto.Request(register_broker=proto.RegisterBroker(id=2))


class Stage:
    """Access control, a catalog that it may be behind of, and a clock."""

    def __init__(self, *users: UserRecord, secret: bytes = b"s" * 16, **settings: Any) -> None:
        self.is_current = True
        self.now_ms = 1_000
        self.caught_up = 0
        self.refused: list[QuiverError] = []
        self.ended: list[QuiverError] = []
        self.catalog: tuple[UserRecord, ...] = users
        self.access = AccessControl(
            BrokerSettings.model_validate({"users": True, **settings}),
            secret,
            self._catch_up,
            lambda: self.is_current,
            lambda: self.now_ms,
            Slices(),
        )
        self.access.on_refused = lambda _, error: self.refused.append(error)
        self.learn(*users)

    async def _catch_up(self) -> None:
        self.caught_up += 1
        self.learn(*self.catalog)

    def learn(self, *users: UserRecord) -> None:
        self.catalog = users
        values = found_cluster("c1", 7, [broker(1)]).put
        self.access.learn(View(1, values | {user.key: user.to_json() for user in users}))

    async def sign_in(self, token: str, address: str = FAR) -> Caller:
        return await self.access.sign_in(token, address, "tcp", self.ended.append)

    async def may(self, caller: Caller | None, request: proto.Request) -> str:
        """The code of the refusal; "" if there is none."""
        try:
            await self.access.check(caller, request)
        except QuiverError as error:
            return error.code
        return ""


@on_loop
async def test_a_token_is_its_user_and_any_other_is_nobody() -> None:
    stage = Stage(ADMIN, BOB)
    assert (await stage.sign_in("bob-token")).name == "bob"
    assert stage.caught_up == 0, "whom it knows it lets in at once"
    for token in ("bob-toke", "bob-token ", "BOB-TOKEN", digest_of("bob-token"), "x" * 500, ""):
        with pytest.raises(Unauthenticated):
            await stage.sign_in(token)
    assert len(stage.refused) == 6


@on_loop
async def test_a_broker_that_is_behind_asks_before_it_refuses() -> None:
    stage = Stage(ADMIN)
    stage.catalog = (ADMIN, BOB)
    bob = await stage.sign_in("bob-token")
    assert stage.caught_up == 1
    granted = UserRecord("bob", BOB.digest, 1, 0, (*BOB.grants, Grant("admin", "orders")))
    stage.catalog = (ADMIN, granted)
    assert await stage.may(bob, DELETE) == ""
    assert not stage.ended, "more to do ends nothing"


@on_loop
async def test_a_broker_that_just_started_lets_nobody_in_by_what_it_remembers() -> None:
    stage = Stage(ADMIN, BOB)
    stage.is_current = False
    for token, address in (("bob-token", FAR), ("wrong", FAR)):
        with pytest.raises(NotEnoughReplicas):
            await stage.sign_in(token, address)
    behind = Stage()
    behind.is_current = False
    with pytest.raises(NotEnoughReplicas):
        await behind.sign_in("", LOCAL)


@on_loop
async def test_a_removed_user_is_not_let_in_by_a_broker_that_comes_back() -> None:
    stage = Stage(ADMIN, BOB)
    stage.is_current = False
    stage.catalog = (ADMIN,)

    async def catch_up() -> None:
        stage.learn(*stage.catalog)
        stage.is_current = True

    stage.access._catch_up._catch_up = catch_up
    with pytest.raises(Unauthenticated):
        await stage.sign_in("bob-token")


@on_loop
async def test_anonymous_is_an_admin_on_the_machine_until_there_is_one() -> None:
    stage = Stage(BOB)
    anonymous = await stage.sign_in("", LOCAL)
    assert await stage.may(anonymous, DELETE) == ""
    assert await stage.may(anonymous, REGISTER) == "Forbidden"
    with pytest.raises(Unauthenticated):
        await stage.sign_in("", FAR)
    with pytest.raises(Unauthenticated):
        await stage.sign_in("", "")
    of_orders = UserRecord("ann", digest_of("a"), 1, 0, (Grant("admin", "orders"),))
    stage.learn(BOB, of_orders)
    assert await stage.may(anonymous, DELETE) == "", "an admin of some topics is not enough"
    stage.learn(BOB, ADMIN)
    assert await stage.may(anonymous, DELETE) == "Unauthenticated"
    assert [error.code for error in stage.ended] == ["Unauthenticated"]
    with pytest.raises(Unauthenticated):
        await stage.sign_in("", LOCAL)


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (None, "Unauthenticated"),
        (UserRecord("bob", digest_of("other"), 1, 0, BOB.grants), "Unauthenticated"),
        (UserRecord("bob", BOB.digest, 1, 0, ()), "Forbidden"),
        (UserRecord("bob", BOB.digest, 1, 0, (Grant("produce", "orders-"),)), "Forbidden"),
    ],
)
@on_loop
async def test_a_change_to_less_ends_what_is_connected(after: UserRecord | None, code: str) -> None:
    stage = Stage(ADMIN, BOB)
    bob, root = await stage.sign_in("bob-token"), await stage.sign_in("root-token")
    stage.learn(*(user for user in (ADMIN, after) if user is not None))
    assert [error.code for error in stage.ended] == [code]
    assert await stage.may(bob, PRODUCE) == code
    assert await stage.may(root, PRODUCE) == ""


@on_loop
async def test_a_user_that_is_made_anew_is_not_the_former_one() -> None:
    stage = Stage(ADMIN, BOB)
    bob = await stage.sign_in("bob-token")
    stage.learn(ADMIN)
    stage.learn(ADMIN, UserRecord("bob", digest_of("next"), 2, 0, (Grant("admin"),)))
    assert await stage.may(bob, PRODUCE) == "Unauthenticated"


@on_loop
async def test_a_token_ends_when_it_expires() -> None:
    brief = UserRecord("bob", BOB.digest, 1, 2_000, BOB.grants)
    stage = Stage(ADMIN, brief)
    stage.now_ms = 1_999
    await stage.sign_in("bob-token")
    stage.now_ms = 2_000
    with pytest.raises(Unauthenticated):
        await stage.sign_in("bob-token")


@on_loop
async def test_only_brokers_pass_requests_on() -> None:
    stage = Stage(ADMIN, BOB)
    bob, root = await stage.sign_in("bob-token"), await stage.sign_in("root-token")
    for caller in (bob, root):
        for forged in (
            proto.Request(forwarded=True, produce=proto.Produce(topic="orders")),
            proto.Request(user="root", produce=proto.Produce(topic="orders")),
            proto.Request(user="bob", produce=proto.Produce(topic="orders")),
            REGISTER,
        ):
            assert await stage.may(caller, forged) == "Forbidden"
    named = proto.Request(forwarded=True, user="bob", produce=proto.Produce(topic="orders"))
    assert await stage.may(BROKER, named) == ""
    named.produce.topic = "other"
    assert await stage.may(BROKER, named) == "Forbidden"
    for unknown in ("carol", NO_USERS):
        named.user = unknown
        assert await stage.may(BROKER, named) == "Unauthenticated"
    assert await stage.may(BROKER, REGISTER) == ""


@on_loop
async def test_a_door_that_names_no_caller_is_closed() -> None:
    assert await Stage(ADMIN).may(None, PRODUCE) == "Unauthenticated"


@on_loop
async def test_without_users_only_the_work_of_brokers_is_kept_to_them() -> None:
    stage = Stage(users=False)
    anonymous = await stage.sign_in("", FAR)
    assert await stage.may(anonymous, DELETE) == ""
    assert await stage.may(None, DELETE) == ""
    assert await stage.may(anonymous, REGISTER) == "Forbidden"
    forged = proto.Request(forwarded=True, delete_topic=proto.DeleteTopic(name="x"))
    assert await stage.may(anonymous, forged) == "Forbidden"
    assert await stage.may(BROKER, REGISTER) == ""
    with pytest.raises(Unauthenticated, match="without one"):
        await stage.sign_in("some")


@on_loop
async def test_a_request_is_passed_on_under_the_name_of_its_user() -> None:
    stage, without = Stage(ADMIN, BOB), Stage(users=False)
    bob = await stage.sign_in("bob-token")
    for access, caller, name in (
        (stage.access, bob, "bob"),
        (stage.access, BROKER, ""),
        (without.access, await without.sign_in(""), NO_USERS),
        (without.access, None, NO_USERS),
    ):
        request = proto.Request(forwarded=True)
        access.pass_on(caller, request)
        assert request.user == name
    passed = proto.Request(user="bob")
    stage.access.pass_on(BROKER, passed)
    assert passed.user == "bob", "what was passed on once is not the next broker's own"


@on_loop
async def test_a_user_has_so_many_connections_and_gets_a_place_back() -> None:
    stage = Stage(ADMIN, BOB, user_connections_max=2)
    first = await stage.sign_in("bob-token")
    await stage.sign_in("bob-token")
    with pytest.raises(Overloaded):
        await stage.sign_in("bob-token")
    await stage.access.sign_in("bob-token", FAR, "http")
    await stage.sign_in("root-token")
    stage.access.sign_out(first)
    await stage.sign_in("bob-token")


def test_an_allowance_refuses_what_comes_too_early_and_catches_up() -> None:
    requests = Allowance(10, 0, 0.0)
    for _ in range(10):
        requests.admit(1_000_000, 0.0)
    with pytest.raises(Overloaded, match="too often"):
        requests.admit(0, 0.01)
    requests.admit(0, 0.2)

    size = Allowance(0, 1_000, 0.0)
    size.admit(900, 0.0)
    size.admit(900, 0.0)
    # 800 are owed, and any request waits for them.
    with pytest.raises(Overloaded, match=r"bytes; try again in 0\.3 s"):
        size.admit(1, 0.5)
    size.admit(0, 1.0)
    size.charge(5_000, 60.0)
    with pytest.raises(Overloaded):
        size.admit(0, 63.9)
    size.admit(0, 64.1)


@on_loop
async def test_lists_leave_out_what_the_user_may_not_see() -> None:
    stage = Stage(ADMIN, BOB)
    bob, root = await stage.sign_in("bob-token"), await stage.sign_in("root-token")
    asked = proto.Request(map=proto.MapQuery())

    async def shown(caller: Caller, request: proto.Request = asked) -> list[str]:
        topics = [proto.TopicMap(name=name) for name in ("orders", "other", "orders-eu", "_audit")]
        response = proto.Response(map=proto.ClusterMap(topics=topics))
        await stage.access.hide(caller, request, response)
        return [topic.name for topic in response.map.topics]

    assert await shown(bob) == ["orders", "orders-eu"]
    assert len(await shown(root)) == 4
    named = proto.Request(forwarded=True, user="bob", map=proto.MapQuery())
    assert await shown(BROKER, named) == ["orders", "orders-eu"]
    with pytest.raises(Forbidden):
        await stage.access.check(bob, proto.Request(map=proto.MapQuery(topics=["other"])))
