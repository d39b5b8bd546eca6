"""Encodes and decodes the messages that replicas send each other between brokers.

Entries that are frames leave as raw frames beside the peer message, in their order; the no-ops and
membership changes between them, which have no bytes of their own, as parts of it. The decoder
trusts nothing: what is not well-formed is `InvalidRequest`.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final, NoReturn

from quivermq.batches import COUNTER_MAX, KIB, Frame, FrameKind, Index
from quivermq.errors import InvalidRequest
from quivermq.raft import (
    Configuration,
    Entry,
    EntryKind,
    MembershipChange,
    Message,
    MessageKind,
    Snapshot,
    check_configuration,
)
from quivermq.replica import (
    Chunk,
    ChunkRequest,
    Consensus,
    EntriesReply,
    EntriesRequest,
    Mail,
    Offer,
    Rouse,
    Sleep,
    TransferEnded,
)
from quivermq.wire import proto

PARTITION_ID_BYTES: Final = 16
MEMBERS_MAX: Final = 4_096
MEMBERSHIP_BYTES_MAX: Final = 64 * KIB
PLAIN_ENTRIES_MAX: Final = 65_536
"""More than a leader has to send: each stands for an election, and of those that are on disk 12,000
fill a message."""

# Proposals, leadership transfers and storage work stay at home; snapshots leave as offers.
TRAVELLING: Final = {
    int(kind): kind
    for kind in (
        MessageKind.APPEND,
        MessageKind.APPEND_REPLY,
        MessageKind.VOTE,
        MessageKind.VOTE_REPLY,
        MessageKind.PREVOTE,
        MessageKind.PREVOTE_REPLY,
        MessageKind.HEARTBEAT,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.TIMEOUT_NOW,
        MessageKind.READ,
        MessageKind.READ_REPLY,
    )
}

# To the core term 0 stands for "of no term", which these never are.
_OF_A_TERM: Final = frozenset(
    {
        MessageKind.APPEND,
        MessageKind.HEARTBEAT,
        MessageKind.SNAPSHOT,
        MessageKind.VOTE,
        MessageKind.PREVOTE,
        MessageKind.TIMEOUT_NOW,
    }
)

SIMPLE: Final[dict[str, type[Any]]] = {
    "chunk_request": ChunkRequest,
    "chunk": Chunk,
    "transfer_ended": TransferEnded,
    "entries_request": EntriesRequest,
    "sleep": Sleep,
    "rouse": Rouse,
}
"""Mail whose fields travel one by one under their own names."""

_NAMES: Final = {name: [field.name for field in fields(kind)] for name, kind in SIMPLE.items()}
_SIMPLE_BY_TYPE: Final = {
    kind: (name, getattr(proto, kind.__name__)) for name, kind in SIMPLE.items()
}
_ENTRY_FRAMES: Final = frozenset({int(FrameKind.DATA), int(FrameKind.COMMAND)})
_MARK: Final = int(FrameKind.MARK)
_NORMAL: Final = EntryKind.NORMAL


class UnknownMail(InvalidRequest):
    """Mail of a kind that this build lacks. It can be left unread: any mail may be lost."""


def encode_mail(
    partition: bytes, sender: int, to: int, mail: Mail
) -> tuple[proto.PeerMessage, list[Frame]]:
    """The peer message that carries `mail`, and the frames to send beside it.

    `InvalidRequest` for messages of the core that never travel.
    """
    frames: list[Frame] = []
    if isinstance(mail, Consensus):
        if mail.message.kind not in TRAVELLING:
            _refuse(f"{mail.message.kind.name} is nothing that members say to each other")
        message, frames = _encode_message(mail.message)
        peer_message = proto.PeerMessage(
            partition=partition, sender=sender, to=to, consensus=message
        )
    elif isinstance(mail, EntriesReply):
        frames = list(mail.frames)
        reply = proto.EntriesReply(first=mail.first, first_kept=mail.first_kept)
        peer_message = proto.PeerMessage(
            partition=partition, sender=sender, to=to, entries_reply=reply
        )
    elif isinstance(mail, Offer):
        peer_message = proto.PeerMessage(
            partition=partition, sender=sender, to=to, offer=_encode_offer(mail)
        )
    else:
        name, form = _SIMPLE_BY_TYPE[type(mail)]
        body = form(**{field: getattr(mail, field) for field in _NAMES[name]})
        peer_message = proto.PeerMessage(partition=partition, sender=sender, to=to, **{name: body})
    peer_message.frames = len(frames)
    return peer_message, frames


def decode_mail(peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> Mail:
    """The mail in a peer message with its `frames`; `InvalidRequest` if it is not well-formed."""
    if len(peer_message.partition) != PARTITION_ID_BYTES:
        _refuse(f"a partition id has {PARTITION_ID_BYTES} bytes, not {len(peer_message.partition)}")
    if not 0 < peer_message.sender <= COUNTER_MAX or not 0 < peer_message.to <= COUNTER_MAX:
        _refuse(f"members {peer_message.sender} and {peer_message.to} cannot write to each other")
    if peer_message.frames != len(frames):
        _refuse(f"{peer_message.frames} frames announced, {len(frames)} there")
    name = peer_message.WhichOneof("mail")
    if name is None:
        raise UnknownMail("a message with mail that this broker does not know")
    if name in SIMPLE:
        return _decode_simple(name, peer_message, frames)
    return _DECODERS[name](peer_message, frames)


def _encode_message(message: Message) -> tuple[proto.Consensus, list[Frame]]:
    known_term, known_index = message.known_commit
    sent = proto.Consensus(
        kind=message.kind,
        term=message.term,
        log_term=message.log_term,
        index=message.index,
        commit=message.commit,
        reject=message.reject,
        hint=message.hint,
        vote=message.vote,
        round=message.round,
        context=message.context,
        by_transfer=message.by_transfer,
        known_commit_index=known_index,
        known_commit_term=known_term,
    )
    frames: list[Frame] = []
    for entry in message.entries:
        data = entry.data
        if isinstance(data, Frame):
            frames.append(data)
        else:
            sent.plain.add(
                term=entry.term,
                index=entry.index,
                membership=entry.kind is EntryKind.MEMBERSHIP,
                data=data,
            )
    return sent, frames


def _encode_offer(offer: Offer) -> proto.Offer:
    message, snapshot = offer.message, offer.message.snapshot
    if snapshot is None:
        _refuse("an offer without a snapshot")
    voters, outgoing, learners, learners_next, auto_leave = snapshot.configuration
    return proto.Offer(
        message=_encode_message(message)[0],
        snapshot_index=snapshot.index,
        snapshot_term=snapshot.term,
        configuration=proto.Configuration(
            voters=voters,
            outgoing=outgoing,
            learners=learners,
            learners_next=learners_next,
            auto_leave=auto_leave,
        ),
        size=offer.size,
        checksum=offer.checksum,
    )


def _decode_simple(name: str, peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> Mail:
    if frames:
        _refuse(f"{name} comes without frames, not with {len(frames)}")
    body = getattr(peer_message, name)
    values = [getattr(body, field) for field in _NAMES[name]]
    _check_numbers(*[value for value in values if isinstance(value, int)])
    mail: Mail = SIMPLE[name](*values)
    return mail


def _decode_consensus(peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> Consensus:
    body = peer_message.consensus
    kind = TRAVELLING.get(body.kind)
    if kind is None and body.kind > max(MessageKind):
        raise UnknownMail(f"a message of kind {body.kind}, which this broker lacks")
    if kind is None:
        _refuse(f"message kind {body.kind} is nothing that members say to each other")
    if kind is MessageKind.APPEND:
        entries = _decode_entries(body, frames)
    elif frames or body.plain:
        _refuse(f"{kind.name} has no entries")
    else:
        entries = ()
    return Consensus(_decode_message(kind, peer_message, body, entries))


def _decode_message(
    kind: MessageKind,
    peer_message: proto.PeerMessage,
    body: proto.Consensus,
    entries: Sequence[Entry] = (),
    snapshot: Snapshot | None = None,
) -> Message:
    term, log_term, index, commit = body.term, body.log_term, body.index, body.commit
    hint, vote, round_ = body.hint, body.vote, body.round
    known_commit = (body.known_commit_term, body.known_commit_index)
    _check_numbers(term, log_term, index, commit, hint, vote, round_, *known_commit)
    if not term and kind in _OF_A_TERM:
        _refuse(f"{kind.name} of no term")
    return Message(
        kind,
        peer_message.to,
        peer_message.sender,
        term,
        log_term,
        index,
        entries,
        commit,
        body.reject,
        hint,
        vote,
        snapshot,
        (),
        round_,
        body.context,
        body.by_transfer,
        known_commit,
    )


def _decode_entries(body: proto.Consensus, frames: Sequence[Frame]) -> Sequence[Entry]:
    """Frames and plain entries merged, each right behind the one before it."""
    entries = [Entry(frame.header.term, frame.header.index, _NORMAL, frame) for frame in frames]
    if len(body.plain) > PLAIN_ENTRIES_MAX:
        _refuse(f"{len(body.plain):,} entries without a frame")
    if body.plain:
        entries += map(_decode_plain, body.plain)
        entries.sort(key=lambda entry: entry.index)
    index, term = body.index, max(body.log_term, 1)
    for entry in entries:
        index += 1
        if entry.index != index or entry.term < term:
            _refuse(f"entry {entry.index} of term {entry.term} follows {index - 1} of {term}")
        term = entry.term
    if term > body.term and entries:
        _refuse(f"entries of term {term} from a leader of term {body.term}")
    for frame in frames:
        if frame.header.kind not in _ENTRY_FRAMES:
            _refuse(f"{frame} is not sent as a frame")
    _check_numbers(index)
    return entries


def _decode_plain(plain: proto.PlainEntry) -> Entry:
    if plain.membership:
        _check_change(plain.data)
        return Entry(plain.term, plain.index, EntryKind.MEMBERSHIP, plain.data)
    if plain.data:
        _refuse(f"entry {plain.index} is a no-op, yet holds {len(plain.data)} bytes")
    return Entry(plain.term, plain.index)


def _check_change(data: bytes) -> None:
    """Refuse a change that cannot be made: it would stop every member once it is committed."""
    if len(data) > MEMBERSHIP_BYTES_MAX:
        _refuse(f"a membership change of {len(data):,} bytes")
    for change in MembershipChange.decode(data).changes:
        if not 0 <= change.member <= COUNTER_MAX:
            _refuse(f"{change.member} cannot be a member")


def _decode_offer(peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> Offer:
    body = peer_message.offer
    message = body.message
    if message.kind != MessageKind.SNAPSHOT or message.plain or frames:
        _refuse("an offer carries the core's snapshot message and no entries")
    _check_numbers(body.snapshot_index + 1, body.snapshot_term, body.size)
    if body.snapshot_term > message.term:
        _refuse(f"a snapshot of term {body.snapshot_term} from a leader of term {message.term}")
    configuration = _decode_configuration(body.configuration)
    snapshot = Snapshot(body.snapshot_index, body.snapshot_term, configuration)
    return Offer(
        _decode_message(MessageKind.SNAPSHOT, peer_message, message, snapshot=snapshot),
        body.size,
        body.checksum,
    )


def _decode_configuration(body: proto.Configuration) -> Configuration:
    parts = (body.voters, body.outgoing, body.learners, body.learners_next)
    if any(len(part) > MEMBERS_MAX for part in parts):
        _refuse(f"a configuration of more than {MEMBERS_MAX:,} members")
    voters, outgoing, learners, learners_next = map(tuple, parts)
    configuration = Configuration(voters, outgoing, learners, learners_next, body.auto_leave)
    check_configuration(configuration)
    members = configuration.members
    if not configuration.voters or not members[0]:
        _refuse(f"no member can be in {configuration}")
    _check_numbers(*members)
    return configuration


def _decode_entries_reply(peer_message: proto.PeerMessage, frames: Sequence[Frame]) -> EntriesReply:
    body = peer_message.entries_reply
    _check_numbers(body.first, body.first_kept)
    index, term = body.first, 0
    for frame in frames:
        header = frame.header
        if header.index != index or header.term < term or header.kind == _MARK:
            _refuse(f"{frame} stands where entry {index} belongs")
        index, term = index + 1, header.term
    return EntriesReply(Index(body.first), tuple(frames), Index(body.first_kept))


_DECODERS: Final[dict[str, Callable[[proto.PeerMessage, Sequence[Frame]], Mail]]] = {
    "consensus": _decode_consensus,
    "offer": _decode_offer,
    "entries_reply": _decode_entries_reply,
}


def _check_numbers(*numbers: int) -> None:
    """Counters stay below 2**63, as in a frame's header."""
    highest = max(numbers, default=0)
    if highest > COUNTER_MAX:
        _refuse(f"{highest} is no index, term or member")


def _refuse(reason: str) -> NoReturn:
    raise InvalidRequest(f"this is no mail of a replica: {reason}")
