"""The deterministic state machine of a partition: producers, groups and leases, catalog.

Pure. Knows batches; must never know Raft, the wire, disks, clocks or other partitions.
"""

from quivermq.intervals import Interval
from quivermq.queue.catalog import CHANGE_BYTES_MAX, KEY_CHARACTERS_MAX, Catalog, Json
from quivermq.queue.dead_letters import REDRIVE_GROUP
from quivermq.queue.delayed import Delayed
from quivermq.queue.failure_reasons import FailureReason
from quivermq.queue.group import TO_GROUP, DyingMessages
from quivermq.queue.group_stats import GroupStats
from quivermq.queue.groups import Groups
from quivermq.queue.lease_manager import (
    VISIBILITY_MS_MAX,
    GrantedLease,
    InFlight,
    LeaseManager,
    LeaseRequest,
)
from quivermq.queue.partition import (
    Command,
    Partition,
    PartitionSnapshot,
    catalog_command,
    check_restored,
    groups_command,
    restored_groups_command,
    restored_producers_command,
    settings_command,
)
from quivermq.queue.pieces import Piece, messages_in
from quivermq.queue.producers import (
    PRODUCERS_MAX,
    PRODUCERS_MIN,
    WINDOW_BATCHES,
    WINDOW_BATCHES_MIN,
    ProducerTable,
    RememberedBatch,
    check_sequence,
)
from quivermq.queue.topic_settings import TopicSettings
from quivermq.queue.working_copy import state_is_full

__all__ = [
    "CHANGE_BYTES_MAX",
    "KEY_CHARACTERS_MAX",
    "PRODUCERS_MAX",
    "PRODUCERS_MIN",
    "REDRIVE_GROUP",
    "TO_GROUP",
    "VISIBILITY_MS_MAX",
    "WINDOW_BATCHES",
    "WINDOW_BATCHES_MIN",
    "Catalog",
    "Command",
    "Delayed",
    "DyingMessages",
    "FailureReason",
    "GrantedLease",
    "GroupStats",
    "Groups",
    "InFlight",
    "Interval",
    "Json",
    "LeaseManager",
    "LeaseRequest",
    "Partition",
    "PartitionSnapshot",
    "Piece",
    "ProducerTable",
    "RememberedBatch",
    "TopicSettings",
    "catalog_command",
    "check_restored",
    "check_sequence",
    "groups_command",
    "messages_in",
    "restored_groups_command",
    "restored_producers_command",
    "settings_command",
    "state_is_full",
]
