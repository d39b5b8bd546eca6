"""Keys to partitions: fixed for ever, and evenly spread."""

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quivermq.client.producer.partitioner import partition_of, rows_by_partition

FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
VECTORS = [
    (b"", 12, 0),
    (b"a", 100, 76),
    (b"order-1", 100, 56),
    (b"order-3", 12, 7),
    (b"123456789", 16, 3),
    ("größe".encode(), 7, 2),
]


@pytest.mark.parametrize(("key", "partitions", "expected"), VECTORS)
def test_a_key_goes_where_the_documentation_says(
    key: bytes, partitions: int, expected: int
) -> None:
    assert partition_of(key, partitions) == expected


def test_the_documentation_has_these_examples() -> None:
    rows = re.findall(r"^\| `([0-9a-f]*)` \| (\d+) \| (\d+) \|$", FORMATS.read_text(), re.MULTILINE)
    found = {(bytes.fromhex(key), int(count), int(number)) for key, count, number in rows}
    assert set(VECTORS) <= found


@pytest.mark.parametrize("partitions", [2, 3, 7, 16, 64])
@pytest.mark.parametrize("pattern", [b"%d", b"user-%08d", b"%x-0000"])
def test_keys_that_look_alike_are_spread_evenly(pattern: bytes, partitions: int) -> None:
    counts = Counter(partition_of(pattern % number, partitions) for number in range(20_000))
    fair = 20_000 / partitions
    assert min(counts.values()) > 0.75 * fair
    assert max(counts.values()) < 1.25 * fair


@given(st.lists(st.none() | st.binary(max_size=8)), st.integers(1, 9))
def test_rows_are_grouped_in_order_and_none_is_lost(
    keys: list[bytes | None], partitions: int
) -> None:
    groups = rows_by_partition(keys, partitions)
    assert sorted(row for rows in groups.values() for row in rows) == list(range(len(keys)))
    for number, rows in groups.items():
        assert rows == sorted(rows)
        for row in rows:
            key = keys[row]
            assert number == (-1 if key is None else partition_of(key, partitions))
