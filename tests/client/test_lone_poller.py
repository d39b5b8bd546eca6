"""The straight way of a poll does what the general way does, or leaves it to that."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

import quivermq
from quivermq.client.shared.poll import Poller
from quivermq.errors import Forbidden, NotLeader, Overloaded, QuiverError
from tests.client.group_stand_in import GroupStandIn
from tests.client.stand_in import DROP


@pytest.fixture
def stand_in() -> Iterator[GroupStandIn]:
    with GroupStandIn() as started:
        yield started


@contextmanager
def only_straight(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError("the general way was taken")

    with monkeypatch.context() as patched:
        patched.setattr(Poller, "_poll_in_rounds", refuse)
        yield


def begin(client: quivermq.Client) -> None:
    """The first poll of a group is not the plain case: it may have to be created at others."""
    assert client.poll("t", group="g", wait=0.0) == []


def test_a_poll_is_one_request_and_its_leases_are_held(
    stand_in: GroupStandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(client)
    client.produce_many("t", [b"a", b"b"])
    client.produce("t", b"c")
    with only_straight(monkeypatch):
        found = client.poll("t", group="g", wait=5.0, visibility=7.0)
        assert [message.value for message in found] == [b"a", b"b", b"c"]
        assert client.poll("t", group="g", wait=0.0) == []
    assert [(poll.wait_ms, poll.visibility_ms) for poll in stand_in.polls] == [
        (0, 30_000),
        (pytest.approx(5_000, abs=4_000), 7_000),
        (0, 30_000),
    ]
    assert client._core.consuming.held_leases.is_any
    client.ack(found)
    assert stand_in.lot().done == {0, 1, 2}


def test_nothing_is_waited_for_longer_than_was_asked(client: quivermq.Client) -> None:
    begin(client)
    began = time.monotonic()
    assert client.poll("t", group="g", wait=0.3) == []
    assert time.monotonic() - began >= 0.25


@pytest.mark.parametrize("script", [[DROP], [NotLeader("not yet"), DROP], [Overloaded("busy")]])
def test_the_general_way_goes_on_with_an_attempt_that_failed(
    script: list[str | QuiverError], stand_in: GroupStandIn, client: quivermq.Client
) -> None:
    begin(client)
    client.produce_many("t", [b"v"] * 3)
    stand_in.script("poll", *script)
    assert len(client.poll("t", group="g", wait=5.0)) == 3
    assert len(stand_in.polls) == 2
    assert stand_in.count("poll") == len(script) + 2


def test_a_refusal_is_raised_at_once(stand_in: GroupStandIn, client: quivermq.Client) -> None:
    begin(client)
    stand_in.script("poll", Forbidden("not you"))
    with pytest.raises(Forbidden, match="not you"):
        client.poll("t", group="g", wait=5.0)
    assert stand_in.count("poll") == 2
    assert not client._core.consuming.held_leases.is_any


def test_what_a_lost_answer_may_have_leased_is_given_back_at_the_end(
    stand_in: GroupStandIn,
) -> None:
    with quivermq.connect(stand_in.address, timeout=5.0) as client:
        begin(client)
        stand_in.script("poll", DROP)
        assert client.poll("t", group="g", wait=0.0) == []
    (release,) = stand_in.releases
    assert list(release.partitions) == [0]


def test_partitions_of_one_leader_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    with GroupStandIn(topics={"t": 3}) as stand_in, quivermq.connect(stand_in.address) as client:
        begin(client)
        with only_straight(monkeypatch):
            for _ in range(3):
                client.poll("t", group="g", wait=0.0)
    assert [list(poll.partitions) for poll in stand_in.polls] == [
        [0, 1, 2],
        [1, 2, 0],
        [2, 0, 1],
        [0, 1, 2],
    ]


def test_a_topic_of_several_leaders_is_left_to_the_general_way(
    stand_in: GroupStandIn, client: quivermq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.topics["t"] = 2
    begin(client)
    route = client._core.router.map.route("t")
    assert route is not None
    for leaders in ([1, 2], [1, 0], [0, 0]):
        route.leaders[:] = leaders
        with only_straight(monkeypatch), pytest.raises(AssertionError, match="general way"):
            client.poll("t", group="g", wait=0.0)
