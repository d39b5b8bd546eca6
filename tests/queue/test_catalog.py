"""The catalog: changes that take effect whole, or not at all."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.batches import Frame, FrameKind
from quivermq.errors import BrokenInvariant, InvalidRequest, TooLarge
from quivermq.queue import (
    CHANGE_BYTES_MAX,
    KEY_CHARACTERS_MAX,
    Catalog,
    Command,
    Partition,
    catalog_command,
)
from quivermq.queue.catalog import DEPTH_MAX
from tests.queue.test_partition import stamped

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)  # fmt: skip
CHANGES = st.tuples(
    st.integers(0, 4),
    st.dictionaries(st.sampled_from("abc"), VALUES, max_size=2),
    st.lists(st.sampled_from("defa"), max_size=2),
).filter(lambda change: not set(change[1]) & set(change[2]))


def changed(partition: Partition, base: int, put: dict, delete=()) -> bool:
    frame = Frame.of(FrameKind.COMMAND, catalog_command(base, put, delete))
    return partition.apply(stamped(frame, partition))


def test_a_change_takes_effect_if_it_was_made_from_the_last_version() -> None:
    partition = Partition()
    assert changed(partition, 0, {"topic/a": {"partitions": 3}, "topic/b": None})
    assert changed(partition, 1, {"topic/a": [1, 2.5, "x", True]}, ["topic/b", "never"])
    assert partition.catalog.version == 2
    assert partition.catalog.values == {"topic/a": [1, 2.5, "x", True]}


@pytest.mark.parametrize("base", [0, 2, 7])
def test_a_change_made_from_another_version_does_nothing_at_all(base: int) -> None:
    partition = Partition()
    changed(partition, 0, {"kept": 1})
    assert not changed(partition, base, {"kept": 2, "other": 3}, ["gone"])
    assert (partition.catalog.version, partition.catalog.values) == (1, {"kept": 1})
    assert partition.applied_index == 2


@given(st.lists(CHANGES, max_size=12), st.integers(0, 12))
def test_it_behaves_as_a_dict_and_survives_a_checkpoint_anywhere(changes, at: int) -> None:
    partition, model, version = Partition(), {}, 0
    for number, (base, put, delete) in enumerate(changes):
        if number == at:
            partition = Partition.restore(partition.checkpoint())
        took = changed(partition, base, put, delete)
        assert took == (base == version)
        if took:
            model |= put
            for key in delete:
                model.pop(key, None)
            version += 1
    assert partition.catalog.values == model
    partition.validate()


def test_the_same_content_is_the_same_bytes_whatever_the_way() -> None:
    one, other = Catalog(), Catalog()
    for catalog, keys in ((one, "abc"), (other, "cba")):
        for base, key in enumerate(keys):
            catalog.apply(catalog_command(base, {key: {"x": 1, "y": 2}})[1:])
    assert one.pack() == other.pack()


def test_an_empty_catalog_takes_no_room_in_a_checkpoint() -> None:
    assert Catalog().pack() == b""
    assert Catalog.unpack(b"").version == 0


def test_the_size_is_that_of_what_is_there() -> None:
    catalog = Catalog()
    catalog.apply(catalog_command(0, {"a": "x" * 100, "b": 1})[1:])
    assert catalog.size_bytes == len("a") + 102 + len("b") + 1
    catalog.apply(catalog_command(1, {"a": 1}, ["b"])[1:])
    assert catalog.size_bytes == 2
    assert Catalog.unpack(catalog.pack()).size_bytes == 2


def nested(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("base", "put", "delete"),
    [
        (-1, {}, []),
        (True, {}, []),
        ("0", {}, []),
        (2**63, {}, []),
        (0, {"": 1}, []),
        (0, {"k" * (KEY_CHARACTERS_MAX + 1): 1}, []),
        (0, {5: 1}, []),
        (0, {}, [5]),
        (0, {"a": 1}, ["a"]),
        (0, {"a": float("nan")}, []),
        (0, {"a": b"bytes"}, []),
        (0, {"a": {1: 2}}, []),
        (0, {"a": 10**5000}, []),
        (0, {"a": nested(DEPTH_MAX)}, []),
        (0, {"a": {1, 2}}, []),
    ],
)
def test_what_json_cannot_carry_is_refused_before_it_is_proposed(base, put, delete) -> None:
    with pytest.raises(InvalidRequest):
        catalog_command(base, put, delete)


def test_a_change_that_is_too_large_is_refused() -> None:
    room = CHANGE_BYTES_MAX - len(catalog_command(0, {"a": ""})) + 1
    assert len(catalog_command(0, {"a": "x" * room})) == CHANGE_BYTES_MAX + 1
    with pytest.raises(TooLarge):
        catalog_command(0, {"a": "x" * (room + 1)})


def test_the_deepest_value_that_is_taken_can_be_applied() -> None:
    catalog = Catalog()
    deep = nested(DEPTH_MAX - 1)
    assert catalog.apply(catalog_command(0, {"a": deep})[1:])
    assert Catalog.unpack(catalog.pack()).values == {"a": deep}


def test_the_command_is_json_with_sorted_keys() -> None:
    command = catalog_command(3, {"b": 1, "a": 2}, ["d", "c"])
    assert command[0] == Command.CATALOG
    assert command[1:] == b'{"base":3,"delete":["c","d"],"put":{"a":2,"b":1}}'
    assert json.loads(command[1:])["base"] == 3


def test_content_without_a_version_is_a_broken_invariant() -> None:
    catalog = Catalog()
    catalog.values["a"] = 1
    with pytest.raises(BrokenInvariant):
        catalog.validate()
