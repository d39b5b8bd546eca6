"""Says what happened between two versions of the catalog: in words, and by kind.

Pure. The kinds are those of `quivermq.events`.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from quivermq.cluster.catalog_view import View
from quivermq.cluster.records import LEAVING, BrokerRecord, Placement, Topic, node_of
from quivermq.cluster.sticky import StickyGroup
from quivermq.topic_settings import LEADER_ONLY

_NAMED_MAX: Final = 5


class CatalogChange(NamedTuple):
    """One thing that happened."""

    kind: str
    detail: str
    broker: int | None = None
    topic: str | None = None
    partition: int | None = None
    group: str | None = None


def changes_between(before: View, after: View) -> Iterator[CatalogChange]:
    """In an order that does not depend on chance. The first view of a catalog is no change."""
    if not before.version:
        return
    if after.cluster and before.cluster and after.cluster.level > before.cluster.level:
        level = after.cluster.level
        yield CatalogChange("level_raised", f"the cluster is at feature level {level}")
    if after.brokers is not before.brokers:
        yield from _brokers(before, after)
    if after.topics is not before.topics:
        yield from _topics(before, after)
    if after.sticky is not before.sticky:
        yield from _groups(before, after)


def _brokers(before: View, after: View) -> Iterator[CatalogChange]:
    for node, broker in after.brokers.items():
        was = before.brokers.get(node)
        if was is not broker:
            yield from _broker(was, broker)
    for node in before.brokers:
        if node not in after.brokers:
            yield CatalogChange("broker_left", f"broker {node} is no member any more", node)


def _broker(was: BrokerRecord | None, broker: BrokerRecord) -> Iterator[CatalogChange]:
    node = broker.id
    if was is None:
        text = f"broker {node} joined the cluster: {broker.address}, release {broker.version}"
        yield CatalogChange("broker_joined", text, node)
        return
    if broker.member != was.member:
        text = f"broker {node} begins anew, without its former data"
        yield CatalogChange("broker_replaced", text, node)
    if broker.state == LEAVING != was.state:
        yield CatalogChange("broker_leaving", f"broker {node} leaves: its partitions move", node)
    if broker.life and (broker.boot, broker.life) != (was.boot, was.life):
        text = f"broker {node} was started: {broker.address}, release {broker.version}"
        yield CatalogChange("broker_started", text, node)


def _topics(before: View, after: View) -> Iterator[CatalogChange]:
    for name, was in before.topics.items():
        now = after.topics.get(name)
        if now is None or now.id != was.id:
            yield CatalogChange("topic_deleted", f"topic {name} was deleted", topic=name)
    for name, topic in after.topics.items():
        was_there = before.topics.get(name)
        if was_there is None or was_there.id != topic.id:
            count = len(topic.partitions)
            text = f"topic {name} was created: {_plural(count, 'partition')}, "
            text += f"{_plural(topic.replication, 'replica')} each"
            yield CatalogChange("topic_created", text, topic=name)
        elif was_there is not topic:
            yield from _topic(was_there, topic)


def _topic(was: Topic, topic: Topic) -> Iterator[CatalogChange]:
    name = topic.name
    old, new = _settings(was), _settings(topic)
    changed = [f"{key} is {value!r}" for key, value in new.items() if old.get(key) != value]
    if len(topic.partitions) != len(was.partitions):
        changed.append(_plural(len(topic.partitions), "partition"))
    if topic.replication != was.replication:
        changed.append(_plural(topic.replication, "replica"))
    if changed:
        text = f"topic {name} was altered: {', '.join(changed)}"
        yield CatalogChange("topic_altered", text, topic=name)
    for number, (there, here) in enumerate(zip(was.partitions, topic.partitions, strict=False)):
        if there is not here:
            yield from _placement(name, number, there, here)


def _settings(topic: Topic) -> dict[str, object]:
    return {**topic.settings, **{each.name: getattr(topic, each.name) for each in LEADER_ONLY}}


def _placement(topic: str, number: int, was: Placement, now: Placement) -> Iterator[CatalogChange]:
    if now.target and now.target != was.target:
        text = f"{topic}/{number} moves from brokers {_nodes(now.replicas)} to {_nodes(now.target)}"
        yield CatalogChange("partition_moving", text, None, topic, number)
    elif was.target and not now.target:
        text = f"{topic}/{number} is on brokers {_nodes(now.replicas)}"
        yield CatalogChange("partition_moved", text, None, topic, number)


def _groups(before: View, after: View) -> Iterator[CatalogChange]:
    for key in sorted(before.sticky.keys() | after.sticky.keys()):
        was, now = before.sticky.get(key), after.sticky.get(key)
        if was is now:
            continue
        group = now or was
        topic = after.topics_by_id.get(group.topic_id) if group is not None else None
        if group is None or topic is None:
            # With its topic, whose end is told.
            continue
        text = _regrouped(was, now)
        if text:
            yield CatalogChange("group_rebalanced", text, None, topic.name, None, group.group)


def _regrouped(was: StickyGroup | None, now: StickyGroup | None) -> str:
    if now is None:
        return "the group has no members any more"
    if was is not None and was.generation == now.generation:
        return ""
    members = was.members if was is not None else {}
    joined = [each.name for member, each in now.members.items() if member not in members]
    left = [each.name for member, each in members.items() if member not in now.members]
    parts = [f"generation {now.generation}: {_plural(len(now.members), 'member')}"]
    parts += [f"{_names(joined)} joined"] if joined else []
    parts += [f"{_names(left)} left"] if left else []
    moved = len(now.revoking)
    parts += [f"{_plural(moved, 'partition')} to be handed over"] if moved else []
    return ", ".join(parts)


def _names(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""
    return ", ".join(found[:_NAMED_MAX]) + more


def _nodes(members: Iterable[int]) -> str:
    return ", ".join(str(node_of(member)) for member in members)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
