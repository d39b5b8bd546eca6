"""Users as the catalog keeps them: the digest of a token, and what the user may do.

A *grant* allows one action with topics and groups whose names begin with its prefixes; an empty
prefix matches every name. `admin` includes the other two: an admin could grant them to itself.

A token has 256 random bits, so its SHA-256 is as hard to turn around as the token is to guess, and
brokers check it without work that a stranger could make them do (decision 0044).

Pure: tokens are drawn elsewhere, and so is it decided whether a request is allowed.
"""

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

from quivermq.errors import Corrupt, InvalidRequest
from quivermq.events import EVENTS_TOPIC
from quivermq.names import check_name

USER_PREFIX: Final = "user/"
PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"
ACTIONS: Final = (PRODUCE, CONSUME, ADMIN)
AUDIT_TOPIC: Final = "_audit"
"""Where brokers record what admins do, and who was refused."""
BROKERS_TOPICS: Final = frozenset({AUDIT_TOPIC, EVENTS_TOPIC})
"""The topics that brokers write of their own accord."""
USERS_MAX: Final = 10_000
GRANTS_MAX: Final = 100
"""Of one user."""
_TIME_MAX: Final = (1 << 63) - 1
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_DOMAIN: Final = b"quivermq token\0"
"""So that a digest of ours is of no use as one of anything else."""


def digest_of(token: str) -> str:
    """The record that is kept of a token."""
    return sha256(_DOMAIN + token.encode("utf-8", "surrogatepass")).hexdigest()


class Grant(NamedTuple):
    """One action, with names that begin with these prefixes."""

    action: str
    topic: str = ""
    group: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether it is limited to no topics and no groups: for the cluster itself."""
        return not self.topic and not self.group

    def allows(self, action: str, topic: str, group: str) -> bool:
        """Whether it covers an action; of no group in particular if `group` is empty."""
        if self.action not in (action, ADMIN):
            return False
        if topic in BROKERS_TOPICS and action == PRODUCE:
            # Only brokers write it, or it would prove nothing.
            return False
        if topic in BROKERS_TOPICS and not self.topic.startswith("_"):
            # Only who was granted it by name, or an admin of the whole cluster, reads it.
            return self.action == ADMIN and self.is_whole
        return topic.startswith(self.topic) and (not group or group.startswith(self.group))

    def check(self) -> None:
        """Raise `InvalidRequest` unless a user can be granted it."""
        if self.action not in ACTIONS:
            raise InvalidRequest(
                f"{self.action[:50]!r} is no action: grant {', '.join(ACTIONS[:-1])} or {ADMIN}"
            )
        for what, prefix in (("topic", self.topic), ("group", self.group)):
            if prefix:
                check_name(what, prefix)
        if self.group and self.action == PRODUCE:
            raise InvalidRequest("producing concerns no group: grant it by --topic only")

    def __str__(self) -> str:
        named = [
            f"{what} {prefix}*"
            for what, prefix in (("topics", self.topic), ("groups", self.group))
            if prefix
        ]
        return " ".join([self.action, *named])


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user: what is kept of its token, and what it may do."""

    name: str
    digest: str
    created_ms: int
    expires_ms: int = 0
    """When the token ends; 0: never."""
    grants: tuple[Grant, ...] = ()
    others: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        return USER_PREFIX + self.name

    @property
    def is_admin(self) -> bool:
        """Whether it may do anything in the cluster."""
        return any(grant.action == ADMIN and grant.is_whole for grant in self.grants)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.others,
            "name": self.name,
            "digest": self.digest,
            "created_ms": self.created_ms,
            "expires_ms": self.expires_ms,
            "grants": [list(grant) for grant in self.grants],
        }

    @classmethod
    def from_json(cls, value: Any) -> "UserRecord":
        if not isinstance(value, dict):
            raise Corrupt("the record of a user is no JSON object")
        name, digest = value.get("name"), value.get("digest")
        if not isinstance(name, str):
            raise Corrupt("the name of a user is no text")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise Corrupt("the digest of a user's token is not 32 bytes in hexadecimal")
        try:
            check_name("user", name)
        except InvalidRequest as error:
            raise Corrupt(f"the catalog holds a user that cannot be: {error}") from error
        return cls(
            name=name,
            digest=digest,
            created_ms=_time(value, "created_ms"),
            expires_ms=_time(value, "expires_ms"),
            grants=_grants(value.get("grants")),
            others={key: value[key] for key in value if key not in _KNOWN},
        )


_KNOWN: Final = frozenset({"name", "digest", "created_ms", "expires_ms", "grants"})


def _time(found: dict[str, Any], key: str) -> int:
    value = found.get(key)
    if type(value) is not int or not 0 <= value <= _TIME_MAX:
        raise Corrupt(f"{key} of a user must be a time in milliseconds")
    return value


def _grants(value: Any) -> tuple[Grant, ...]:
    if not isinstance(value, list) or len(value) > GRANTS_MAX:
        raise Corrupt(f"a user has at most {GRANTS_MAX} grants, in a list")
    found = []
    for item in value:
        if not isinstance(item, list) or len(item) != 3 or not all(type(x) is str for x in item):
            raise Corrupt("a grant is an action and two prefixes")
        grant = Grant(*item)
        try:
            grant.check()
        except InvalidRequest as error:
            raise Corrupt(f"the catalog holds a grant that cannot be: {error}") from error
        found.append(grant)
    return tuple(found)
