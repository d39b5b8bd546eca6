"""Letters: every kind of mail survives the journey, and nothing else is taken for mail."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind, Header, Index, Offset
from quivermq.batches.limits import COUNTER_MAX
from quivermq.errors import InvalidRequest
from quivermq.node.peer_codec import MEMBERS_MAX, TRAVELLING, UnknownMail, decode_mail, encode_mail
from quivermq.raft import (
    Act,
    Change,
    Configuration,
    Entry,
    EntryKind,
    MembershipChange,
    Message,
    Snapshot,
    Transition,
)
from quivermq.raft import MessageKind as Said
from quivermq.replica import (
    Chunk,
    ChunkRequest,
    Consensus,
    EntriesReply,
    EntriesRequest,
    Mail,
    Offer,
    TransferEnded,
)
from quivermq.wire import Packet, frames_of, packet, parse_peer_packet, proto
from tests.wire.samples import command, data_frame, received_at_once

GROUP = bytes(range(16))
SENDER, TO = 3 << 16 | 2, 1

counters = st.integers(0, COUNTER_MAX)
members = st.integers(1, COUNTER_MAX)
u32 = st.integers(0, 0xFFFF_FFFF)
indexes = st.integers(0, COUNTER_MAX - 100).map(Index)


def stamped(frame: Frame, term: int, index: int) -> Frame:
    return frame.stamped(term=term, index=Index(index), base_offset=Offset(0), timestamp_ms=5)


changes = st.builds(
    MembershipChange,
    st.lists(st.builds(Change, st.sampled_from(Act), members), max_size=4).map(tuple),
    st.sampled_from(Transition),
)


@st.composite
def appends(draw: st.DrawFn) -> Message:
    term = log_term = draw(st.integers(1, COUNTER_MAX - 10))
    index = draw(indexes)
    entries = []
    for number in range(draw(st.integers(0, 8))):
        term += draw(st.integers(0, 1))
        at = index + 1 + number
        kind = draw(st.sampled_from(["data", "command", "no-op", "membership"]))
        if kind == "data":
            entries.append(Entry(term, at, data=stamped(data_frame(b"x" * number), term, at)))
        elif kind == "command":
            entries.append(Entry(term, at, data=stamped(command(b"c"), term, at)))
        elif kind == "no-op":
            entries.append(Entry(term, at))
        else:
            entries.append(Entry(term, at, EntryKind.MEMBERSHIP, draw(changes).encode()))
    commit = draw(counters)
    return Message(Said.APPEND, TO, SENDER, term, log_term, index, entries, commit)


others = st.builds(
    Message,
    kind=st.sampled_from([kind for kind in TRAVELLING.values() if kind is not Said.APPEND]),
    to=st.just(TO),
    sender=st.just(SENDER),
    term=members,
    log_term=counters,
    index=counters,
    commit=counters,
    reject=st.booleans(),
    hint=counters,
    vote=counters,
    round=counters,
    context=st.binary(max_size=30),
    by_transfer=st.booleans(),
    known_commit=st.tuples(counters, counters),
    # Spelt out, or Hypothesis makes some up.
    entries=st.just(()),
    snapshot=st.none(),
    responses=st.just(()),
)


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    ids = draw(st.lists(members, min_size=1, max_size=8, unique=True))
    cut = draw(st.integers(1, len(ids)))
    voters, learners = ids[:cut], ids[cut:]
    if not draw(st.booleans()):
        return Configuration(tuple(sorted(voters)), learners=tuple(sorted(learners)))
    return Configuration(
        voters=tuple(sorted(voters)),
        outgoing=tuple(sorted([*voters[:1], *learners])),
        learners_next=tuple(sorted(learners)),
        auto_leave=draw(st.booleans()),
    )


@st.composite
def offers(draw: st.DrawFn) -> Offer:
    snapshot_term = draw(counters)
    term = draw(st.integers(max(snapshot_term, 1), COUNTER_MAX))
    snapshot = Snapshot(draw(indexes), snapshot_term, draw(configurations()))
    message = Message(Said.SNAPSHOT, TO, SENDER, term, snapshot=snapshot)
    return Offer(message, draw(counters), draw(u32))


@st.composite
def entries_replies(draw: st.DrawFn) -> EntriesReply:
    first, term = draw(indexes), draw(st.integers(1, COUNTER_MAX - 10))
    frames = []
    for number in range(draw(st.integers(0, 5))):
        term += draw(st.integers(0, 1))
        kind = draw(st.sampled_from([FrameKind.COMMAND, FrameKind.NOOP, FrameKind.MEMBERSHIP]))
        frames.append(stamped(Frame.of(kind, b"b" * number), term, first + number))
    return EntriesReply(first, tuple(frames), draw(indexes))


MAILS: dict[str, st.SearchStrategy[Mail]] = {
    "append": appends().map(Consensus),
    "message": others.map(Consensus),
    "offer": offers(),
    "chunk_request": st.builds(ChunkRequest, indexes, u32, counters),
    "chunk": st.builds(Chunk, indexes, u32, counters, st.binary(max_size=50)),
    "transfer_ended": st.builds(TransferEnded, indexes, st.booleans()),
    "entries_request": st.builds(EntriesRequest, indexes, indexes),
    "entries_reply": entries_replies(),
}
any_mail = st.one_of(*MAILS.values())


def travelled(*mails: Mail) -> list[Mail]:
    """Through the bytes of one packet and back."""
    sealed = [encode_mail(GROUP, SENDER, TO, mail) for mail in mails]
    peer_packet = proto.PeerPacket(peer_messages=[letter for letter, _ in sealed])
    frames = [frame for _, frames in sealed for frame in frames]
    [got] = received_at_once(b"".join(packet(peer_packet.SerializeToString(), frames)))
    return opened(parse_peer_packet(got.envelope), frames_of(got))


def opened(peer_packet: proto.PeerPacket, frames: Sequence[Frame]) -> list[Mail]:
    mails, at = [], 0
    for letter in peer_packet.peer_messages:
        assert (letter.partition, letter.sender, letter.to) == (GROUP, SENDER, TO)
        mails.append(decode_mail(letter, frames[at : at + letter.frames]))
        at += letter.frames
    assert at == len(frames)
    return mails


@pytest.mark.parametrize("kind", MAILS)
@given(data=st.data())
def test_every_kind_of_mail_arrives_as_it_left(kind: str, data: st.DataObject) -> None:
    mail = data.draw(MAILS[kind])
    assert travelled(mail) == [mail]


@given(st.lists(any_mail, max_size=6))
def test_letters_of_one_packet_get_their_own_frames(mails: list[Mail]) -> None:
    assert travelled(*mails) == mails


def test_the_kinds_are_of_the_core_whatever_number_travels() -> None:
    for kind in TRAVELLING.values():
        [mail] = travelled(Consensus(Message(kind, TO, SENDER, 1)))
        assert isinstance(mail, Consensus)
        assert mail.message.kind is kind


@pytest.mark.parametrize("kind", [kind for kind in Said if kind not in TRAVELLING])
def test_what_members_do_not_say_to_each_other_is_neither_sealed_nor_opened(kind: Said) -> None:
    message = Message(kind, TO, SENDER, 1)
    with pytest.raises(InvalidRequest):
        encode_mail(GROUP, SENDER, TO, Consensus(message))
    letter = plain_append()
    letter.consensus.kind = kind
    letter.consensus.ClearField("plain")
    with pytest.raises(InvalidRequest, match="nothing that members say"):
        decode_mail(letter, [])


def test_an_offer_needs_its_snapshot() -> None:
    with pytest.raises(InvalidRequest):
        encode_mail(GROUP, SENDER, TO, Offer(Message(Said.SNAPSHOT, TO, SENDER, 1), 1, 1))


def test_the_sender_of_a_message_is_the_letters() -> None:
    letter, _ = encode_mail(GROUP, 9, 8, Consensus(Message(Said.VOTE, 1, 2, 3)))
    mail = decode_mail(letter, [])
    assert isinstance(mail, Consensus)
    assert (mail.message.sender, mail.message.to) == (9, 8)


def plain_append(term: int = 5, log_term: int = 4, index: int = 10) -> proto.PeerMessage:
    """Entry 11 is a no-op of term 5."""
    message = Message(Said.APPEND, TO, SENDER, term, log_term, index, [Entry(5, index + 1)])
    return encode_mail(GROUP, SENDER, TO, Consensus(message))[0]


def offered() -> proto.PeerMessage:
    snapshot = Snapshot(7, 2, Configuration((1, 2), learners=(3,)))
    offer = Offer(Message(Said.SNAPSHOT, TO, SENDER, 2, snapshot=snapshot), 5, 6)
    return encode_mail(GROUP, SENDER, TO, offer)[0]


def with_frames(*frames: Frame) -> tuple[proto.PeerMessage, list[Frame]]:
    letter = plain_append()
    letter.consensus.ClearField("plain")
    letter.frames = len(frames)
    return letter, list(frames)


def test_the_letters_that_the_lies_below_start_from_are_well_formed() -> None:
    decode_mail(plain_append(), [])
    decode_mail(offered(), [])
    decode_mail(*with_frames(stamped(command(b"x"), 5, 11), stamped(command(b"y"), 5, 12)))


PLAIN_LIES: dict[str, Callable[[proto.PeerMessage], object]] = {
    "no partition": lambda letter: letter.ClearField("partition"),
    "a short partition id": lambda letter: setattr(letter, "partition", bytes(15)),
    "nobody sent it": lambda letter: letter.ClearField("sender"),
    "for nobody": lambda letter: letter.ClearField("to"),
    "a sender past 2**63": lambda letter: setattr(letter, "sender", 1 << 63),
    "no mail": lambda letter: letter.ClearField("consensus"),
    "a mail of a later release": lambda letter: letter.MergeFromString(b"\xa2\x3f\x00"),
    "more frames than there are": lambda letter: setattr(letter, "frames", 1),
    "a hole": lambda letter: setattr(letter.consensus.plain[0], "index", 12),
    "an overlap": lambda letter: setattr(letter.consensus.plain[0], "index", 10),
    "an entry twice": lambda letter: letter.consensus.plain.add(term=5, index=11),
    "a term that goes back": lambda letter: setattr(letter.consensus.plain[0], "term", 3),
    "an entry of a later term": lambda letter: setattr(letter.consensus.plain[0], "term", 6),
    "an append of no term": lambda letter: letter.consensus.ClearField("term"),
    "a no-op with data": lambda letter: setattr(letter.consensus.plain[0], "data", b"x"),
    "an unreadable change": lambda letter: setattr(letter.consensus.plain[0], "membership", True),
    "a change of member -1": lambda letter: letter.consensus.plain.add(
        term=5, index=12, membership=True, data=b"auto:v-1"
    ),
    "a change without end": lambda letter: letter.consensus.plain.add(
        term=5, index=12, membership=True, data=b"auto:" + b" " * 100_000
    ),
    "a commit past 2**63": lambda letter: setattr(letter.consensus, "commit", 1 << 63),
    "entries in a vote": lambda letter: setattr(letter.consensus, "kind", Said.VOTE),
    "a kind that nobody knows": lambda letter: setattr(letter.consensus, "kind", 99),
    "an empty offer": lambda letter: letter.offer.SetInParent(),
    "a part past 2**63": lambda letter: setattr(letter.chunk, "at", 1 << 63),
    "entries asked for past 2**63": lambda letter: setattr(
        letter.entries_request, "last", (1 << 64) - 1
    ),
    "entries kept past 2**63": lambda letter: setattr(
        letter.entries_reply, "first_kept", (1 << 64) - 1
    ),
}
# Those that leave a mail of another kind, and so say something whole.
KEEPS_SENSE = {"a mail of a later release"}


@pytest.mark.parametrize("lie", sorted(PLAIN_LIES.keys() - KEEPS_SENSE))
def test_a_letter_that_lies_is_refused(lie: str) -> None:
    letter = plain_append()
    PLAIN_LIES[lie](letter)
    with pytest.raises(InvalidRequest):
        decode_mail(letter, [])


def test_the_last_entry_too_has_an_index_below_two_to_the_63() -> None:
    decode_mail(plain_append(index=COUNTER_MAX - 1), [])
    with pytest.raises(InvalidRequest):
        decode_mail(plain_append(index=COUNTER_MAX), [])


def test_fields_of_a_later_release_are_ignored() -> None:
    letter = plain_append()
    PLAIN_LIES["a mail of a later release"](letter)
    decode_mail(letter, [])
    letter.ClearField("consensus")
    with pytest.raises(UnknownMail):
        decode_mail(letter, [])
    letter = plain_append()
    letter.consensus.kind = max(Said) + 1
    with pytest.raises(UnknownMail):
        decode_mail(letter, [])


OFFER_LIES: dict[str, Callable[[proto.Offer], object]] = {
    "no message": lambda offer: offer.ClearField("message"),
    "another kind of message": lambda offer: setattr(offer.message, "kind", Said.APPEND),
    "entries": lambda offer: offer.message.plain.add(term=1, index=1),
    "of no term": lambda offer: offer.message.ClearField("term"),
    "of a later term": lambda offer: setattr(offer, "snapshot_term", 3),
    "an index past 2**63": lambda offer: setattr(offer, "snapshot_index", COUNTER_MAX),
    "a size past 2**63": lambda offer: setattr(offer, "size", 1 << 63),
    "no configuration": lambda offer: offer.ClearField("configuration"),
    "no voters": lambda offer: offer.configuration.ClearField("voters"),
    "voters in disorder": lambda offer: offer.configuration.voters.append(1),
    "nobody as a learner": lambda offer: offer.configuration.learners.insert(0, 0),
    "a member past 2**63": lambda offer: offer.configuration.learners.append(1 << 63),
    "a learner that votes": lambda offer: offer.configuration.learners.insert(0, 1),
    "a learner to be from nowhere": lambda offer: offer.configuration.learners_next.append(9),
    "too many members": lambda offer: offer.configuration.learners.extend(
        range(10, MEMBERS_MAX + 20)
    ),
}


@pytest.mark.parametrize("lie", OFFER_LIES)
def test_an_offer_that_lies_is_refused(lie: str) -> None:
    letter = offered()
    OFFER_LIES[lie](letter.offer)
    with pytest.raises(InvalidRequest):
        decode_mail(letter, [])


def test_frames_that_do_not_follow_are_refused() -> None:
    first, second = stamped(command(b"x"), 5, 11), stamped(command(b"y"), 5, 12)
    for frames in (
        [second],
        [second, first],
        [first, first],
        [first, stamped(command(b"y"), 4, 12)],
        [stamped(command(b"x"), 6, 11)],
        [stamped(command(b"x"), 3, 11)],
        [stamped(Frame.of(FrameKind.NOOP), 5, 11)],
        [stamped(Frame.of(FrameKind.MEMBERSHIP, b"auto:v1"), 5, 11)],
        [Frame(Header(FrameKind.MARK, term=5, index=Index(11)), b"")],
    ):
        with pytest.raises(InvalidRequest):
            decode_mail(*with_frames(*frames))


def test_frames_beside_mail_that_has_none_are_refused() -> None:
    for mail in (
        ChunkRequest(Index(1), 2, 3),
        Consensus(Message(Said.VOTE, TO, SENDER, 1)),
    ):
        letter, _ = encode_mail(GROUP, SENDER, TO, mail)
        letter.frames = 1
        with pytest.raises(InvalidRequest):
            decode_mail(letter, [stamped(command(b"x"), 1, 1)])
    letter = offered()
    letter.frames = 1
    with pytest.raises(InvalidRequest):
        decode_mail(letter, [stamped(command(b"x"), 1, 1)])


def test_entries_of_a_reply_that_do_not_follow_are_refused() -> None:
    first, second = stamped(command(b"x"), 5, 11), stamped(command(b"y"), 5, 12)
    mark = Frame(Header(FrameKind.MARK, term=5, index=Index(11)), b"")
    stale = stamped(command(b"y"), 4, 12)
    for frames in ((second,), (first, first), (first, stale), (mark,)):
        letter, sent = encode_mail(GROUP, SENDER, TO, EntriesReply(Index(11), frames, Index(1)))
        with pytest.raises(InvalidRequest):
            decode_mail(letter, sent)


@given(any_mail, st.data(), st.binary(max_size=4))
def test_damaged_letters_raise_nothing_but_refusals(
    mail: Mail, data: st.DataObject, noise: bytes
) -> None:
    sealed, frames = encode_mail(GROUP, SENDER, TO, mail)
    content = sealed.SerializeToString()
    cut = data.draw(st.integers(0, len(content)))
    damaged = content[:cut] + noise + content[cut + data.draw(st.integers(0, 4)) :]
    with suppress(DecodeError, InvalidRequest):
        letter = proto.PeerMessage.FromString(damaged)
        decode_mail(letter, frames)


numbers = st.sampled_from([0, 1, 2, 5, 10, 11, COUNTER_MAX, COUNTER_MAX + 1, (1 << 64) - 1])


def consensus_of(kind: int, values: list[int]) -> proto.Consensus:
    names = ["term", "log_term", "index", "commit", "hint", "vote", "round", "known_commit_index"]
    plain = [proto.PlainEntry(term=values[0], index=values[2] % COUNTER_MAX + 1)]
    return proto.Consensus(kind=kind, plain=plain, **dict(zip(names, values, strict=True)))


@given(
    st.integers(0, 20),
    st.lists(numbers, min_size=8, max_size=8),
    st.lists(st.tuples(numbers, numbers), max_size=3),
)
def test_numbers_at_their_limits_raise_nothing_but_refusals(
    kind: int, values: list[int], stamps: list[tuple[int, int]]
) -> None:
    frames = [
        stamped(command(b"x"), term, index)
        for term, index in stamps
        if term <= COUNTER_MAX and index <= COUNTER_MAX
    ]
    letter = proto.PeerMessage(partition=GROUP, sender=1, to=2, frames=len(frames))
    letter.consensus.CopyFrom(consensus_of(kind, values))
    with suppress(InvalidRequest):
        decode_mail(letter, frames)
    offer = proto.PeerMessage(partition=GROUP, sender=1, to=2)
    offer.offer.message.CopyFrom(consensus_of(kind, values))
    offer.offer.configuration.voters.extend(values[:2])
    with suppress(InvalidRequest):
        decode_mail(offer, [])


def test_a_letter_of_a_thousand_entries_arrives() -> None:
    entries = [Entry(1, n, data=stamped(command(b"%d" % n), 1, n)) for n in range(1, 1_001)]
    mail = Consensus(Message(Said.APPEND, TO, SENDER, 1, 0, 0, entries))
    assert travelled(mail) == [mail]


def test_packets_hold_the_frames_as_views() -> None:
    frame = stamped(data_frame(b"x" * 100), 1, 1)
    letter, frames = encode_mail(GROUP, SENDER, TO, EntriesReply(Index(1), (frame,), Index(1)))
    assert frames[0] is frame
    content = memoryview(bytes(frame))
    [got] = frames_of(Packet(memoryview(b""), content))
    mail = decode_mail(letter, [got])
    assert isinstance(mail, EntriesReply)
    assert isinstance(mail.frames[0].body, memoryview)
    assert mail.frames[0].body.obj is content.obj
