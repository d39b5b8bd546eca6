"""The table of what each kind of request needs."""

import pytest

from quivermq.cluster import ADMIN, CONSUME, PRODUCE, Grant, UserRecord, digest_of
from quivermq.errors import Unauthenticated
from quivermq.node.callers import Account, bearer_token, is_loopback
from quivermq.node.permissions import AUDITED, NEEDS, UNCHECKED, Scope, wanted_by
from quivermq.wire import proto

KINDS = {field.name for field in proto.Request.DESCRIPTOR.oneofs_by_name["body"].fields}


def test_every_kind_of_request_needs_something() -> None:
    assert NEEDS.keys() | UNCHECKED == KINDS
    assert not NEEDS.keys() & UNCHECKED


@pytest.mark.parametrize("kind", sorted(NEEDS))
def test_the_fields_by_which_a_request_is_judged_exist(kind: str) -> None:
    need, message = NEEDS[kind], proto.Request.DESCRIPTOR.fields_by_name[kind].message_type
    for name in filter(None, (need.topic, need.group)):
        assert name in message.fields_by_name
    if need.scope is Scope.NAMED:
        assert need.action in (PRODUCE, CONSUME, ADMIN)
        # A group that a request names, and that is not looked at, would be open to everybody.
        assert ("group" in message.fields_by_name) == (need.group == "group")


def test_what_changes_the_cluster_is_audited() -> None:
    changing = {"create_topic", "delete_topic", "remove_broker", "add_user", "grant_user"}
    assert changing <= AUDITED
    assert not AUDITED & {"produce", "poll", "fetch", "map", "list_users"}


def account(*grants: Grant) -> Account:
    return Account(UserRecord("bob", digest_of("b"), 1, 0, grants))


def is_granted(request: proto.Request, *grants: Grant) -> bool:
    wanted = wanted_by(request)
    assert wanted is not None
    return account(*grants).is_granted(wanted)


def test_each_scope_asks_for_its_own() -> None:
    of_topic, whole = Grant("admin", "orders"), Grant("admin")
    consume, produce = Grant("consume", "orders", "g"), Grant("produce", "orders")
    poll = proto.Request(poll=proto.Poll(topic="orders", group="g1"))
    assert is_granted(poll, consume)
    assert is_granted(poll, of_topic)
    assert not is_granted(poll, produce)
    assert not is_granted(proto.Request(poll=proto.Poll(topic="orders", group="h")), consume)
    rebalance = proto.Request(rebalance=proto.Rebalance())
    assert is_granted(rebalance, whole)
    assert not is_granted(rebalance, of_topic)
    register = proto.Request(register_broker=proto.RegisterBroker())
    assert not is_granted(register, whole)
    ids = proto.Request(new_producer=proto.NewProducer())
    assert is_granted(ids, produce)
    assert not is_granted(ids, consume)
    described = proto.Request(map=proto.MapQuery(topics=["orders"]))
    assert is_granted(described, consume)
    described.map.topics.append("other")
    assert not is_granted(described, consume, produce)
    created = proto.Request(map=proto.MapQuery(topics=["orders"], auto_create=True))
    assert is_granted(created, produce)
    assert not is_granted(created, consume), "whoever may not produce does not create by a look"


def test_a_decision_ends_with_the_grant_it_was_made_by() -> None:
    bob = account(Grant("produce", "orders"))
    assert bob.may(PRODUCE, "orders")
    bob.update(UserRecord("bob", digest_of("b"), 1))
    assert not bob.may(PRODUCE, "orders")


def test_decisions_are_bounded() -> None:
    bob = account(Grant("produce", "t1"))
    answers = [bob.may(PRODUCE, f"t{number}") for number in range(5_000)]
    assert answers == [f"t{number}".startswith("t1") for number in range(5_000)]
    assert len(bob._decisions) <= 1_000


@pytest.mark.parametrize(
    ("header", "token"),
    [("", ""), ("Bearer qv_x", "qv_x"), ("bearer  qv_x ", "qv_x"), ("BEARER a.b-c=", "a.b-c=")],
)
def test_a_header_gives_a_token(header: str, token: str) -> None:
    assert bearer_token(header) == token


@pytest.mark.parametrize("header", ["Basic cm9vdDp4", "Bearer", "Bearer ", "qv_x", "Bearerqv_x"])
def test_another_header_is_refused_rather_than_ignored(header: str) -> None:
    with pytest.raises(Unauthenticated):
        bearer_token(header)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("broker-1", False),
        ("localhost.example.com", False),
    ],
)
def test_only_loopback_is_local(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected
