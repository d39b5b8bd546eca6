"""What a broker does with requests that were damaged on their way, or have no checksum."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from quivermq.batches import DEFAULT_LIMITS, Buffer, encode_batch
from quivermq.errors import QuiverError
from quivermq.node import Counters
from quivermq.transports import client_connections
from quivermq.transports.session import Session, SessionSettings
from quivermq.wire import (
    CHECKSUM_BYTES,
    PROTOCOL,
    PROTOCOL_MIN,
    Receiver,
    error_to_proto,
    parse_response,
    proto,
    receiver,
)
from tests.transports.stage import Talker, no_users, on_loop, serving
from tests.wire.samples import feed, flips, packed, unchecked

SETTLE = proto.Request(
    id=300,
    settle=proto.Settle(
        topic="orders",
        group="workers",
        consumer=1 << 40,
        settlements=[proto.Settlement(lease=77, intervals=[proto.Interval(start=8, end=9)])],
    ),
)
LIMITS = SessionSettings(
    node_id=1,
    limits=DEFAULT_LIMITS,
    requests_max=10,
    request_bytes_max=1 << 20,
    unread_bytes_max=1 << 20,
    idle_timeout_s=60.0,
    hello_timeout_s=5.0,
)


class Recorder:
    """In place of the service: what would have been done."""

    def __init__(self) -> None:
        self.submitted: list[proto.Request] = []
        self.counters = Counters()

    def submit(self, request: proto.Request, *_: object) -> None:
        self.submitted.append(request)

    def refusal(self, error: QuiverError) -> proto.Response:
        return proto.Response(error=error_to_proto(error))


class Conversation:
    """A session, and all that it wrote."""

    def __init__(self) -> None:
        self.service = Recorder()
        self.written = bytearray()
        service: Any = self.service
        self.session = Session(
            service, no_users(), LIMITS, lambda: "c", self._write, lambda: 0, lambda: None, 0.0
        )

    def _write(self, buffers: list[Buffer]) -> None:
        self.written += b"".join(buffers)

    def hear(self, content: bytes) -> None:
        self.session.receiver.get_buffer()[: len(content)] = content
        self.session.received(len(content), 0.0)

    def answers(self) -> list[proto.Response]:
        found = feed(Receiver(64 << 20), bytes(self.written))
        return [parse_response(each.envelope) for each in found]


def hello(protocol: int = PROTOCOL) -> bytes:
    greeting = proto.Hello(protocol=protocol, protocol_min=PROTOCOL_MIN, client="talker")
    return proto.Request(id=1, hello=greeting).SerializeToString()


def test_no_flipped_bit_makes_a_broker_do_anything_else() -> None:
    content = packed(SETTLE.SerializeToString())
    closed = 0
    for changed in flips(content):
        talk = Conversation()
        talk.hear(packed(hello()))
        try:
            talk.hear(changed)
        except QuiverError:
            closed += 1
            last = talk.answers()[-1]
            assert last.id == 0
            assert last.WhichOneof("body") == "error"
        assert talk.service.submitted == []
    assert closed > 8 * (len(content) - 8)


def test_no_flipped_bit_of_a_hello_lets_a_client_in() -> None:
    for changed in flips(packed(hello())):
        talk = Conversation()
        with suppress(QuiverError):
            talk.hear(changed)
        assert not talk.session.client
        assert all(answer.WhichOneof("body") == "error" for answer in talk.answers())


def test_a_damaged_request_is_one_to_repeat() -> None:
    talk = Conversation()
    content = bytearray(packed(hello()))
    content[12] ^= 1
    with pytest.raises(QuiverError):
        talk.hear(bytes(content))
    [answer] = talk.answers()
    assert answer.error.code == "ConnectionFailed"
    assert answer.error.retriable


def test_a_hello_and_a_damaged_request_that_arrive_together() -> None:
    content = packed(SETTLE.SerializeToString())
    changed = bytearray(content)
    changed[20] ^= 1
    talk = Conversation()
    with pytest.raises(QuiverError, match="fails its checksum"):
        talk.hear(packed(hello()) + bytes(changed))
    assert talk.service.submitted == []


@on_loop
async def test_a_client_of_protocol_2_without_checksums_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server, hello=False)
        talker.transport.write(unchecked(hello()))
        assert (await talker.hear(0)).error.code == "ConnectionFailed"
        await talker.until_lost()
        talker = await Talker.in_memory(server)
        ping = proto.Request(id=99, ping=proto.Ping()).SerializeToString()
        talker.transport.write(unchecked(ping))
        assert (await talker.hear(0)).error.code == "ConnectionFailed"
        await talker.until_lost()
        assert not talker.heard
        assert "the connection of talker is closed: a packet has no checksum" in caplog.text


@on_loop
async def test_a_client_of_protocol_1_is_served_as_before(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server, hello=False)
        talker.transport.write(unchecked(hello(1)))
        assert (await talker.hear(1)).welcome.protocol == 1
        make = proto.Request(id=2, create_topic=proto.CreateTopic(name="orders", partitions=1))
        talker.transport.write(unchecked(make.SerializeToString()))
        assert (await talker.hear(2)).WhichOneof("body") == "done"
        produce = proto.Request(id=3, produce=proto.Produce(topic="orders")).SerializeToString()
        frame = bytes(encode_batch([b"one", b"two"]))
        talker.transport.write(unchecked(produce, frame))
        assert (await talker.hear(3)).produced.batches[0].count == 2
        talker.close()


@on_loop
async def test_an_answer_is_made_only_if_it_fits_with_its_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as server:
        talker = await Talker.in_memory(server)
        ask = proto.Request(id=9, describe_topics=proto.DescribeTopics())
        size = len((await talker.ask(ask)).SerializeToString()) + CHECKSUM_BYTES
        where = "quivermq.transports.session.BROKER_ENVELOPE_BYTES_MAX"
        monkeypatch.setattr(where, size)
        assert (await talker.ask(ask)).WhichOneof("body") == "topics_described"
        monkeypatch.setattr(where, size - 1)
        assert (await talker.ask(ask)).error.code == "TooLarge"
        talker.close()


@on_loop
async def test_a_damaged_length_ends_the_session_that_waits_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver, "STALLED_S", 0.1)
    monkeypatch.setattr(client_connections, "_SWEEP_S", 0.05)
    async with serving(tmp_path) as server:
        talker = await Talker.by_socket(server)
        damaged = bytearray(packed(proto.Request(id=7, ping=proto.Ping()).SerializeToString()))
        damaged[1] ^= 1
        damaged[5] ^= 1  # of the envelope, too: its checksum does not arrive
        talker.transport.write(bytes(damaged))
        await asyncio.wait_for(talker.lost.wait(), 10)
