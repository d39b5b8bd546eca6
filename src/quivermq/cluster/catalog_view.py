"""The catalog as typed records, at one version.

A `View` never changes; `updated` gives the next one and parses only what differs. Everything that
is found by searching is found here; plans and edits decide what should change.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from quivermq.cluster.records import (
    BROKER_PREFIX,
    CLUSTER_KEY,
    PRODUCERS_KEY,
    RETIRED_PREFIX,
    SERVING,
    TOPIC_ID_BYTES,
    TOPIC_PREFIX,
    BrokerRecord,
    ClusterRecord,
    Placement,
    Topic,
    next_producer,
    node_of,
    producer_floor,
    retired_member,
)
from quivermq.cluster.sticky import STICKY_PREFIX, StickyGroup
from quivermq.cluster.users import USER_PREFIX, UserRecord
from quivermq.errors import Corrupt, InvalidRequest, TopicNotFound


class Hosted(NamedTuple):
    """A partition that a node holds or is to hold, and the node's member number in it."""

    topic: Topic
    partition: int
    placement: Placement
    member: int


class View:
    """The catalog, by name and by number."""

    def __init__(
        self,
        version: int = 0,
        values: Mapping[str, Any] | None = None,
        previous: "View | None" = None,
    ) -> None:
        self.version = version
        self.values = dict(values or {})
        """Not to be changed, nor anything in it."""
        self.layout_version = version
        """When anything but sticky groups changed last."""
        self.sticky: dict[str, StickyGroup] = {}
        """By their keys."""
        self.cluster: ClusterRecord | None = None
        self.next_producer = 1
        self.producer_floor = 0
        """Ids below are of a cluster that was restored here."""
        self.brokers: dict[int, BrokerRecord] = {}
        self.topics: dict[str, Topic] = {}
        self.users: dict[str, UserRecord] = {}
        self.retired: dict[int, int] = {}
        """The last member number of each removed broker."""
        self._hosted: dict[int, list[Hosted]] | None = None
        if previous is not None and self._has_only_regrouped(previous):
            return
        for key in sorted(self.values):
            self._read(key, self.values[key], previous)
        self.brokers = dict(sorted(self.brokers.items()))
        self.serving = tuple(b for b in self.brokers.values() if b.state == SERVING)
        self.topics_by_id = {topic.id: topic for topic in self.topics.values()}
        if len(self.topics_by_id) < len(self.topics):
            raise Corrupt("two topics of the catalog have one id")

    def updated(self, version: int, values: Mapping[str, Any]) -> "View":
        """The view of another version; records whose JSON is the same are the same objects."""
        return View(version, values, self)

    def broker(self, node: int) -> BrokerRecord:
        if node not in self.brokers:
            known = ", ".join(map(str, self.brokers)) or "none"
            raise InvalidRequest(f"there is no broker {node} in this cluster; there are: {known}")
        return self.brokers[node]

    def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise TopicNotFound(f"there is no topic {name[:200]!r}; create it first")
        return self.topics[name]

    def placement(self, topic: str, partition: int) -> Placement:
        placements = self.topic(topic).partitions
        if not 0 <= partition < len(placements):
            raise InvalidRequest(
                f"topic {topic} has partitions 0 to {len(placements) - 1}, not {partition}"
            )
        return placements[partition]

    def partition_of(self, group: bytes) -> tuple[Topic, int] | None:
        """The partition with that id; None if no topic has it (any more)."""
        topic = self.topics_by_id.get(group[:TOPIC_ID_BYTES].hex())
        partition = int.from_bytes(group[TOPIC_ID_BYTES:], "big")
        if topic is None or len(group) != TOPIC_ID_BYTES + 4 or partition >= len(topic.partitions):
            return None
        return topic, partition

    def partitions(self) -> Iterator[tuple[Topic, int, Placement]]:
        """Every partition, by topic name and number."""
        for topic in self.topics.values():
            for partition, placement in enumerate(topic.partitions):
                yield topic, partition, placement

    def hosted(self, node: int) -> Iterator[Hosted]:
        """The partitions that `node` holds or is to hold, by topic name and number."""
        if self._hosted is None:
            self._hosted = self._by_node()
        return iter(self._hosted.get(node, ()))

    def _by_node(self) -> dict[int, list[Hosted]]:
        found: dict[int, list[Hosted]] = {}
        for topic, partition, placement in self.partitions():
            members = placement.replicas
            if placement.target:
                # A node that is its own successor, after it lost its disk, is the later member.
                every = sorted({*members, *placement.target, *placement.leaving})
                members = tuple({node_of(member): member for member in every}.values())
            for member in members:
                hosted = Hosted(topic, partition, placement, member)
                found.setdefault(node_of(member), []).append(hosted)
        return found

    def _has_only_regrouped(self, previous: "View") -> bool:
        """Take over what the previous view knows, if only sticky groups changed since: that
        happens often, and must not cost more where there are many topics."""
        was, values = previous.values, self.values
        changed = [key for key, value in values.items() if was.get(key) is not value]
        changed += [key for key in was if key not in values]
        if not all(key.startswith(STICKY_PREFIX) for key in changed):
            return False
        self.layout_version = previous.layout_version
        self._hosted = previous._hosted  # noqa: SLF001 - of another view, but the same class
        self.cluster, self.next_producer = previous.cluster, previous.next_producer
        self.producer_floor = previous.producer_floor
        self.brokers, self.serving = previous.brokers, previous.serving
        self.topics, self.topics_by_id = previous.topics, previous.topics_by_id
        self.retired, self.sticky = previous.retired, dict(previous.sticky)
        self.users = previous.users
        for key in changed:
            self.sticky.pop(key, None)
            if key in values:
                self._read(key, values[key], previous)
        return True

    def _read(self, key: str, value: Any, previous: "View | None") -> None:
        if key.startswith(TOPIC_PREFIX):
            self.topics[key.removeprefix(TOPIC_PREFIX)] = _topic(key, value, previous)
        elif key.startswith(BROKER_PREFIX):
            broker = BrokerRecord.from_json(value)
            _check_key(key, broker.key)
            known = previous.brokers.get(broker.id) if previous is not None else None
            self.brokers[broker.id] = broker if known is None or known != broker else known
        elif key.startswith(RETIRED_PREFIX):
            member = retired_member(value)
            _check_key(key, f"{RETIRED_PREFIX}{node_of(member)}")
            self.retired[node_of(member)] = member
        elif key.startswith(STICKY_PREFIX):
            self.sticky[key] = _sticky_group(key, value, previous)
        elif key.startswith(USER_PREFIX):
            self.users[key.removeprefix(USER_PREFIX)] = _user(key, value, previous)
        elif key == CLUSTER_KEY:
            self.cluster = ClusterRecord.from_json(value)
        elif key == PRODUCERS_KEY:
            self.next_producer, self.producer_floor = next_producer(value), producer_floor(value)


def _topic(key: str, value: Any, previous: View | None) -> Topic:
    before = previous.topics.get(key.removeprefix(TOPIC_PREFIX)) if previous is not None else None
    if previous is None or before is None:
        topic = Topic.from_json(value)
    else:
        was = previous.values[key]
        if was is value or was == value:
            return before
        topic = Topic.from_json(value, (was, before))
    _check_key(key, topic.key)
    return topic


def _sticky_group(key: str, value: Any, previous: View | None) -> StickyGroup:
    if previous is not None and key in previous.sticky:
        was = previous.values[key]
        if was is value or was == value:
            return previous.sticky[key]
    group = StickyGroup.from_json(value)
    _check_key(key, group.key)
    return group


def _user(key: str, value: Any, previous: View | None) -> UserRecord:
    name = key.removeprefix(USER_PREFIX)
    if previous is not None and name in previous.users:
        was = previous.values[key]
        if was is value or was == value:
            return previous.users[name]
    user = UserRecord.from_json(value)
    _check_key(key, user.key)
    return user


def _check_key(key: str, expected: str) -> None:
    if key != expected:
        raise Corrupt(f"the record of {expected[:250]} is kept as {key[:250]!r}")
