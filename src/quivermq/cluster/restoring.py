"""The part of the catalog that a backup keeps, and the edits that bring it back.

A topic is restored under its own id where no broker can have a log of that id: a broker that was
away would take its former log for that of the restored topic. So never in the cluster that it was
in, and in another one only once (`RESTORED_PREFIX`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from quivermq.cluster.catalog_view import View
from quivermq.cluster.edits import Edit, create_topic
from quivermq.cluster.features import Level
from quivermq.cluster.records import (
    COUNT_MAX,
    PRODUCERS_KEY,
    RESTORED_PREFIX,
    Topic,
    settings_of,
)
from quivermq.cluster.users import USERS_MAX, UserRecord
from quivermq.errors import Corrupt, InvalidRequest, TooLarge, TopicExists
from quivermq.topic_settings import LEADER_ONLY

PRODUCER_MARGIN: Final = 1 << 32
"""Producer ids that may have been granted between a backup and the end of its cluster."""


def export_catalog(view: View) -> dict[str, Any]:
    """The content of a backup: topics without their placements, users, the next producer id, and,
    for a restore, which topics came from which backup."""
    cluster = view.cluster
    topics = [topic for topic in view.topics.values() if not topic.restoring]
    origins = {name: restored_from(view, topic) for name, topic in view.topics.items()}
    return {
        "cluster_id": cluster.id if cluster else "",
        "level": cluster.level if cluster else 0,
        "release": cluster.release if cluster else "",
        "next_producer": view.next_producer,
        "topics": {topic.name: _exported(topic) for topic in topics},
        "users": {name: user.to_json() for name, user in view.users.items()},
        "restored": {name: backup for name, backup in origins.items() if backup},
    }


def _exported(topic: Topic) -> dict[str, Any]:
    own = {setting.name: getattr(topic, setting.name) for setting in LEADER_ONLY}
    return {
        "id": topic.id,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "settings": dict(topic.settings),
        **own,
    }


def restore_topic(
    view: View,
    name: str,
    record: Mapping[str, Any],
    *,
    backup: str,
    cluster_id: str,
    fresh_id: str,
    partitions_max: int,
) -> Edit | None:
    """Create a topic that takes only what is restored; None if it was created so before.

    `record` is an exported one, with the first offset of each partition as `starts`.
    """
    _check_level(view)
    if not backup:
        raise InvalidRequest("the name of the backup is missing")
    if name in view.topics:
        if restored_from(view, view.topics[name]) == backup:
            return None
        raise TopicExists(
            f"topic {name!r} exists: restore it under another name (--as), or delete it first"
        )
    try:
        topic = _created(view, name, record, cluster_id, fresh_id, partitions_max)
        topic = _with_starts(topic, record["starts"], backup)
    except Corrupt as error:
        raise InvalidRequest(f"topic {name!r} cannot be restored: {error}") from error
    # Settings that only other builds know come back too.
    topic = replace(topic, settings=record["settings"] | topic.settings)
    note = {"name": name, "backup": backup}
    return Edit({topic.key: topic.to_json(), RESTORED_PREFIX + topic.id: note})


def _created(
    view: View,
    name: str,
    record: Mapping[str, Any],
    cluster_id: str,
    fresh_id: str,
    partitions_max: int,
) -> Topic:
    starts, settings, topic_id = record.get("starts"), record.get("settings"), record.get("id")
    replication = record.get("replication")
    if not (starts and isinstance(starts, list) and isinstance(topic_id, str)):
        raise Corrupt("its record lacks the starts of partitions, or its id")
    if not isinstance(settings, dict) or type(replication) is not int:
        raise Corrupt("its record lacks settings or replication")
    is_usable = cluster_id not in {"", view.cluster.id if view.cluster else ""} and not (
        topic_id in view.topics_by_id or RESTORED_PREFIX + topic_id in view.values
    )
    edit = create_topic(
        view,
        name,
        topic_id=topic_id if is_usable else fresh_id,
        partitions=len(starts),
        replication=min(replication, len(view.serving)),
        settings=settings_of(settings),
        leader_settings={one.name: record[one.name] for one in LEADER_ONLY if one.name in record},
        partitions_max=partitions_max,
        internal=name.startswith("_"),
    )
    # There is none of this name, so there is an edit.
    return Topic.from_json(next(iter(edit.put.values())) if edit else None)


def _with_starts(topic: Topic, starts: list[Any], backup: str) -> Topic:
    placements = tuple(
        replace(placement, start=start)
        for placement, start in zip(topic.partitions, starts, strict=True)
    )
    made = replace(topic, partitions=placements, restoring=backup)
    return Topic.from_json(made.to_json())


def restored_from(view: View, topic: Topic) -> str:
    """The backup that a topic came from; "" if it came from none."""
    note = view.values.get(RESTORED_PREFIX + topic.id)
    return note.get("backup", "") if isinstance(note, dict) and note["name"] == topic.name else ""


def finish_restore(view: View, name: str) -> Edit | None:
    """Open a restored topic to its users; None if it is."""
    topic = view.topic(name)
    if not topic.restoring:
        return None
    return Edit({topic.key: replace(topic, restoring="").to_json()})


def restore_producers(view: View, granted: Any) -> Edit | None:
    """See that no id is granted again that a producer of the backup, or after it, may have."""
    _check_level(view)
    if type(granted) is not int or not 0 < granted < COUNT_MAX - PRODUCER_MARGIN:
        raise InvalidRequest("next_producer is no id of a producer")
    floor = max(view.next_producer, granted + PRODUCER_MARGIN)
    if view.producer_floor >= granted + PRODUCER_MARGIN:
        return None
    return Edit({PRODUCERS_KEY: {"next": floor, "floor": floor}})


def restore_users(view: View, users: Any) -> tuple[Edit | None, list[str], list[str]]:
    """Users with their grants and the digests of their tokens. Returns also the names of those
    that are restored, and of those that exist and stay as they are."""
    _check_level(view)
    if not isinstance(users, dict):
        raise InvalidRequest("the users of a backup are records by name")
    try:
        records = [UserRecord.from_json(value) for value in users.values()]
    except Corrupt as error:
        raise InvalidRequest(f"the users cannot be restored: {error}") from error
    fresh = [user for user in records if user.name not in view.users]
    left = sorted(user.name for user in records if user.name in view.users)
    if len(view.users) + len(fresh) > USERS_MAX:
        raise TooLarge(f"a cluster has at most {USERS_MAX:,} users: remove some first")
    edit = Edit({user.key: user.to_json() for user in fresh}) if fresh else None
    return edit, sorted(user.name for user in fresh), left


def _check_level(view: View) -> None:
    """Below this level a broker of an earlier release may be a member: it would found a restored
    partition at offset 0, and let clients use it."""
    level = view.cluster.level if view.cluster else 0
    if level < Level.RESTORING:
        raise InvalidRequest(
            f"restoring needs feature level {int(Level.RESTORING)}, and the cluster is at {level}: "
            "run `quiver cluster upgrade` once all brokers know it"
        )
