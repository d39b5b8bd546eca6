"""Builds changes of the catalog, each from a view and for exactly its version.

An `Edit` is proposed with the version of the view that it was built from; if the catalog has moved
on, it is built again. Everything is checked here, so applying a committed edit cannot fail.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from quivermq.cluster.catalog_view import View
from quivermq.cluster.features import OWN_LEVELS, Level, Levels
from quivermq.cluster.identity import judge, judge_levels
from quivermq.cluster.placement import check_replication, load_of, place
from quivermq.cluster.plan import Move, grow, rebalance
from quivermq.cluster.records import (
    CLUSTER_KEY,
    EPOCH_MAX,
    LEAVING,
    NODE_MAX,
    PARTITIONS_LIMIT,
    PRODUCERS_KEY,
    REBALANCE_KEY,
    RETIRED_PREFIX,
    BrokerRecord,
    ClusterRecord,
    Placement,
    State,
    Topic,
    epoch_of,
    member_of,
    node_of,
)
from quivermq.cluster.sticky import sticky_key
from quivermq.errors import Corrupt, InvalidRequest, TopicExists
from quivermq.names import check_topic_name
from quivermq.queue import TopicSettings
from quivermq.topic_settings import LEADER_ONLY

REPLICATION_DEFAULT = 3
_AS_IT_IS: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Edit:
    """Keys to set, each with its JSON, and keys to remove."""

    put: dict[str, Any] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)

    def __or__(self, other: "Edit") -> "Edit":
        """Both at once; `other` wins where they name the same key."""
        kept = [key for key in self.delete if key not in other.put]
        put = {key: value for key, value in self.put.items() if key not in other.delete}
        return Edit(put | other.put, [*kept, *other.delete])


def found_cluster(cluster_id: str, created_ms: int, brokers: Iterable[BrokerRecord]) -> Edit:
    """The first edit of all."""
    put: dict[str, Any] = {CLUSTER_KEY: ClusterRecord(cluster_id, created_ms).to_json()}
    return Edit(put | {broker.key: broker.to_json() for broker in brokers})


def grant_producers(view: View, count: int = 1) -> tuple[Edit, int]:
    """Reserve producer ids; returns the first of them too."""
    first = view.next_producer
    known = view.values.get(PRODUCERS_KEY, {})
    return Edit({PRODUCERS_KEY: {**known, "next": first + count}}), first


def create_topic(
    view: View,
    name: str,
    *,
    topic_id: str,
    partitions: int = 0,
    replication: int = 0,
    settings: TopicSettings | None = None,
    leader_settings: Mapping[str, Any] = _AS_IT_IS,
    default_partitions: int = 1,
    partitions_max: int = PARTITIONS_LIMIT,
    dice: int | None = None,
    internal: bool = False,
) -> Edit | None:
    """Create a topic; None if it exists with these settings. 0 stands for the default, and matches
    any number."""
    check_topic_name(name, internal=internal)
    settings = settings or TopicSettings()
    _check_settings(name, settings)
    _check_leader_settings(view, leader_settings)
    if name in view.topics:
        wanted = asdict(settings) | dict(leader_settings)
        _check_same(view.topics[name], partitions, replication, wanted)
        return None
    _check_case(view, name)
    partitions = partitions or default_partitions
    _check_partitions(partitions, partitions_max)
    replication = replication or min(REPLICATION_DEFAULT, max(1, len(view.serving)))
    check_replication(replication, len(view.serving))
    placements = place(
        view.serving,
        load_of(view),
        partitions=partitions,
        replication=replication,
        dice=view.version if dice is None else dice,
    )
    topic = Topic(
        name, topic_id, replication, asdict(settings), tuple(placements), **leader_settings
    )
    return _put(topic)


def _check_case(view: View, name: str) -> None:
    """Refuse a name that differs from another one in case only: both have a folder of their name
    on every broker, and some file systems take the two for one."""
    folded = name.lower()
    for other in view.topics:
        if other.lower() == folded:
            raise InvalidRequest(
                f"topic {name!r} differs from the existing {other!r} in upper and lower case only: "
                "use that one, or choose another name"
            )


def alter_topic(
    view: View,
    name: str,
    *,
    partitions: int = 0,
    replication: int = 0,
    settings: TopicSettings | None = None,
    leader_settings: Mapping[str, Any] = _AS_IT_IS,
    partitions_max: int = PARTITIONS_LIMIT,
    dice: int | None = None,
) -> Edit | None:
    """Change the number of partitions, that of replicas (in force with the next rebalance), and
    settings; 0 and None leave them as they are. None if nothing changes."""
    check_topic_name(name)
    was = topic = view.topic(name)
    if settings is not None:
        _check_settings(name, settings)
        # Settings that only other builds know stay.
        topic = replace(topic, settings=topic.settings | asdict(settings))
    _check_leader_settings(view, leader_settings)
    topic = replace(topic, **leader_settings)
    if replication:
        check_replication(replication, len(view.serving))
        topic = replace(topic, replication=replication)
    count = len(topic.partitions)
    if partitions and partitions != count:
        _check_partitions(partitions, partitions_max)
        if partitions < count:
            raise InvalidRequest(
                f"topic {name} has {count} partitions, and they cannot become fewer: create "
                "another topic"
            )
        added = grow(view, topic, partitions, dice)
        topic = replace(topic, partitions=(*topic.partitions, *added))
    return None if topic == was else _put(topic)


def delete_topic(view: View, name: str) -> Edit:
    """Delete the topic and its sticky groups."""
    check_topic_name(name)
    topic = view.topic(name)
    groups = sticky_key(topic.id, "")
    return Edit(delete=[topic.key, *(key for key in view.sticky if key.startswith(groups))])


def register_broker(
    view: View,
    *,
    id: int,  # noqa: A002 - named as in the record and on the wire
    directory_id: str,
    boot: int,
    lives: Sequence[str] = (),
    address: str,
    peer_address: str,
    http_address: str = "",
    version: str = "",
    joining: bool = False,
    cluster_id: str = "",
    levels: Levels = OWN_LEVELS,
    zone: str = "",
) -> Edit | None:
    """Register a broker that starts; None if the catalog knows all this. Raises `Forbidden` if it
    may not join, `UnsupportedFormat` if its release does not know the cluster's feature level."""
    judge(view, id, directory_id, lives, cluster_id, joining=joining)
    judge_levels(view, id, levels, version)
    if not 1 <= id <= NODE_MAX:
        raise InvalidRequest(f"the number of a broker is from 1 to {NODE_MAX}, not {id}")
    known = view.brokers.get(id)
    broker = BrokerRecord(
        id=id,
        directory_id=directory_id,
        boot=boot,
        member=known.member if known is not None else _fresh_member(view, id),
        address=address,
        peer_address=peer_address,
        http_address=http_address,
        version=version,
        state=known.state if known is not None else "serving",
        life=lives[-1] if lives else "",
        level_min=levels.low,
        level_max=levels.high,
        zone=zone,
    )
    # A record that cannot be read back must not be written: every broker would refuse the catalog.
    try:
        BrokerRecord.from_json(broker.to_json())
    except Corrupt as error:
        raise InvalidRequest(f"broker {id} cannot be as it says: {error}") from error
    return None if broker == known else Edit({broker.key: broker.to_json()})


