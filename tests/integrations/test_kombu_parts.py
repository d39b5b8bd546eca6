"""The parts of the kombu transport that need no broker: names, URLs, stored messages."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quivermq.errors import InvalidRequest
from quivermq.integrations.kombu.broker_url import BrokerUrl, show_url
from quivermq.integrations.kombu.envelope import delay_of, expires_ms, pack, priority_of, unpack
from quivermq.integrations.kombu.names import Binding, TopicNames, escape, unescape
from quivermq.names import check_group_name, check_topic_name

NAMES = TopicNames("celery")
SOME = st.text(min_size=1, max_size=4) | st.text("_x.-05fdlq@é", min_size=1, max_size=10)


@settings(max_examples=50, deadline=None)
@given(SOME)
@example("dlq")
@example("a.dlq")
def test_a_queue_of_any_name_has_a_topic_and_is_found_again(queue: str) -> None:
    topic = NAMES.queue(queue)
    check_topic_name(topic)
    assert unescape(escape(queue)) == queue
    assert not topic.startswith(("celery._exchange", "celery._expiring"))
    assert not topic.endswith(".dlq")


@settings(max_examples=50, deadline=None)
@given(SOME, SOME)
@example("a@b", "a_x40b")
@example("_exchange", "_x5fexchange")
def test_no_two_queues_share_a_topic(one: str, other: str) -> None:
    assert (NAMES.queue(one) == NAMES.queue(other)) == (one == other)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=4) | st.text("_x.#*", max_size=8), SOME)
def test_a_binding_is_the_name_of_a_group_and_back(routing_key: str, queue: str) -> None:
    binding = Binding(routing_key, queue)
    check_group_name(binding.group)
    assert not binding.group.startswith("_"), "reserved by brokers"
    assert Binding.of_group(binding.group) == binding


def test_ordinary_names_stay_readable() -> None:
    assert NAMES.queue("high-priority_jobs.eu") == "celery.high-priority_jobs.eu"
    assert NAMES.queue("celery@host.celery.pidbox") == "celery.celery_x40host.celery.pidbox"


def test_a_url_names_servers_token_virtual_host_and_tls() -> None:
    assert BrokerUrl.parse("quiver://") == BrokerUrl()
    parsed = BrokerUrl.parse("quiver://:s%2Fecret@a:7600,b:7601/shop?tls_ca=ca.pem&timeout=3")
    assert parsed == BrokerUrl("a:7600,b:7601", "shop", "s/ecret", "ca.pem", 3.0)
    assert BrokerUrl.parse("quivers://a").tls is True
    assert BrokerUrl.parse("quiver://[::1]:7600").servers == "[::1]:7600"


@pytest.mark.parametrize(
    "url", ["quiver://a/b/c", "quiver://a/_b", "quiver://a?tsl_ca=x", "quiver://a?timeout=soon"]
)
def test_a_url_that_makes_no_sense_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        BrokerUrl.parse(url)


def test_options_of_the_transport_win_over_the_url() -> None:
    arguments = BrokerUrl.parse("quiver://:one@a").connect_arguments({"token": "two"})
    assert arguments == {"servers": "a", "token": "two", "tls": None, "timeout": 10.0}


def test_a_token_is_not_shown() -> None:
    url = "quiver://:secret@a:1,b:2/shop"
    assert show_url(url, include_password=False, mask="**") == "quiver://:**@a:1,b:2/shop"
    assert show_url(url, include_password=True, mask="**") == url


@settings(max_examples=50, deadline=None)
@given(
    st.binary() | st.text(), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=3)
)
def test_a_stored_message_is_read_as_it_was(body: bytes | str, headers: dict[str, str]) -> None:
    try:
        payload = {"body": body, "headers": headers, "properties": {}, "content-type": "x"}
        value = pack(payload)
    except UnicodeEncodeError:
        return  # lone surrogates have no UTF-8, and no serializer of kombu makes any
    assert unpack(value) == payload


def test_values_that_json_lacks_travel_in_headers() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    payload = {"body": b"", "headers": {"when": when}, "properties": {}}
    assert unpack(pack(payload)) == payload


@pytest.mark.parametrize("value", [b"", b"{}", b"[]\n", b"\xff\n", b"an order"])
def test_a_value_of_another_program_is_no_message(value: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        unpack(value)


def test_higher_priorities_of_celery_are_never_lower_ones_here() -> None:
    ours = [priority_of({"properties": {"priority": given}}) for given in range(10)]
    assert ours == sorted(ours)
    assert (ours[0], ours[9]) == (0, 7)
    assert priority_of({"properties": {}}) == 0
    assert priority_of({"properties": {"priority": 255}}) == 7


def test_an_eta_is_a_delay() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for eta in ((now + timedelta(seconds=9)).isoformat(), "2026-01-01T01:00:09+01:00"):
        assert delay_of({"headers": {"eta": eta}}, now) == 9
    for eta in (None, "", "2025-01-01T00:00:00", "soon", 7):
        assert delay_of({"headers": {"eta": eta}}, now) == 0


def test_of_two_times_to_live_the_shorter_counts() -> None:
    assert expires_ms({"properties": {"expiration": "2000"}}, 500) == 500
    assert expires_ms({"properties": {"expiration": "200"}}, 500) == 200
    assert expires_ms({"properties": {}}, None) is None


def test_without_kombu_the_import_says_what_to_install() -> None:
    program = """
import sys
sys.modules["kombu"] = None
try:
    import quivermq.integrations.kombu
except ImportError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "pip install 'quivermq[celery]'" in done.stdout, done.stderr
