"""The catalog as typed records, at one version.

A `View` never changes; `updated` gives the next one and parses only what differs. Everything that
is found by searching is found here; plans and edits decide what should change.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
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
    partition_id,
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


class _Homes(NamedTuple):
    """The ids of a topic's partitions, and which of them each node holds or is to hold."""

    topic: Topic
    ids: tuple[bytes, ...]
    by_node: dict[int, list[Hosted]]

    @classmethod
    def of(cls, topic: Topic) -> "_Homes":
        by_node: dict[int, list[Hosted]] = {}
        for partition, placement in enumerate(topic.partitions):
            members = placement.replicas
            if placement.target:
                # A node that is its own successor, after it lost its disk, is the later member.
                every = sorted({*members, *placement.target, *placement.leaving})
                members = tuple({node_of(member): member for member in every}.values())
            for member in members:
                hosted = Hosted(topic, partition, placement, member)
                by_node.setdefault(node_of(member), []).append(hosted)
        ids = tuple(partition_id(topic.id, number) for number in range(len(topic.partitions)))
        return cls(topic, ids, by_node)


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
        """By their names, in that order."""
        self.users: dict[str, UserRecord] = {}
        self.retired: dict[int, int] = {}
        """The last member number of each removed broker."""
        self.serving: tuple[BrokerRecord, ...] = ()
        self.topics_by_id: dict[str, Topic] = {}
        self._homes: dict[str, _Homes] | None = None
        self._former_homes: dict[str, _Homes] = {}
        self._moving: list[tuple[Topic, int, Placement]] | None = None
        # Most changes concern one key of thousands: what the others say is taken over.
        known = previous.values if previous is not None else {}
        changed = [key for key, value in self.values.items() if known.get(key, ...) is not value]
        gone = [key for key in known if key not in self.values]
        if previous is not None:
            self._take_over(previous, [*changed, *gone])
        for key in gone:
            self._forget(key)
        for key in sorted(changed):
            self._read(key, self.values[key], previous)
        self._put_in_order(previous)

    def _take_over(self, previous: "View", changed: list[str]) -> None:
        if all(key.startswith(STICKY_PREFIX) for key in changed):
            self.layout_version = previous.layout_version
        self.sticky, self.users = dict(previous.sticky), dict(previous.users)
        self.brokers, self.retired = dict(previous.brokers), dict(previous.retired)
        self.cluster, self.next_producer = previous.cluster, previous.next_producer
        self.producer_floor = previous.producer_floor
        self.topics = dict(previous.topics)

    def _put_in_order(self, previous: "View | None") -> None:
        self.brokers = dict(sorted(self.brokers.items()))
        self.serving = tuple(b for b in self.brokers.values() if b.state == SERVING)
        if previous is not None and self.layout_version == previous.layout_version:
            self.topics, self.topics_by_id = previous.topics, previous.topics_by_id
            self._homes, self._moving = previous._homes, previous._moving  # noqa: SLF001
            return
        self.topics = {name: self.topics[name] for name in sorted(self.topics)}
        self.topics_by_id = {topic.id: topic for topic in self.topics.values()}
        if len(self.topics_by_id) < len(self.topics):
            raise Corrupt("two topics of the catalog have one id")
        if previous is not None:
            # Of topics that changed since they are not true any more; `_homes_of` sees that.
            self._former_homes = previous._homes or previous._former_homes  # noqa: SLF001

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

    def partition_ids(self) -> Iterator[bytes]:
        """The ids of all partitions."""
        return chain.from_iterable(homes.ids for homes in self._all_homes().values())

    def moving(self) -> Sequence[tuple[Topic, int, Placement]]:
        """The partitions that are to move."""
        if self._moving is None:
            self._moving = [found for found in self.partitions() if found[2].target]
        return self._moving

    def partitions(self) -> Iterator[tuple[Topic, int, Placement]]:
        """Every partition, by topic name and number."""
        for topic in self.topics.values():
            for partition, placement in enumerate(topic.partitions):
                yield topic, partition, placement

    def hosted(self, node: int) -> Iterator[Hosted]:
        """The partitions that `node` holds or is to hold, by topic name and number."""
        return chain.from_iterable(
            homes.by_node.get(node, ()) for homes in self._all_homes().values()
        )

    def hosted_of(self, topic: Topic, node: int) -> Sequence[Hosted]:
        """Those of one topic."""
        return self._all_homes()[topic.name].by_node.get(node, ())

    def _all_homes(self) -> "dict[str, _Homes]":
        if self._homes is None:
            former, self._former_homes = self._former_homes, {}
            self._homes = {
                name: homes
                if (homes := former.get(name)) is not None and homes.topic is topic
                else _Homes.of(topic)
                for name, topic in self.topics.items()
            }
        return self._homes

    def _forget(self, key: str) -> None:
        """A key that is gone."""
        if key.startswith(TOPIC_PREFIX):
            del self.topics[key.removeprefix(TOPIC_PREFIX)]
        elif key.startswith(BROKER_PREFIX):
            del self.brokers[int(key.removeprefix(BROKER_PREFIX))]
        elif key.startswith(RETIRED_PREFIX):
            del self.retired[int(key.removeprefix(RETIRED_PREFIX))]
        elif key.startswith(STICKY_PREFIX):
            del self.sticky[key]
        elif key.startswith(USER_PREFIX):
            del self.users[key.removeprefix(USER_PREFIX)]
        elif key == CLUSTER_KEY:
            self.cluster = None
        elif key == PRODUCERS_KEY:
            self.next_producer, self.producer_floor = 1, 0

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