def replace_broker(view: View, node: int) -> Edit:
    """Give a broker that lost its disk another member number, for its next empty directory."""
    broker = view.broker(node)
    member = _fresh_member(view, node)
    return Edit(
        {broker.key: replace(broker, directory_id="", life="", boot=0, member=member).to_json()}
    )


def set_broker_state(view: View, node: int, state: State) -> Edit | None:
    """`leaving`: the broker gets no more replicas, and its own move away; `serving` undoes it."""
    broker = view.broker(node)
    if state == LEAVING and [other.id for other in view.serving] == [node]:
        raise InvalidRequest(
            f"broker {node} is the last one that serves: add another before it can leave"
        )
    return (
        None
        if broker.state == state
        else Edit({broker.key: replace(broker, state=state).to_json()})
    )


def remove_broker(view: View, node: int, *, force: bool = False) -> Edit:
    """Remove a broker; its number stays taken. Refused while it holds replicas, unless by force:
    then they count as lost until a rebalance makes them anew elsewhere."""
    broker = view.broker(node)
    held = sum(1 for _ in view.hosted(node))
    if held and not force:
        raise InvalidRequest(
            f"broker {node} holds replicas of {held} partitions: wait until they have moved, or "
            "use force if they are lost"
        )
    return Edit({f"{RETIRED_PREFIX}{node}": {"member": broker.member}}, [broker.key])


def set_targets(view: View, moves: Iterable[Move]) -> Edit | None:
    """Start these moves. One that changes only the order, and so the preferred leader, is done at
    once. The founders stay until the members have changed: the partition may not have started."""
    return _edit_placements(view, ((move, _placement_towards(view, move)) for move in moves))


def start_rebalance(view: View, *, leaders_only: bool = False) -> Edit:
    """Move replicas to where they should be, and then leaders; or only leaders."""
    moves = None if leaders_only else set_targets(view, rebalance(view))
    return (moves or Edit()) | Edit({REBALANCE_KEY: {"leaders": True}})


def is_rebalancing(view: View) -> bool:
    """Whether leaders are still to be moved."""
    return REBALANCE_KEY in view.values


def end_rebalance(view: View) -> Edit | None:
    """End the rebalance: leaders were moved as far as possible."""
    return Edit(delete=[REBALANCE_KEY]) if is_rebalancing(view) else None


