"""The flags alone decide the schema of a body."""

import pytest

from quivermq.batches import Flag, schema_of
from tests.batches.samples import COLUMN_SETS


@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_each_flag_stands_for_its_column_in_a_fixed_order(flags: int) -> None:
    optional = [(Flag.KEY, "key"), (Flag.HEADERS, "headers"), (Flag.TIMESTAMP, "timestamp")]
    expected = ["value", *(name for flag, name in optional if flags & flag)]
    assert schema_of(flags).names == expected


@pytest.mark.parametrize("flags", COLUMN_SETS)
def test_compression_does_not_alter_the_schema(flags: int) -> None:
    assert schema_of(flags | Flag.LZ4) == schema_of(flags | Flag.ZSTD) == schema_of(flags)


def test_only_values_and_header_pairs_must_be_there() -> None:
    schema = schema_of(7)
    assert [field.nullable for field in schema] == [False, True, True, True]
    assert not any(field.nullable for field in schema.field("headers").type.value_type)
