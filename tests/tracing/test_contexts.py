"""Trace contexts as text: what comes from outside may be anything."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from quivermq.tracing import context_of
from quivermq.tracing.contexts import (
    LINKS_MAX,
    TRACESTATE_CHARACTERS_MAX,
    Carried,
    carried,
    common_parent,
    distinct,
    links_to,
    restored,
    span_context_of,
)
from quivermq.wire import proto

VALID = f"00-{5:032x}-{6:016x}-01"


def test_a_context_survives_the_way_through_text() -> None:
    context = restored(VALID, "a=1")
    assert span_context_of(context).trace_id == 5
    assert carried(context) == Carried(VALID, "a=1")
    assert carried(context).headers() == {"traceparent": VALID.encode(), "tracestate": b"a=1"}


@pytest.mark.parametrize(
    "text",
    ["", "00", "nonsense", f"00-{0:032x}-{6:016x}-01", f"ff-{5:032x}-{6:016x}-01", "é" * 55],
)
def test_what_is_no_context_is_none(text: str) -> None:
    message = SimpleNamespace(headers={"traceparent": text.encode()})
    assert not span_context_of(context_of(message)).is_valid
    assert carried(restored(text)) == Carried()
    assert Carried().headers() == {}
    assert links_to([text]) == []


@given(st.binary(), st.binary())
def test_no_header_of_a_message_is_an_error(parent: bytes, state: bytes) -> None:
    headers = {"traceparent": parent, "tracestate": state}
    assert trace.get_current_span(context_of(SimpleNamespace(headers=headers))) is not None


def test_a_state_that_is_too_long_is_left_out() -> None:
    state = "a=" + "1" * TRACESTATE_CHARACTERS_MAX
    assert carried(restored(VALID, state)) == Carried(VALID)


def test_a_request_without_a_context_does_not_keep_that_of_the_one_before() -> None:
    request = proto.Request(traceparent=VALID, tracestate="a=1")
    Carried().fill(request)
    assert (request.traceparent, request.tracestate) == ("", "")


def test_only_a_context_that_all_share_is_a_parent() -> None:
    others = [f"00-{5:032x}-{number:016x}-01" for number in range(1, LINKS_MAX + 9)]
    assert distinct([VALID, "", VALID]) == [VALID]
    assert len(distinct(others)) == LINKS_MAX
    assert span_context_of(common_parent([VALID])).span_id == 6
    assert not span_context_of(common_parent(others)).is_valid
    assert not span_context_of(common_parent([])).is_valid
