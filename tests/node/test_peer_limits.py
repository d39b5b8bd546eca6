"""What a connection between brokers may cost: places, bytes, and time on the loop."""

import asyncio
import time
from collections.abc import Callable

import pytest

from quivermq.addresses import split_address
from quivermq.batches import Frame
from quivermq.node.peer_connection import (
    LINKS_OF_NODE_MAX,
    PEER_PACKET_ENVELOPE_BYTES_MAX,
    PEER_PACKET_FRAMES_MAX,
    STRANGERS_OF_ADDRESS_MAX,
)
from quivermq.raft import MessageKind
from quivermq.wire import CHECKSUM_BYTES, PROTOCOL, packet, proto
from tests.conftest import STALL_BUDGET
from tests.node.test_peers import GROUP, Broker, broker, connected
from tests.transports.stage import PATIENCE_S, on_loop, until

CALLBACK_S = 0.2
ENVELOPE_BYTES_MAX = PEER_PACKET_ENVELOPE_BYTES_MAX - CHECKSUM_BYTES
"""The largest envelope that is read, but for its checksum."""


class Caller:
    """A connection to a broker's peer port on which anything can be said."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, other: Broker, node: int = 0) -> "Caller":
        """Says hello as a node, if one is named."""
        caller = cls(*await asyncio.open_connection(*split_address(other.address)))
        if node:
            hello = proto.PeerHello(protocol=PROTOCOL, node=node)
            caller.writer.writelines(packet(hello.SerializeToString()))
            length = int.from_bytes((await caller.reader.readexactly(8))[:4], "big")
            await caller.reader.readexactly(length - 4)
        return caller

    def say(self, envelope: bytes, *frames: Frame) -> None:
        self.writer.writelines(packet(envelope, frames))

    async def is_closed(self) -> bool:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self.reader.read() == b""
        except ConnectionError:
            return True

    def hang_up(self) -> None:
        self.writer.transport.abort()


def letter(**mail: object) -> proto.PeerMessage:
    return proto.PeerMessage(partition=GROUP, sender=2, to=1, **mail)  # type: ignore[arg-type]


def many_plain() -> proto.PeerMessage:
    """One letter as full as it can be: entries without words."""
    body = proto.Consensus(kind=int(MessageKind.APPEND), term=1, log_term=1, index=1)
    for number in range(200_000):
        body.plain.add(term=1, index=2 + number)
    return letter(consensus=body)


def many_members() -> proto.PeerMessage:
    message = proto.Consensus(kind=int(MessageKind.SNAPSHOT), term=1, log_term=1, index=1)
    members = proto.Configuration(voters=range(1, 200_000))
    return letter(offer=proto.Offer(message=message, snapshot_term=1, configuration=members))


HEARTBEAT = proto.Consensus(kind=int(MessageKind.HEARTBEAT), term=1)

WORST: dict[str, list[Callable[[], proto.PeerMessage]]] = {
    "consensus": [lambda: letter(consensus=HEARTBEAT), many_plain],
    "offer": [many_members],
    "chunk_request": [lambda: letter(chunk_request=proto.ChunkRequest())],
    "chunk": [
        lambda: letter(chunk=proto.Chunk()),
        lambda: letter(chunk=proto.Chunk(data=bytes(1 << 20))),
    ],
    "transfer_ended": [lambda: letter(transfer_ended=proto.TransferEnded())],
    "entries_request": [lambda: letter(entries_request=proto.EntriesRequest())],
    "entries_reply": [lambda: letter(entries_reply=proto.EntriesReply())],
    "sleep": [lambda: letter(sleep=proto.Sleep())],
    "rouse": [lambda: letter(rouse=proto.Rouse())],
}
"""By kind of letter; as many of each as a packet holds."""


def test_every_kind_of_letter_is_here() -> None:
    kinds = proto.PeerMessage.DESCRIPTOR.oneofs_by_name["mail"].fields
    assert {kind.name for kind in kinds} == set(WORST)


def full_parcel(one: proto.PeerMessage) -> bytes:
    alone = proto.PeerPacket(peer_messages=[one]).SerializeToString()
    return alone * max(1, ENVELOPE_BYTES_MAX // len(alone))


@pytest.mark.parametrize("kind", WORST)
@on_loop
async def test_a_full_parcel_does_not_hold_the_loop(kind: str) -> None:
    async with broker(1) as one:
        for make in WORST[kind]:
            caller = await Caller.to(one, node=2)
            envelope = full_parcel(make())
            # Making it was work of the same callback.
            await asyncio.sleep(0)
            STALL_BUDGET.longest_s = 0.0
            caller.say(envelope)
            # Heard once all before it is open; or the connection is closed for what it said.
            caller.say(
                proto.PeerPacket(leads=[proto.Leadership(partition=GROUP)]).SerializeToString()
            )
            closed = asyncio.create_task(caller.is_closed())
            await until(lambda closed=closed: one.leads or closed.done())
            assert STALL_BUDGET.longest_s < CALLBACK_S, f"{len(one.mail)} letters"
            one.leads.clear()
            one.mail.clear()
            caller.hang_up()
            await closed


@pytest.mark.parametrize(
    "envelope",
    [
        b"\x0a\x00" * (ENVELOPE_BYTES_MAX // 2),
        b"\x1a\x00" * (ENVELOPE_BYTES_MAX // 2),
    ],
    ids=["letters", "leads"],
)
@on_loop
async def test_a_parcel_of_nothing_but_empty_parts_does_not_hold_the_loop(envelope: bytes) -> None:
    async with broker(1) as one:
        caller = await Caller.to(one, node=2)
        STALL_BUDGET.longest_s = 0.0
        caller.say(envelope)
        caller.say(b"\xff")
        assert await caller.is_closed()
        assert STALL_BUDGET.longest_s < CALLBACK_S
        caller.hang_up()


@on_loop
async def test_an_envelope_above_the_limit_is_refused_before_it_is_read() -> None:
    async with broker(1) as one:
        caller = await Caller.to(one, node=2)
        caller.say(bytes(ENVELOPE_BYTES_MAX + 1))
        assert await caller.is_closed()
        caller.hang_up()


@on_loop
async def test_frames_above_the_limit_are_refused() -> None:
    async with broker(1) as one:
        caller = await Caller.to(one, node=2)
        frame = Frame.of(3, b"")  # type: ignore[arg-type]
        STALL_BUDGET.longest_s = 0.0
        caller.say(b"", *[frame] * (PEER_PACKET_FRAMES_MAX + 1))
        assert await caller.is_closed()
        assert not one.mail
        caller.hang_up()


@on_loop
async def test_strangers_cannot_keep_a_broker_out() -> None:
    async with broker(1) as one, broker(2, hello_s=120) as two:
        callers = [await Caller.to(two) for _ in range(100)]
        await until(lambda: len(list(two.links._incoming)) <= STRANGERS_OF_ADDRESS_MAX)
        await connected(one, two)
        # Those who waited longest went.
        assert await callers[0].is_closed()
        one.links.tell_leadership([proto.Leadership(partition=GROUP)])
        await until(lambda: two.leads)
        for caller in callers:
            caller.hang_up()


@on_loop
async def test_of_too_many_links_of_one_broker_the_newest_are_kept() -> None:
    async with broker(1) as one:
        callers = [await Caller.to(one, node=2) for _ in range(3 * LINKS_OF_NODE_MAX)]
        other = await Caller.to(one, node=3)
        for caller in callers[:-LINKS_OF_NODE_MAX]:
            assert await caller.is_closed()
        for number, caller in enumerate([*callers[-LINKS_OF_NODE_MAX:], other], 1):
            caller.say(
                proto.PeerPacket(leads=[proto.Leadership(partition=GROUP)]).SerializeToString()
            )
            await until(lambda number=number: len(one.leads) == number)
        for caller in [*callers, other]:
            caller.hang_up()


@on_loop
async def test_letters_keep_their_order_across_slices() -> None:
    async with broker(1) as one:

        def slow(group: bytes, sender: int, to: int, mail: object) -> None:
            one.mail.append((group, sender, to, mail))  # type: ignore[arg-type]
            time.sleep(0.002)

        one.links.hooks.deliver = slow  # type: ignore[assignment]
        caller = await Caller.to(one, node=2)
        for peer_packet in range(5):
            letters = [
                letter(sleep=proto.Sleep(term=1, index=20 * peer_packet + n + 1)) for n in range(20)
            ]
            caller.say(proto.PeerPacket(peer_messages=letters).SerializeToString())
        await until(lambda: len(one.mail) == 100)
        assert [mail.index for *_, mail in one.mail] == [*range(1, 101)]  # type: ignore[union-attr]
        caller.hang_up()
