"""Users in the catalog: records, grants, and edits of them."""

import json
from typing import Any

import pytest

from quivermq.cluster import (
    AUDIT_TOPIC,
    CLUSTER_KEY,
    Edit,
    Grant,
    UserRecord,
    View,
    add_user,
    digest_of,
    found_cluster,
    grant_user,
    remove_user,
    replace_token,
    revoke_user,
)
from quivermq.cluster.users import GRANTS_MAX, USERS_MAX
from quivermq.errors import Corrupt, InvalidRequest, TooLarge
from tests.cluster.catalogs import broker, edited

ALICE = UserRecord("alice", digest_of("a"), 5)
BOB = UserRecord("bob", digest_of("b"), 6, expires_ms=9)
ADMIN = Grant("admin")


@pytest.fixture
def view() -> View:
    view = edited(View(), found_cluster("c1", 7, [broker(1)]))
    view = edited(view, add_user(view, ALICE))
    return edited(view, add_user(view, BOB))


def granted(view: View, name: str, *grants: Grant) -> View:
    for grant in grants:
        view = edited(view, grant_user(view, name, grant))
    return view


def test_a_record_survives_json_with_what_a_later_release_added(view: View) -> None:
    user = granted(view, "bob", Grant("consume", "orders", "bill")).users["bob"]
    value = json.loads(json.dumps(user.to_json() | {"colour": "red"}))
    again = UserRecord.from_json(value)
    assert again.grants == user.grants
    assert again.to_json() == value
    assert digest_of("b") in json.dumps(value)
    assert '"b"' not in json.dumps(value), "the token itself is kept nowhere"


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "a/b"},
        {"name": 5},
        {"digest": "ab"},
        {"digest": None},
        {"created_ms": -1},
        {"expires_ms": True},
        {"grants": {}},
        {"grants": [["fly", "", ""]]},
        {"grants": [["produce", "", ""]] * (GRANTS_MAX + 1)},
        {"grants": [["produce", ""]]},
        {"grants": [["produce", 5, ""]]},
        {"grants": [["consume", "a/b", ""]]},
    ],
)
def test_a_record_that_no_build_writes_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt):
        UserRecord.from_json(ALICE.to_json() | changes)
    with pytest.raises(Corrupt):
        UserRecord.from_json([])


def test_a_record_under_another_name_is_corrupt(view: View) -> None:
    with pytest.raises(Corrupt):
        view.updated(99, view.values | {"user/carol": ALICE.to_json()})


def test_users_stay_when_only_sticky_groups_change(view: View) -> None:
    later = view.updated(view.version + 1, dict(view.values))
    assert later.layout_version == view.layout_version, "nothing but sticky groups changed"
    assert later.users == view.users


@pytest.mark.parametrize(
    ("grant", "asked", "allowed"),
    [
        (Grant("produce", "orders"), ("produce", "orders", ""), True),
        (Grant("produce", "orders"), ("produce", "orders-eu", ""), True),
        (Grant("produce", "orders"), ("produce", "order", ""), False),
        (Grant("produce", "orders"), ("produce", "Orders", ""), False),
        (Grant("produce", "orders"), ("produce", "my-orders", ""), False),
        (Grant("produce", "orders"), ("produce", "", ""), False),
        (Grant("produce", "orders"), ("consume", "orders", ""), False),
        (Grant("produce", "orders"), ("admin", "orders", ""), False),
        (Grant("produce"), ("produce", "anything", ""), True),
        (Grant("consume", "orders", "bill"), ("consume", "orders", "billing"), True),
        (Grant("consume", "orders", "bill"), ("consume", "orders", "bil"), False),
        (Grant("consume", "orders", "bill"), ("consume", "orders", ""), True),
        (Grant("consume", "", "bill"), ("consume", "orders", "bill"), True),
        (Grant("admin", "orders"), ("produce", "orders", ""), True),
        (Grant("admin", "orders"), ("consume", "orders", "any"), True),
        (Grant("admin", "orders"), ("admin", "orders.dlq", ""), True),
        (Grant("admin", "orders"), ("admin", "other", ""), False),
        (Grant("consume"), ("consume", AUDIT_TOPIC, ""), False),
        (Grant("admin", "", "g"), ("consume", AUDIT_TOPIC, ""), False),
        (Grant("consume", "_audit"), ("consume", AUDIT_TOPIC, ""), True),
        (ADMIN, ("consume", AUDIT_TOPIC, ""), True),
        (ADMIN, ("produce", AUDIT_TOPIC, ""), False),
        (Grant("produce", "_audit"), ("produce", AUDIT_TOPIC, ""), False),
    ],
)
def test_a_grant_covers_names_that_begin_with_its_prefixes(
    grant: Grant, asked: tuple[str, str, str], *, allowed: bool
) -> None:
    assert grant.allows(*asked) is allowed


