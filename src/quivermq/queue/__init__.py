"""What committed entries mean: the deterministic state machine of a partition.

Pure. Knows batches; must never know Raft, the wire, disks, clocks or other partitions.
"""

from quivermq.queue.catalog import CHANGE_BYTES_MAX, KEY_CHARACTERS_MAX, Catalog, Json
from quivermq.queue.names import check_name
from quivermq.queue.offsets import Offsets
from quivermq.queue.partition import (
    Command,
    Partition,
    catalog_command,
    commit_offset_command,
    settings_command,
)
from quivermq.queue.producers import KEEP_MS, WINDOW_BATCHES, Producers, Stored, check_sequence
from quivermq.queue.topic_settings import TopicSettings

__all__ = [
    "CHANGE_BYTES_MAX",
    "KEEP_MS",
    "KEY_CHARACTERS_MAX",
    "WINDOW_BATCHES",
    "Catalog",
    "Command",
    "Json",
    "Offsets",
    "Partition",
    "Producers",
    "Stored",
    "TopicSettings",
    "catalog_command",
    "check_name",
    "check_sequence",
    "commit_offset_command",
    "settings_command",
]
