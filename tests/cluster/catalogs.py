"""Catalogs for tests: brokers, and topics made by the edits that users cause."""

from collections import Counter
from collections.abc import Iterable

from quivermq.cluster import (
    OWN_LEVELS,
    BrokerRecord,
    Edit,
    Move,
    Placement,
    View,
    create_topic,
    node_of,
    set_targets,
)
from quivermq.cluster.edits import finish_moves
from quivermq.cluster.records import State


def broker(
    node: int, epoch: int = 0, state: State = "serving", zone: str = "", machine: str = ""
) -> BrokerRecord:
    host = machine or f"host{node}"
    return BrokerRecord(
        id=node,
        directory_id=f"{node:08x}",
        boot=1,
        life="01",
        member=epoch << 16 | node,
        address=f"{host}:7600",
        peer_address=f"{host}:7700",
        http_address="",
        version="1",
        state=state,
        level_min=OWN_LEVELS.low,
        level_max=OWN_LEVELS.high,
        zone=zone,
    )


def view_of(brokers: Iterable[BrokerRecord]) -> View:
    return View(1, {one.key: one.to_json() for one in brokers})


def edited(view: View, edit: Edit | None) -> View:
    if edit is None:
        return view
    values = {key: value for key, value in view.values.items() if key not in edit.delete}
    return view.updated(view.version + 1, values | edit.put)


def with_topic(view: View, name: str, partitions: int = 1, replication: int = 1) -> View:
    topic_id = f"{len(view.topics):024x}"
    return edited(
        view,
        create_topic(view, name, topic_id=topic_id, partitions=partitions, replication=replication),
    )


def only_copy(holder: BrokerRecord, name: str = "orders") -> Edit:
    """A broker comes, with a topic that it alone holds."""
    view = view_of([broker(holder.id)])
    alone = create_topic(view, name, topic_id=f"{holder.id:024x}", replication=1)
    assert alone is not None
    return Edit({holder.key: holder.to_json()}) | alone


def moved(view: View, moves: list[Move]) -> View:
    """The catalog after a plan has been carried out."""
    view = edited(view, set_targets(view, moves))
    return edited(view, finish_moves(view, moves))


def replicas_by_node(view: View, nodes: Iterable[int]) -> dict[int, int]:
    found = Counter(node_of(m) for _, _, placement in view.partitions() for m in placement.planned)
    return {node: found[node] for node in nodes}


def leaders_by_node(view: View, nodes: Iterable[int]) -> dict[int, int]:
    found = Counter(node_of(placement.planned[0]) for _, _, placement in view.partitions())
    return {node: found[node] for node in nodes}


def unevenness(counts: dict[int, int]) -> int:
    return max(counts.values()) - min(counts.values())


def check_sound(placement: Placement) -> None:
    nodes = [node_of(member) for member in placement.planned]
    assert nodes
    assert len(set(nodes)) == len(nodes), "two replicas of one partition on one broker"
