"""The cluster as the catalog knows it: records, where partitions go, plans and edits.

Pure. Knows names, numbers and topic settings; must never know Raft, the wire, disks or clocks. The
metadata group keeps the catalog; whoever leads it makes plans of it, and edits of the plans.
"""

from quivermq.cluster.catalog_view import Hosted, View
from quivermq.cluster.edits import (
    REPLICATION_DEFAULT,
    Edit,
    alter_topic,
    create_topic,
    delete_topic,
    finish_move,
    finish_moves,
    found_cluster,
    grant_producers,
    register_broker,
    remove_broker,
    replace_broker,
    set_broker_state,
    set_targets,
)
from quivermq.cluster.identity import judge
from quivermq.cluster.names import check_group_name, check_topic_name
from quivermq.cluster.placement import Load, load_of, place
from quivermq.cluster.plan import (
    METADATA_VOTERS_MAX,
    LeaderMove,
    Move,
    drain,
    grow,
    metadata_voters,
    rebalance,
    rebalance_leaders,
    replace,
    steps,
)
from quivermq.cluster.records import (
    LEAVING,
    METADATA_GROUP,
    METADATA_TOPIC,
    SERVING,
    Broker,
    Cluster,
    Placement,
    Topic,
    epoch_of,
    group_id,
    member_of,
    node_of,
)

__all__ = [
    "LEAVING",
    "METADATA_GROUP",
    "METADATA_TOPIC",
    "METADATA_VOTERS_MAX",
    "REPLICATION_DEFAULT",
    "SERVING",
    "Broker",
    "Cluster",
    "Edit",
    "Hosted",
    "LeaderMove",
    "Load",
    "Move",
    "Placement",
    "Topic",
    "View",
    "alter_topic",
    "check_group_name",
    "check_topic_name",
    "create_topic",
    "delete_topic",
    "drain",
    "epoch_of",
    "finish_move",
    "finish_moves",
    "found_cluster",
    "grant_producers",
    "group_id",
    "grow",
    "judge",
    "load_of",
    "member_of",
    "metadata_voters",
    "node_of",
    "place",
    "rebalance",
    "rebalance_leaders",
    "register_broker",
    "remove_broker",
    "replace",
    "replace_broker",
    "set_broker_state",
    "set_targets",
    "steps",
]
