"""Builds changes of users, each from a view of the catalog, as `edits` does for the rest."""

from dataclasses import replace

from quivermq.cluster.catalog_view import View
from quivermq.cluster.edits import Edit
from quivermq.cluster.features import Level
from quivermq.cluster.users import GRANTS_MAX, USERS_MAX, Grant, UserRecord
from quivermq.errors import InvalidRequest, TooLarge
from quivermq.names import check_name


def add_user(view: View, user: UserRecord) -> Edit:
    """A user without grants."""
    check_name("user", user.name)
    _check_level(view)
    if user.name in view.users:
        raise InvalidRequest(
            f"there is a user {user.name!r}: remove it first, or give it another token with "
            "--new-token"
        )
    if len(view.users) >= USERS_MAX:
        raise TooLarge(f"a cluster has at most {USERS_MAX:,} users: remove one first")
    return Edit({user.key: user.to_json()})


def replace_token(view: View, name: str, digest: str, expires_ms: int) -> Edit:
    """Another token; the former one ends."""
    user = replace(find_user(view, name), digest=digest, expires_ms=expires_ms)
    return Edit({user.key: user.to_json()})


def remove_user(view: View, name: str) -> Edit:
    """The user is gone, and its token of no use."""
    user = find_user(view, name)
    _check_admin_left(view, user, ())
    return Edit(delete=[user.key])


def grant_user(view: View, name: str, grant: Grant) -> Edit | None:
    """Let a user do something; None if it may already, by the same grant."""
    user = find_user(view, name)
    grant.check()
    if grant in user.grants:
        return None
    if len(user.grants) >= GRANTS_MAX:
        raise TooLarge(
            f"user {name} has {GRANTS_MAX} grants, which is the limit: use shorter prefixes"
        )
    user = replace(user, grants=(*user.grants, grant))
    return Edit({user.key: user.to_json()})


def revoke_user(view: View, name: str, grant: Grant | None) -> Edit | None:
    """Take a grant away, exactly as it was given; None takes all, and then may change nothing."""
    user = find_user(view, name)
    if grant is not None and grant not in user.grants:
        has = "; ".join(map(str, user.grants)) or "nothing"
        raise InvalidRequest(f"user {name} was not granted {grant}; it has: {has}")
    left = tuple(one for one in user.grants if grant is not None and one != grant)
    if left == user.grants:
        return None
    _check_admin_left(view, user, left)
    user = replace(user, grants=left)
    return Edit({user.key: user.to_json()})


def find_user(view: View, name: str) -> UserRecord:
    """Raises `InvalidRequest` if there is none of that name."""
    if name not in view.users:
        raise InvalidRequest(f"there is no user {name[:200]!r}: see `quiver user list`")
    return view.users[name]


def _check_level(view: View) -> None:
    """Below its level a broker of an earlier release may be a member: it would let everyone in."""
    level = view.cluster.level if view.cluster else 0
    if level < Level.USERS:
        raise InvalidRequest(
            f"users need feature level {int(Level.USERS)}, and the cluster is at {level}: run "
            "`quiver cluster upgrade` once all brokers know it"
        )


def _check_admin_left(view: View, user: UserRecord, grants: tuple[Grant, ...]) -> None:
    """Without an admin, anonymous callers on a broker's own machine would be admins again."""
    if not user.is_admin or replace(user, grants=grants).is_admin:
        return
    if not any(one.is_admin for one in view.users.values() if one.name != user.name):
        raise InvalidRequest(f"user {user.name} is the only admin: make another user admin first")
