"""Raft, pure: consensus on one log, as a state machine that does no I/O and reads no clock.

Start at `RawNode`. The theory of operation is in `docs/raft.md`.
"""

from quivermq.raft.membership import (
    Act,
    Change,
    MembershipChange,
    MembershipRefused,
    Transition,
    parse_changes,
)
from quivermq.raft.membership import check as check_configuration
from quivermq.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    NOBODY,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    ReadState,
    Ready,
    Role,
    Snapshot,
    SoftState,
    entry_bytes,
    fitting,
)
from quivermq.raft.node import PeerNonsense, RawNode, UnknownPeer
from quivermq.raft.options import NO_LIMIT, Options
from quivermq.raft.progress import Pace
from quivermq.raft.replica import Dice
from quivermq.raft.status import MemberStatus, Status
from quivermq.raft.storage import Storage

__all__ = [
    "APPEND_THREAD",
    "APPLY_THREAD",
    "NOBODY",
    "NO_LIMIT",
    "Act",
    "Change",
    "Configuration",
    "Dice",
    "Entry",
    "EntryKind",
    "HardState",
    "MemberStatus",
    "MembershipChange",
    "MembershipRefused",
    "Message",
    "MessageKind",
    "Options",
    "Pace",
    "PeerNonsense",
    "RawNode",
    "ReadState",
    "Ready",
    "Role",
    "Snapshot",
    "SoftState",
    "Status",
    "Storage",
    "Transition",
    "UnknownPeer",
    "check_configuration",
    "entry_bytes",
    "fitting",
    "parse_changes",
]
