"""Which action each kind of request needs, and of which topic and group.

Every kind of the protocol stands in `NEEDS`, or is answered by a connection itself (`UNCHECKED`);
`tests/node/test_permissions.py` fails for one that is missing. A kind that is not here is refused.
"""

from enum import Enum
from typing import Final, NamedTuple

from quivermq.cluster import ADMIN, CONSUME, PRODUCE
from quivermq.wire import proto


class Scope(Enum):
    """With what the action has to be granted."""

    NAMED = "the topic and the group that the request names"
    LISTED = "each topic that the request names, by any action; answers leave the others out"
    ANYWHERE = "any topic"
    SIGNED_IN = "nothing: every user may"
    CLUSTER = "the whole cluster: no prefix"
    BROKERS = "brokers ask this of one another, and no user may"


class Need(NamedTuple):
    """The grant that a request needs."""

    action: str
    scope: Scope
    topic: str = ""
    """The field that names the topic."""
    group: str = ""
    """The field that names the group, if there is one."""


def _named(action: str, topic: str = "topic", group: str = "") -> Need:
    return Need(action, Scope.NAMED, topic, group)


_CONSUME: Final = _named(CONSUME)
_CONSUME_AS_GROUP: Final = _named(CONSUME, group="group")
_ADMIN_OF_TOPIC: Final = _named(ADMIN)
_LISTED: Final = Need("", Scope.LISTED, "topics")
_CREATED: Final = Need(PRODUCE, Scope.LISTED, "topics")
"""A map of topics that are created if they are missing: only producers ask for one."""
_CLUSTER: Final = Need(ADMIN, Scope.CLUSTER)
_BROKERS: Final = Need("", Scope.BROKERS)

UNCHECKED: Final = frozenset({"hello", "prove", "cancel", "ping"})
"""Answered by the connection, which has looked at the token by then, or is just doing so."""

NEEDS: Final[dict[str, Need]] = {
    "map": _LISTED,
    "create_topic": _named(ADMIN, "name"),
    "alter_topic": _named(ADMIN, "name"),
    "delete_topic": _named(ADMIN, "name"),
    "describe_topics": _LISTED,
    "describe_partitions": _BROKERS,
    "new_producer": Need(PRODUCE, Scope.ANYWHERE),
    "produce": _named(PRODUCE),
    "fetch": _CONSUME_AS_GROUP,
    "find_offset": _CONSUME,
    "list_offsets": _CONSUME,
    "commit_offset": _CONSUME_AS_GROUP,
    "committed_offsets": _CONSUME_AS_GROUP,
    "claim": _CONSUME_AS_GROUP,
    "poll": _CONSUME_AS_GROUP,
    "await_ready": _CONSUME_AS_GROUP,
    "settle": _CONSUME_AS_GROUP,
    "release_consumer": _CONSUME_AS_GROUP,
    "describe_groups": _CONSUME_AS_GROUP,
    "seek_group": _CONSUME_AS_GROUP,
    "delete_group": _named(ADMIN, group="group"),
    "list_delayed": _CONSUME,
    "cancel_delayed": _ADMIN_OF_TOPIC,
    "redrive": _ADMIN_OF_TOPIC,
    "redrive_to": _ADMIN_OF_TOPIC,
    "revive": _BROKERS,
    "list_dead": _CONSUME,
    "take_tokens": _BROKERS,
    "sticky_beat": _CONSUME_AS_GROUP,
    "describe_sticky": _CONSUME_AS_GROUP,
    "stats": Need("", Scope.SIGNED_IN),
    "bootstrap": _CLUSTER,
    "join_cluster": _CLUSTER,
    "register_broker": _BROKERS,
    "remove_broker": _CLUSTER,
    "replace_broker": _CLUSTER,
    "rebalance": _CLUSTER,
    "transfer": _CLUSTER,
    "reconfigure": _BROKERS,
    "upgrade_cluster": _CLUSTER,
    "set_log_level": _CLUSTER,
    "add_user": _CLUSTER,
    "remove_user": _CLUSTER,
    "grant_user": _CLUSTER,
    "revoke_user": _CLUSTER,
    "list_users": _CLUSTER,
    "list_user_records": _BROKERS,
    "export_catalog": _CLUSTER,
    "export_partition": _CLUSTER,
    "restore_catalog": _CLUSTER,
    "restore_topic": _CLUSTER,
    "restore_frames": _CLUSTER,
    "finish_restore": _CLUSTER,
}

_UNAUDITED: Final = frozenset({"list_users", "export_partition", "restore_frames"})
"""The last two come by the thousand; `export_catalog` and `restore_topic` come before them."""

AUDITED: Final = frozenset(
    kind for kind, need in NEEDS.items() if need.action == ADMIN and kind not in _UNAUDITED
)
"""Recorded in the audit log, also if they were refused."""


_VERBS: Final = {PRODUCE: "produce to", CONSUME: "consume", ADMIN: "administer", "": "see"}


class WantedGrant(NamedTuple):
    """The permission that a request needs: an action, and the names it concerns."""

    kind: str
    need: Need
    topics: tuple[str, ...] = ()
    group: str = ""

    def __str__(self) -> str:
        if self.need.scope is Scope.CLUSTER:
            return f"{self.kind}, which needs admin without a prefix"
        topics = ", ".join(repr(topic[:200]) for topic in self.topics[:3])
        parts = [_VERBS[self.need.action]]
        parts += [f"topic {topics}"] if topics else []
        parts += [f"as group {self.group[:200]!r}"] if self.group else []
        return " ".join(parts)


def wanted_by(request: proto.Request) -> WantedGrant | None:
    """The permission that a request needs; None: no build of ours knows its kind."""
    kind = request.WhichOneof("body") or ""
    need = NEEDS.get(kind)
    if need is None:
        return None
    if need.scope is Scope.NAMED:
        body = getattr(request, kind)
        group = getattr(body, need.group) if need.group else ""
        return WantedGrant(kind, need, (getattr(body, need.topic),), group)
    if need.scope is Scope.LISTED:
        need = _CREATED if kind == "map" and request.map.auto_create else need
        return WantedGrant(kind, need, tuple(getattr(request, kind).topics))
    return WantedGrant(kind, need)
