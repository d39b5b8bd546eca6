"""A replica of a partition: consensus, state machine and log view composed without I/O.

Pure: the one package where a Raft entry becomes a command of the queue. Knows raft, queue and the
log's values; must never know asyncio, sockets, clocks or which transport carries its mail.
"""

from quivermq.replica.effects import (
    Answer,
    Changed,
    Chunk,
    ChunkRequest,
    Consensus,
    Effect,
    EntriesReply,
    EntriesRequest,
    Mail,
    Offer,
    Persist,
    Produced,
    ReadReady,
    Repair,
    Result,
    Rouse,
    SaveCheckpoint,
    Send,
    Sleep,
    Token,
    TransferEnded,
    Wake,
)
from quivermq.replica.member import Member
from quivermq.replica.replica import Replica
from quivermq.replica.settings import ReplicaSettings
from quivermq.replica.state import ReplicaState
from quivermq.replica.storage import (
    DiskWork,
    Drop,
    blank_log,
    carry_out,
    carry_out_all,
    found_log,
    founding_checkpoint,
    newest_state,
)

__all__ = [
    "Answer",
    "Changed",
    "Chunk",
    "ChunkRequest",
    "Consensus",
    "DiskWork",
    "Drop",
    "Effect",
    "EntriesReply",
    "EntriesRequest",
    "Mail",
    "Member",
    "Offer",
    "Persist",
    "Produced",
    "ReadReady",
    "Repair",
    "Replica",
    "ReplicaSettings",
    "ReplicaState",
    "Result",
    "Rouse",
    "SaveCheckpoint",
    "Send",
    "Sleep",
    "Token",
    "TransferEnded",
    "Wake",
    "blank_log",
    "carry_out",
    "carry_out_all",
    "found_log",
    "founding_checkpoint",
    "newest_state",
]
