"""Errors that travel arrive as what they were."""

import pytest

from quivermq import errors
from quivermq.errors import (
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    OutOfSequence,
    QuiverError,
    TopicNotFound,
    UnknownError,
)
from quivermq.raft import MembershipRefused
from quivermq.wire import error_from_proto, error_to_proto, proto
from quivermq.wire.errors import BY_CODE, MESSAGE_CHARACTERS_MAX

SPECIAL = {
    NotLeader: NotLeader("no", leader=3),
    OffsetOutOfRange: OffsetOutOfRange("no", earliest=5, end=1 << 62),
    OutOfSequence: OutOfSequence("no", expected=1 << 62, may_be_forgotten=True),
}


def travelled(error: QuiverError, leader_address: str = "") -> QuiverError:
    sent = error_to_proto(error, leader_address).SerializeToString()
    return error_from_proto(proto.Error.FromString(sent))


def all_kinds(kind: type[QuiverError] = QuiverError) -> set[type[QuiverError]]:
    public = {kind} if kind.__module__ == errors.__name__ else set()
    return public.union(*map(all_kinds, kind.__subclasses__()))


def test_every_public_error_has_its_code() -> None:
    assert {*BY_CODE.values(), UnknownError} == all_kinds()


@pytest.mark.parametrize("kind", BY_CODE.values(), ids=BY_CODE)
def test_every_error_arrives_as_what_it_was(kind: type[QuiverError]) -> None:
    error = SPECIAL.get(kind) or kind("what was wrong")
    got = travelled(error)
    assert type(got) is kind
    assert (str(got), got.retriable, got.code) == (str(error), error.retriable, error.code)
    assert vars(got) == vars(error)


def test_a_refusal_tells_where_the_leader_is() -> None:
    got = travelled(NotLeader("no", leader=3), "host:7600")
    assert isinstance(got, NotLeader)
    assert (got.leader, got.leader_address) == (3, "host:7600")
    passed_on = travelled(got)
    assert isinstance(passed_on, NotLeader)
    assert passed_on.leader_address == "host:7600"


def test_users_see_the_leaders_node_and_not_its_member_number() -> None:
    got = travelled(NotLeader("no", leader=5 << 16 | 3))
    assert isinstance(got, NotLeader)
    assert got.leader == 3


def test_an_error_of_one_room_travels_as_the_public_one_it_is_a_kind_of() -> None:
    assert type(travelled(MembershipRefused("no"))) is InvalidRequest


@pytest.mark.parametrize("retriable", [True, False])
def test_a_code_of_a_later_release_keeps_its_name(retriable: bool) -> None:
    got = error_from_proto(proto.Error(code="Later", message="what", retriable=retriable))
    assert isinstance(got, UnknownError)
    assert (got.code, got.retriable, str(got)) == ("Later", retriable, "what")
    again = travelled(got)
    assert (again.code, again.retriable) == ("Later", retriable)


def test_a_message_that_cannot_travel_as_it_is_travels_anyway() -> None:
    got = travelled(TopicNotFound("file \udcff" + "x" * 2 * MESSAGE_CHARACTERS_MAX))
    assert str(got).startswith("file ?")
    assert len(str(got)) == MESSAGE_CHARACTERS_MAX
