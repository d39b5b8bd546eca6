"""The log of a partition: segments, checkpoints and the vote, on a small disk interface.

Knows batches and files; must never know Raft's rules, what a command means, or the network.
"""

from quivermq.log.checkpoints import Checkpoint, CheckpointSummary
from quivermq.log.creation import NewLog, name_logs, prepare_log
from quivermq.log.damage import Damage
from quivermq.log.disk import Disk, File, Unreadable
from quivermq.log.edge import Edge
from quivermq.log.layout import SEGMENT, TEMPORARY
from quivermq.log.log import Log
from quivermq.log.real_disk import ReadOnlyDisk, RealDisk, RealFile
from quivermq.log.settings import STORED_LIMITS, LogSettings
from quivermq.log.state import Owner, read_owner
from quivermq.log.system_calls import THIS_SYSTEM, SystemCalls, system_calls
from quivermq.log.verify import (
    Finding,
    Report,
    Severity,
    Verification,
    find_logs,
    log_bytes,
)

__all__ = [
    "SEGMENT",
    "STORED_LIMITS",
    "TEMPORARY",
    "THIS_SYSTEM",
    "Checkpoint",
    "CheckpointSummary",
    "Damage",
    "Disk",
    "Edge",
    "File",
    "Finding",
    "Log",
    "LogSettings",
    "NewLog",
    "Owner",
    "ReadOnlyDisk",
    "RealDisk",
    "RealFile",
    "Report",
    "Severity",
    "SystemCalls",
    "Unreadable",
    "Verification",
    "find_logs",
    "log_bytes",
    "name_logs",
    "prepare_log",
    "read_owner",
    "system_calls",
]
