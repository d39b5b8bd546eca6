"""What committed entries mean: the deterministic state machine of a partition.

Pure. Knows batches; must never know Raft, the wire, disks, clocks or other partitions.
"""

from quivermq.queue.partition import Command, Partition, settings_command
from quivermq.queue.producers import KEEP_MS, WINDOW_BATCHES, Producers, Stored, check_sequence
from quivermq.queue.topic_settings import TopicSettings

__all__ = [
    "KEEP_MS",
    "WINDOW_BATCHES",
    "Command",
    "Partition",
    "Producers",
    "Stored",
    "TopicSettings",
    "check_sequence",
    "settings_command",
]
