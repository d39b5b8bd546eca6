"""Links between brokers over real sockets: lanes, limits, and who is let in."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from quivermq.addresses import split_address
from quivermq.batches import DEFAULT_LIMITS, Frame, Index, encode_batch
from quivermq.node import peers
from quivermq.node.peer_connection import PEER_PACKET_FRAMES_MAX
from quivermq.node.peers import LinkHooks, LinkLane, PeerLinks, lane_of
from quivermq.raft import Entry, EntryKind, Message, MessageKind
from quivermq.replica import Chunk, Consensus, Mail, Rouse
from quivermq.wire import PROTOCOL, packet, proto
from quivermq.wire.receiver import STALLED_S
from tests.transports.stage import hears_only_the_end, on_loop, until

NOWHERE = "127.0.0.1:1"
GROUP = bytes(15) + b"\x01"


@dataclass
class Broker:
    """What links need of a broker, and what they tell it."""

    node: int
    links: PeerLinks = field(init=False)
    mail: list[tuple[bytes, int, int, Mail]] = field(default_factory=list)
    leads: list[tuple[int, bytes]] = field(default_factory=list)
    silent: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    unwelcome: set[int] = field(default_factory=set)
    on_connected: Callable[[int], None] | None = None
    address: str = ""

    def hello(self) -> proto.PeerHello:
        return proto.PeerHello(protocol=PROTOCOL, node=self.node, peer_address=self.address)

    def objection(self, hello: proto.PeerHello) -> str:
        return "go away" if hello.node in self.unwelcome else ""

    def connected(self, node: int) -> None:
        if self.on_connected is not None:
            self.on_connected(node)

    def deliver(self, group: bytes, sender: int, to: int, mail: Mail) -> None:
        self.mail.append((group, sender, to, mail))


@asynccontextmanager
async def broker(
    node: int, *, outbox_bytes_max: int = 64 << 20, hello_s: float = 5
) -> AsyncIterator[Broker]:
    it = Broker(node)
    hooks = LinkHooks(
        hello=it.hello,
        judge=lambda _, answer: it.objection(answer),
        welcome=it.objection,
        objection=it.objection,
        deliver=it.deliver,
        leads=lambda node, leads: it.leads.extend((node, lead.partition) for lead in leads),
        silent=it.silent.append,
        connected=it.connected,
        returned=it.returned.append,
    )
    it.links = PeerLinks(DEFAULT_LIMITS, outbox_bytes_max, silence_s=0.1, hello_s=hello_s, given={})
    it.links.connect(hooks)
    it.address = await it.links.listen("127.0.0.1:0")
    try:
        yield it
    finally:
        await it.links.close()
        await asyncio.sleep(0)


async def connected(one: Broker, other: Broker) -> None:
    one.links.know(other.node, other.address)
    await until(lambda: one.links.reaches(other.node))


def append(count: int, size: int) -> Consensus:
    frame = encode_batch([bytes(size)])
    entries = [Entry(1, 2 + n, EntryKind.NORMAL, stamped(frame, n)) for n in range(count)]
    return Consensus(Message(MessageKind.APPEND, 2, 1, 1, 1, 1, entries))


def stamped(frame: Frame, number: int) -> Frame:
    return frame.stamped(term=1, index=Index(2 + number), base_offset=number, timestamp_ms=0)


def test_what_is_large_never_delays_what_is_urgent() -> None:
    assert lane_of(append(1, 1)) is LinkLane.BULK
    assert lane_of(Chunk(Index(1), 0, 0, b"x")) is LinkLane.BULK
    assert lane_of(Rouse()) is LinkLane.EXPRESS
    assert lane_of(Consensus(Message(MessageKind.HEARTBEAT, 2, 1, 1))) is LinkLane.EXPRESS


@on_loop
async def test_mail_arrives_in_order_with_its_frames() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        sent = [append(2, 10), append(1, 10_000), append(3, 0)]
        for mail in sent:
            one.links.post(GROUP, 1, 2, 2, mail)
        one.links.flush()
        await until(lambda: len(two.mail) == 3)
        assert [mail for *_, mail in two.mail] == sent
        assert {where[:3] for where in two.mail} == {(GROUP, 1, 2)}


def parts_and_batches() -> list[Mail]:
    """Twenty parts of checkpoints at once are more than an envelope may hold."""
    parts = [Chunk(Index(1), 0, number, bytes(1 << 20)) for number in range(20)]
    return [mail for part in parts for mail in (part, append(2, 1 << 20))]


def many_entries() -> list[Mail]:
    """More than a packet may have, and small."""
    return [append(1_000, 0) for _ in range(PEER_PACKET_FRAMES_MAX // 1_000 + 1)]


@pytest.mark.parametrize("make", [parts_and_batches, many_entries])
@on_loop
async def test_more_than_fits_one_packet_goes_as_several(make: Callable[[], list[Mail]]) -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        link = one.links.peers[2].lanes[LinkLane.BULK]
        connection = link.connection
        sent = make()
        for mail in sent:
            one.links.post(GROUP, 1, 2, 2, mail)
        one.links.flush()
        await until(lambda: len(two.mail) == len(sent))
        assert link.connection is connection
        assert [mail for *_, mail in two.mail] == sent


@on_loop
async def test_what_a_stuck_peer_does_not_take_is_dropped() -> None:
    async with broker(1, outbox_bytes_max=1 << 20) as one, broker(2) as two:
        await connected(one, two)
        for connection in two.links._incoming:
            connection.transport.pause_reading()  # type: ignore[union-attr]
        link = one.links.peers[2].lanes[LinkLane.BULK]
        for _ in range(40):
            one.links.post(GROUP, 1, 2, 2, append(1, 1 << 20))
            one.links.flush()
            await asyncio.sleep(0)
        assert link.dropped
        assert link.connection is not None
        assert link.connection.unsent_bytes < 4 << 20


@on_loop
async def test_a_peer_that_could_not_be_told_of_leaders_is_connected_anew() -> None:
    """Whoever connects is told of all of them."""
    async with broker(1, outbox_bytes_max=1 << 20) as one, broker(2) as two:
        await connected(one, two)
        for incoming in two.links._incoming:
            incoming.transport.pause_reading()  # type: ignore[union-attr]
        link = one.links.peers[2].lanes[LinkLane.EXPRESS]
        stuck = link.connection
        assert stuck is not None
        while stuck.unsent_bytes <= 1 << 20:
            stuck.write(bytes(1 << 20))
        one.links.tell_leadership([proto.Leadership(partition=GROUP)])
        # Before the other side takes it for stalled.
        async with asyncio.timeout(STALLED_S - 1):
            await until(lambda: link.connection not in {None, stuck})


@on_loop
async def test_a_peer_that_is_refused_later_is_disconnected_on_both_lanes_and_sides() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        await connected(two, one)
        one.unwelcome.add(2)
        one.links.judge_again()
        await until(lambda: not any(link.connection for link in two.links.peers[1].lanes.values()))
        await until(lambda: not any(link.connection for link in one.links.peers[2].lanes.values()))
        assert one.links.peers[2].refusal == "go away"
        await until(lambda: two.links.peers[1].refusal == "go away")
        one.unwelcome.clear()
        await until(lambda: one.links.reaches(2))
        await until(lambda: two.links.reaches(1))


@on_loop
async def test_mail_of_another_node_is_refused() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        lane = one.links.peers[2].lanes[LinkLane.EXPRESS]
        connection = lane.connection
        one.links.post(GROUP, 3, 2, 2, Rouse())
        one.links.flush()
        await until(lambda: lane.connection is not connection)
        assert two.mail == []


@on_loop
async def test_a_later_epoch_of_the_same_node_may_write() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        one.links.post(GROUP, 5 << 16 | 1, 2, 2, Rouse())
        one.links.flush()
        await until(lambda: two.mail)
        assert two.mail == [(GROUP, 5 << 16 | 1, 2, Rouse())]


@on_loop
async def test_a_link_survives_whatever_happens_when_it_connects(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broker(1) as one, broker(2) as two:
        calls = []

        def stumble(node: int) -> None:
            calls.append(node)
            if len(calls) == 1:
                raise KeyError(node)

        one.on_connected = stumble
        await connected(one, two)
        await until(lambda: len(calls) == 2)
        assert "is tried again" in caplog.text


@on_loop
async def test_a_peer_that_is_heard_is_dialled_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(peers, "_DIAL_AGAIN_S", (1000.0, 1000.0))
    caplog.set_level(logging.DEBUG, "quivermq.peers")
    async with broker(1) as one, broker(2) as two:
        one.links.know(2, NOWHERE)
        await until(lambda: caplog.text.count("no link to node 2") == len(LinkLane))
        one.links.know(2, two.address)
        assert not one.links.reaches(2)
        await connected(two, one)
        await until(lambda: one.links.reaches(2))


@pytest.mark.parametrize("address", ["", "nowhere", "x" * 300 + ":1", "..:1", "127.0.0.1:0"])
@on_loop
async def test_a_peer_at_an_impossible_address_can_still_be_found_later(address: str) -> None:
    async with broker(1) as one, broker(2) as two:
        one.links.know(2, address)
        await asyncio.sleep(0.02)
        await connected(one, two)


@on_loop
async def test_a_connection_without_a_hello_is_closed_and_the_listener_goes_on() -> None:
    async with broker(1) as one, broker(2) as two:
        one.links._hello_s = 0.02
        reader, writer = await asyncio.open_connection(*split_address(one.address))
        assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection(*split_address(one.address))
        writer.writelines(packet(b"\xff\xff\xff"))
        assert await reader.read() == b""
        writer.close()
        await connected(two, one)


@on_loop
async def test_a_connection_that_was_accepted_and_is_made_after_the_end_is_closed() -> None:
    async with broker(1, hello_s=60) as one:
        protocol = one.links._incoming_protocol
    assert await hears_only_the_end(protocol)


@on_loop
async def test_silence_is_noticed_again_and_again() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        await connected(two, one)

        def tick() -> int:
            one.links.tick()
            return len(one.silent)

        await until(lambda: tick() > 2)
        assert one.links.peers[2].is_silent
        assert one.links.silent_nodes == {2}
        assert not one.returned
        two.links.tick()
        await until(lambda: one.links.tick() or not one.links.peers[2].is_silent)
        one.links.tick()
        assert one.returned == [2], "told once, though the connection is the same"
        assert not one.links.silent_nodes


@on_loop
async def test_a_broker_that_stood_still_blames_its_peers_only_the_second_time() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        one.links.tick()
        for _ in range(2):
            now = one.links.now()
            one.links.now = lambda now=now: now + 0.2  # type: ignore[method-assign]
            assert not one.silent
            one.links.tick()
        assert one.silent == [2]


@on_loop
async def test_a_peer_that_moved_is_found_at_its_new_address() -> None:
    async with broker(1) as one, broker(2) as two:
        await connected(one, two)
        async with broker(2) as elsewhere:
            one.links.know(2, elsewhere.address)
            await until(lambda: not one.links.reaches(2))
            await until(lambda: one.links.reaches(2))
            one.links.tell_leadership([proto.Leadership(partition=GROUP, term=1)])
            await until(lambda: elsewhere.leads == [(1, GROUP)])
