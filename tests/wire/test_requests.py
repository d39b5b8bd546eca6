"""Envelopes: what they say, and what is none."""

import contextlib
from collections.abc import Callable

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from quivermq.errors import InvalidRequest
from quivermq.wire import (
    parse_peer_hello,
    parse_peer_packet,
    parse_request,
    parse_response,
    proto,
)

PARSERS = [parse_request, parse_response, parse_peer_hello, parse_peer_packet]
Parser = Callable[[bytes], Message]


def test_a_request_is_read_from_any_buffer() -> None:
    asked = proto.Request(id=7, direct=True, produce=proto.Produce(topic="a", partition=3))
    content = asked.SerializeToString()
    assert parse_request(content) == asked
    assert parse_request(memoryview(content)) == asked
    assert parse_request(memoryview(bytearray(b"x" + content))[1:]) == asked


def test_an_answer_is_read_even_if_it_says_nothing_but_that() -> None:
    said = proto.Response(id=1, done=proto.Done())
    assert parse_response(said.SerializeToString()) == said


def test_what_asks_for_nothing_or_for_the_unknown_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="request 9"):
        parse_request(proto.Request(id=9).SerializeToString())
    with pytest.raises(InvalidRequest, match="request 0"):
        parse_request(b"")
    later_body = b"\x08\x09" + b"\xa2\x3f\x00"  # id 9, and field 1012, which nobody knows
    with pytest.raises(InvalidRequest, match="request 9"):
        parse_request(later_body)
    with pytest.raises(InvalidRequest, match="response 4"):
        parse_response(proto.Response(id=4).SerializeToString())


def test_fields_that_this_build_does_not_know_are_ignored() -> None:
    asked = proto.Request(id=9, ping=proto.Ping())
    assert parse_request(asked.SerializeToString() + b"\xa2\x3f\x00").id == 9


def test_the_words_between_brokers_are_read() -> None:
    hello = proto.PeerHello(protocol=1, node=3, cluster_id="c")
    assert parse_peer_hello(hello.SerializeToString()) == hello
    peer_packet = proto.PeerPacket(alive=True, peer_messages=[proto.PeerMessage(sender=1)])
    assert parse_peer_packet(peer_packet.SerializeToString()) == peer_packet


@pytest.mark.parametrize("parser", PARSERS)
@given(noise=st.binary(max_size=100))
def test_noise_raises_nothing_but_refusals(parser: Parser, noise: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parser(noise)


@given(st.data(), st.binary(max_size=5))
def test_a_damaged_request_raises_nothing_but_refusals(data: st.DataObject, noise: bytes) -> None:
    produce = proto.Produce(topic="topic", topic_id=b"i" * 12, partition=3)
    content = proto.Request(id=1 << 40, timeout_ms=5, produce=produce).SerializeToString()
    cut = data.draw(st.integers(0, len(content)))
    skip = data.draw(st.integers(0, 3))
    with contextlib.suppress(InvalidRequest):
        parse_request(content[:cut] + noise + content[cut + skip :])


def test_text_that_is_no_text_is_refused() -> None:
    content = proto.Request(id=1, produce=proto.Produce(topic="topic")).SerializeToString()
    with pytest.raises(InvalidRequest):
        parse_request(content.replace(b"topic", b"\xff\xfe\xfd\xfc\xfb"))