@pytest.mark.parametrize(
    "grant",
    [
        Grant("write", "orders"),
        Grant("", "orders"),
        Grant("produce", "orders", "group"),
        Grant("consume", "../etc"),
        Grant("consume", "orders", "a b"),
        Grant("consume", "orders\0"),
        Grant("consume", "x" * 10_000),
    ],
)
def test_a_grant_that_makes_no_sense_is_refused(view: View, grant: Grant) -> None:
    with pytest.raises(InvalidRequest):
        grant_user(view, "bob", grant)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0", "?", "x" * 10_000, "é"])
def test_a_user_needs_a_name_that_is_one(view: View, name: str) -> None:
    with pytest.raises(InvalidRequest):
        add_user(view, UserRecord(name, digest_of("x"), 1))


def test_a_user_is_added_once_and_unknown_ones_are_refused(view: View) -> None:
    with pytest.raises(InvalidRequest, match="--new-token"):
        add_user(view, ALICE)
    for build in (
        lambda: remove_user(view, "carol"),
        lambda: grant_user(view, "carol", ADMIN),
        lambda: revoke_user(view, "carol", None),
        lambda: replace_token(view, "carol", digest_of("x"), 0),
    ):
        with pytest.raises(InvalidRequest, match="no user 'carol'"):
            build()


def test_the_same_grant_again_changes_nothing(view: View) -> None:
    view = granted(view, "bob", ADMIN)
    assert grant_user(view, "bob", ADMIN) is None


def test_another_token_keeps_the_grants(view: View) -> None:
    view = granted(view, "bob", Grant("consume"))
    view = edited(view, replace_token(view, "bob", digest_of("new"), 0))
    bob = view.users["bob"]
    assert (bob.digest, bob.expires_ms, bob.grants) == (digest_of("new"), 0, (Grant("consume"),))


def test_a_grant_is_revoked_exactly_as_it_was_given(view: View) -> None:
    one, two = Grant("consume", "a"), Grant("consume", "a", "g")
    view = granted(view, "bob", one, two)
    with pytest.raises(InvalidRequest, match="consume topics a"):
        revoke_user(view, "bob", Grant("consume"))
    assert edited(view, revoke_user(view, "bob", one)).users["bob"].grants == (two,)
    view = edited(view, revoke_user(view, "bob", None))
    assert view.users["bob"].grants == ()
    assert revoke_user(view, "bob", None) is None


def test_the_last_admin_stays(view: View) -> None:
    view = granted(view, "bob", ADMIN, Grant("consume"))
    for build in (
        lambda: remove_user(view, "bob"),
        lambda: revoke_user(view, "bob", ADMIN),
        lambda: revoke_user(view, "bob", None),
    ):
        with pytest.raises(InvalidRequest, match="only admin"):
            build()
    assert revoke_user(view, "bob", Grant("consume")) is not None
    of_a_topic = granted(view, "alice", Grant("admin", "orders"))
    with pytest.raises(InvalidRequest, match="only admin"):
        remove_user(of_a_topic, "bob")
    assert remove_user(granted(view, "alice", ADMIN), "bob") == Edit(delete=["user/bob"])


def test_users_wait_for_the_feature_level_that_brings_them(view: View) -> None:
    record = dict(view.values[CLUSTER_KEY], level=1)
    earlier = view.updated(view.version + 1, view.values | {CLUSTER_KEY: record})
    with pytest.raises(InvalidRequest, match="quiver cluster upgrade"):
        add_user(earlier, UserRecord("carol", digest_of("c"), 1))


def test_users_and_their_grants_are_bounded(view: View) -> None:
    many = tuple(Grant("consume", f"t{n}") for n in range(GRANTS_MAX))
    full = edited(view, Edit({ALICE.key: UserRecord("alice", "0" * 64, 1, 0, many).to_json()}))
    with pytest.raises(TooLarge):
        grant_user(full, "alice", Grant("produce"))
    full.users.update({f"u{n}": ALICE for n in range(USERS_MAX)})
    with pytest.raises(TooLarge):
        add_user(full, UserRecord("carol", digest_of("c"), 1))
