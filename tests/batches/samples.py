"""Frames to test with: every set of columns, every compression, and bodies that lie."""

from typing import Any

from crc32c import crc32c
from hypothesis import strategies as st

from quivermq.batches import Compression, Flag, Frame, Header, Origin, encode_batch
from quivermq.batches.header import COMPRESSED
from quivermq.batches.limits import TIMESTAMP_MS_MAX

COLUMN_SETS = range(8)
"""Every combination of the flags KEY, HEADERS and TIMESTAMP."""

COMPRESSIONS: tuple[Compression, ...] = (None, "lz4", "zstd")

ORIGIN = Origin(producer_id=7, producer_epoch=2, sequence=100, priority=3, not_before_ms=1_000)


def columns_of(flags: int, rows: int) -> dict[str, Any]:
    """The optional columns that `flags` ask for, with missing entries and empty ones among them."""
    columns: dict[str, Any] = {}
    if flags & Flag.KEY:
        columns["keys"] = [None if row % 3 == 1 else b"key-%d" % row for row in range(rows)]
    if flags & Flag.HEADERS:
        columns["headers"] = [
            None if row % 4 == 1 else {f"name-{n}": b"v" * n for n in range(row % 4)}
            for row in range(rows)
        ]
    if flags & Flag.TIMESTAMP:
        columns["timestamps"] = [None if row % 5 == 1 else row * 1_000 for row in range(rows)]
    return columns


def values_of(rows: int) -> list[bytes]:
    """Values that compress well, so that asking for compression gets it; one of them is empty."""
    return [b"" if row == 1 else b"value-%d " % row * 40 for row in range(rows)]


def frame_of(flags: int = 0, compression: Compression = None, rows: int = 5) -> Frame:
    return encode_batch(
        values_of(rows), **columns_of(flags, rows), compression=compression, origin=ORIGIN
    )


def with_body(header: Header, body: bytes) -> bytes:
    """A frame with another body and right checksums: the lie reaches the decoder."""
    decoded = header.decoded_bytes if header.flags & COMPRESSED else len(body)
    sizes = {"body_bytes": len(body), "body_crc": crc32c(body), "decoded_bytes": decoded}
    return header._replace(**sizes).pack() + body


small_bytes = st.binary(max_size=40)
header_maps = st.dictionaries(st.text(max_size=8), small_bytes, max_size=4)
timestamps = st.integers(0, TIMESTAMP_MS_MAX)

rows_of_columns = st.lists(
    st.tuples(
        small_bytes,
        st.none() | small_bytes,
        st.none() | header_maps,
        st.none() | timestamps,
    ),
    min_size=1,
    max_size=30,
)
"""Rows of value, key, headers and timestamp."""
