"""The exact text of messages, Readys and members, for logs and for scenario files.

Nothing decides anything by these texts; the words are those of the scenario format. Ids are
hexadecimal in messages and decimal elsewhere.
"""

import json
from collections.abc import Iterable

from quivermq.raft import (
    APPEND_THREAD,
    APPLY_THREAD,
    NOBODY,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    MembershipChange,
    MemberStatus,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SoftState,
    Status,
    Transition,
)

KIND_NAMES = {
    MessageKind.PROPOSE: "MsgProp",
    MessageKind.APPEND: "MsgApp",
    MessageKind.APPEND_REPLY: "MsgAppResp",
    MessageKind.VOTE: "MsgVote",
    MessageKind.VOTE_REPLY: "MsgVoteResp",
    MessageKind.PREVOTE: "MsgPreVote",
    MessageKind.PREVOTE_REPLY: "MsgPreVoteResp",
    MessageKind.HEARTBEAT: "MsgHeartbeat",
    MessageKind.HEARTBEAT_REPLY: "MsgHeartbeatResp",
    MessageKind.SNAPSHOT: "MsgSnap",
    MessageKind.TRANSFER: "MsgTransferLeader",
    MessageKind.TIMEOUT_NOW: "MsgTimeoutNow",
    MessageKind.READ: "MsgReadIndex",
    MessageKind.READ_REPLY: "MsgReadIndexResp",
    MessageKind.STORE: "MsgStorageAppend",
    MessageKind.STORED: "MsgStorageAppendResp",
    MessageKind.APPLY: "MsgStorageApply",
    MessageKind.APPLIED: "MsgStorageApplyResp",
}

ROLE_NAMES = {
    Role.FOLLOWER: "StateFollower",
    Role.PRE_CANDIDATE: "StatePreCandidate",
    Role.CANDIDATE: "StateCandidate",
    Role.LEADER: "StateLeader",
}

_PLACES = {NOBODY: "None", APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread"}


def ready_text(ready: Ready | None) -> str:
    """Everything that a Ready asks for, one thing a line."""
    if ready is None:
        return "<empty Ready>"
    lines = [f"Ready MustSync={_bool_text(ready.must_sync)}:"]
    if ready.soft_state:
        lines.append(soft_state_text(ready.soft_state))
    if ready.hard_state:
        lines.append(f"HardState {hard_state_text(ready.hard_state)}")
    if ready.read_states:
        states = (f"{state.context.decode()}@{state.index}" for state in ready.read_states)
        lines.append(f"ReadStates {' '.join(states)}")
    if ready.entries:
        lines += ["Entries:", *map(entry_text, ready.entries)]
    if ready.snapshot:
        lines.append(f"Snapshot {snapshot_text(ready.snapshot)}")
    if ready.committed:
        lines += ["CommittedEntries:", *map(entry_text, ready.committed)]
    if ready.messages:
        lines += ["Messages:", *map(message_text, ready.messages)]
    return "\n".join(lines)


def message_text(message: Message, indent: str = "") -> str:
    """One message, on several lines if it carries several entries, a snapshot or responses."""
    text = (
        f"{indent}{_place(message.sender)}->{_place(message.to)} {KIND_NAMES[message.kind]} "
        f"Term:{message.term} Log:{message.log_term}/{message.index}"
    )
    if message.reject:
        text += f" Rejected (Hint: {message.hint})"
    if message.commit:
        text += f" Commit:{message.commit}"
    if message.vote:
        text += f" Vote:{message.vote}"
    if len(message.entries) == 1:
        text += f" Entries:[{entry_text(message.entries[0])}]"
    elif message.entries:
        lines = (f"\n{indent}  {entry_text(entry)}" for entry in message.entries)
        text += f" Entries:[{''.join(lines)}\n{indent}]"
    if message.snapshot:
        text += f"\n{indent}  Snapshot: {snapshot_text(message.snapshot)}"
    if message.responses:
        lines = ("\n" + message_text(response, indent + "  ") for response in message.responses)
        text += f" Responses:[{''.join(lines)}\n{indent}]"
    return text


def entry_text(entry: Entry) -> str:
    where = f"{entry.term}/{entry.index}"
    if entry.kind is EntryKind.NORMAL:
        return f"{where} EntryNormal {_payload_text(entry.data)}"
    change = MembershipChange.decode(entry.data)
    name = "EntryConfChange" if change.transition is Transition.SIMPLE else "EntryConfChangeV2"
    return " ".join([where, name, *map(str, change.changes)])


def hard_state_text(state: HardState) -> str:
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def soft_state_text(state: SoftState) -> str:
    return f"Lead:{state.leader} State:{ROLE_NAMES[state.role]}"


def snapshot_text(snapshot: Snapshot) -> str:
    configuration = snapshot.configuration
    return (
        f"Index:{snapshot.index} Term:{snapshot.term} "
        f"ConfState:Voters:[{_ids(configuration.voters)}] "
        f"VotersOutgoing:[{_ids(configuration.outgoing)}] "
        f"Learners:[{_ids(configuration.learners)}] "
        f"LearnersNext:[{_ids(configuration.learners_next)}] "
        f"AutoLeave:{_bool_text(configuration.auto_leave)}"
    )


def configuration_text(configuration: Configuration) -> str:
    text = f"voters=({_ids(configuration.voters)})"
    if configuration.outgoing:
        text += f"&&({_ids(configuration.outgoing)})"
    if configuration.learners:
        text += f" learners=({_ids(configuration.learners)})"
    if configuration.learners_next:
        text += f" learners_next=({_ids(configuration.learners_next)})"
    return text + (" autoleave" if configuration.auto_leave else "")


def member_text(member: MemberStatus) -> str:
    """One member, as its leader knows it."""
    text = f"{member.pace.value} match={member.match} next={member.next}"
    if member.is_learner:
        text += " learner"
    if member.is_paused:
        text += " paused"
    if member.pending_snapshot:
        text += f" pendingSnap={member.pending_snapshot}"
    if not member.is_active:
        text += " inactive"
    if member.inflight:
        text += f" inflight={member.inflight}" + ("[full]" if member.inflight_full else "")
    return text


def status_text(status: Status) -> str:
    """Role, vote right, term and leader, on one line."""
    right = "Voter" if status.id in status.configuration.all_voters else "Non-Voter"
    role, term = ROLE_NAMES[status.role], status.hard_state.term
    return f"{status.id}: {role} ({right}) Term:{term} Lead:{status.leader}"


def _place(member: int) -> str:
    return _PLACES.get(member) or f"{member:x}"


def _payload_text(data: object) -> str:
    if isinstance(data, bytes | bytearray | memoryview):
        return json.dumps(bytes(data).decode(errors="backslashreplace"), ensure_ascii=False)
    return repr(data)


def _ids(ids: Iterable[int]) -> str:
    return " ".join(map(str, ids))


def _bool_text(value: object) -> str:
    return "true" if value else "false"