def finish_moves(view: View, moves: Iterable[Move]) -> Edit | None:
    """Note that the members of these partitions have reached their targets. Partitions that were
    deleted or have another target by then are left as they are."""
    done = [
        move
        for move in moves
        if move.topic in view.topics
        and move.partition < len(view.topics[move.topic].partitions)
        and view.placement(move.topic, move.partition).target == move.replicas != ()
    ]
    return _edit_placements(view, ((move, _placement_at_target(view, move)) for move in done))


def _placement_at_target(view: View, move: Move) -> Placement:
    placement = view.placement(move.topic, move.partition)
    done = replace(placement, replicas=move.replicas, founders=(), target=(), leaving=())
    return _counted(view, placement, done)


def _placement_towards(view: View, move: Move) -> Placement:
    placement = view.placement(move.topic, move.partition)
    nodes = {node_of(member) for member in move.replicas}
    if not move.replicas or len(nodes) < len(move.replicas):
        raise InvalidRequest(
            f"partition {move.partition} of {move.topic} needs replicas on different brokers, "
            f"not {list(move.replicas)}"
        )
    if not placement.target and set(placement.replicas) == set(move.replicas):
        return replace(placement, replicas=move.replicas)
    # The replicas may have reached the old target before the catalog notes it.
    left = {node_of(member): member for member in sorted({*placement.leaving, *placement.target})}
    for member in (*placement.replicas, *move.replicas):
        left.pop(node_of(member), None)
    leaving = tuple(left.values())
    aimed = replace(placement, target=move.replicas, leaving=leaving)
    return _counted(view, placement, aimed)


def _counted(view: View, before: Placement, after: Placement) -> Placement:
    """Count the move if a log is removed with it, so that its number is not given again."""
    # An earlier release would take a member of a later stay for one whose disk was lost.
    if view.cluster is None or view.cluster.level < Level.STAYS:
        return after
    return replace(after, moves=after.moves + 1) if before.named - after.named else after


def _edit_placements(view: View, changes: Iterable[tuple[Move, Placement]]) -> Edit | None:
    by_topic: dict[str, list[Placement]] = {}
    for move, placement in changes:
        if placement != view.placement(move.topic, move.partition):
            placements = by_topic.setdefault(move.topic, list(view.topic(move.topic).partitions))
            placements[move.partition] = placement
    edit = Edit()
    for name, placements in by_topic.items():
        edit |= _put(replace(view.topic(name), partitions=tuple(placements)))
    return edit if by_topic else None


def _put(topic: Topic) -> Edit:
    value = topic.to_json()
    Topic.from_json(value)
    return Edit({topic.key: value})


def _fresh_member(view: View, node: int) -> int:
    """A member number that the node never had."""
    known = view.brokers.get(node)
    last = max(known.member if known is not None else -1, view.retired.get(node, -1))
    epoch = 0 if last < 0 else epoch_of(last) + 1
    if epoch > EPOCH_MAX:
        raise InvalidRequest(f"broker {node} was replaced too often: use another number")
    return member_of(node, epoch)


def _check_partitions(partitions: int, partitions_max: int) -> None:
    most = min(partitions_max, PARTITIONS_LIMIT)
    if not 1 <= partitions <= most:
        raise InvalidRequest(f"a topic has 1 to {most} partitions, not {partitions}")


def _check_settings(name: str, settings: TopicSettings) -> None:
    settings.check()
    if settings.dead_letter == name:
        raise InvalidRequest(
            f"topic {name!r} cannot be its own dead-letter topic: its dead letters would be "
            "delivered again for ever"
        )


def _check_leader_settings(view: View, wanted: Mapping[str, int]) -> None:
    level = view.cluster.level if view.cluster else 0
    for setting in LEADER_ONLY:
        if setting.name not in wanted:
            continue
        value = wanted[setting.name]
        if value and not setting.least <= value <= setting.most:
            raise InvalidRequest(
                f"{setting.name} must be from {setting.least:,} to {setting.most:,}, or 0 for no "
                f"limit, not {value:,}"
            )
        if level < setting.level:
            raise InvalidRequest(
                f"{setting.name} can be set from feature level {setting.level} on, and the cluster "
                f"is at {level}: run `quiver cluster upgrade` once all brokers run release "
                f"{Level(setting.level).release} or later"
            )


def _check_same(
    topic: Topic, partitions: int, replication: int, settings: Mapping[str, Any]
) -> None:
    differences = []
    if partitions not in {0, len(topic.partitions)}:
        differences.append(f"{len(topic.partitions)} partitions, not {partitions}")
    if replication not in {0, topic.replication}:
        differences.append(f"replication {topic.replication}, not {replication}")
    found = asdict(topic.topic_settings) | {
        setting.name: getattr(topic, setting.name) for setting in LEADER_ONLY
    }
    differences += [
        f"{name} {found[name]!r}, not {wanted!r}"
        for name, wanted in settings.items()
        if found[name] != wanted
    ]
    if differences:
        raise TopicExists(f"topic {topic.name} exists with {'; '.join(differences)}")
