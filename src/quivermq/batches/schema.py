"""The Arrow schema of a data body: fixed by the header's flags, so no body carries its own."""

from functools import cache
from typing import Any, Final

import pyarrow as pa

from quivermq.batches.header import Flag

HEADERS_TYPE: Final = pa.list_(
    pa.struct(
        [
            pa.field("key", pa.string(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
)
TIMESTAMP_TYPE: Final = pa.timestamp("ms", tz="UTC")

# The order of the columns in every body; `value` is always there.
OPTIONAL_COLUMNS: Final = (
    (Flag.KEY, pa.field("key", pa.binary())),
    (Flag.HEADERS, pa.field("headers", HEADERS_TYPE)),
    (Flag.TIMESTAMP, pa.field("timestamp", TIMESTAMP_TYPE)),
)
COLUMNS: Final = ("value", *(field.name for _, field in OPTIONAL_COLUMNS))

_COLUMN_FLAGS: Final = int(Flag.KEY | Flag.HEADERS | Flag.TIMESTAMP)


def schema_of(flags: int) -> Any:
    """The `pyarrow.Schema` of bodies with these flags."""
    return _schema(flags & _COLUMN_FLAGS)


@cache
def _schema(flags: int) -> Any:
    value = pa.field("value", pa.binary(), nullable=False)
    optional = [field for flag, field in OPTIONAL_COLUMNS if flags & flag]
    return pa.schema([value, *optional])
