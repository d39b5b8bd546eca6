"""Every list in a request has a limit, and is refused beyond it before anything is done."""

from collections.abc import Iterator

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from quivermq.errors import TooLarge
from quivermq.wire import proto
from quivermq.wire.limits import ANSWER_BYTES_MAX, ITEMS_MAX, check_answer, check_items
from quivermq.wire.receiver import BROKER_ENVELOPE_BYTES_MAX, ENVELOPE_BYTES_MAX


def lists_of(kind: Descriptor, path: str) -> Iterator[str]:
    """The paths of all repeated fields below a message."""
    for field in kind.fields:
        here = f"{path}.{field.name}"
        if field.label == FieldDescriptor.LABEL_REPEATED:
            yield here
        if field.message_type is not None:
            yield from lists_of(field.message_type, here)


def kinds() -> list[FieldDescriptor]:
    return list(proto.Request.DESCRIPTOR.oneofs_by_name["body"].fields)


def test_every_list_in_a_request_has_a_limit() -> None:
    found = {path for kind in kinds() for path in lists_of(kind.message_type, kind.name)}
    assert found == set(ITEMS_MAX)


def filled(path: str, count: int) -> proto.Request:
    """A request with so many items, each as small as can be."""
    request = proto.Request()
    kind, *outer, last = path.split(".")
    message = getattr(request, kind)
    for name in outer:
        message = getattr(message, name).add()
    field = message.DESCRIPTOR.fields_by_name[last]
    items = getattr(message, last)
    if field.message_type is not None:
        for _ in range(count):
            items.add()
    elif field.type == FieldDescriptor.TYPE_STRING:
        items.extend([""] * count)
    elif field.type == FieldDescriptor.TYPE_BYTES:
        items.extend([b""] * count)
    else:
        items.extend([0] * count)
    return request


@pytest.mark.parametrize("path", ITEMS_MAX)
def test_one_item_too_many_is_refused_and_not_one_less(path: str) -> None:
    most = ITEMS_MAX[path]
    check_items(filled(path, most))
    with pytest.raises(TooLarge, match=f"{most:,}"):
        check_items(filled(path, most + 1))
    # Whoever is refused could have sent it: the limit is no promise that nobody can break.
    assert len(filled(path, most + 1).SerializeToString()) < ENVELOPE_BYTES_MAX


def test_inner_lists_are_counted_together() -> None:
    request = proto.Request()
    for _ in range(10):
        settlement = request.settle.settlements.add()
        for _ in range(10_001):
            settlement.intervals.add()
    with pytest.raises(TooLarge, match="intervals"):
        check_items(request)


def test_an_answer_is_refused_before_a_client_would_refuse_it() -> None:
    assert ANSWER_BYTES_MAX < BROKER_ENVELOPE_BYTES_MAX
    check_answer(ANSWER_BYTES_MAX, "ask for less")
    with pytest.raises(TooLarge, match="ask for less"):
        check_answer(ANSWER_BYTES_MAX + 1, "ask for less")
