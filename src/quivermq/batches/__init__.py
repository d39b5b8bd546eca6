"""Batches: the frame, its header, and messages to and from Arrow bodies.

The values that every other room passes around. Imports nothing of ours but `errors`.
"""

from quivermq.batches.columns import prepare_arrays
from quivermq.batches.cut import cut
from quivermq.batches.decode import (
    Message,
    check_batch,
    check_sizes,
    decode_batch,
    decode_columns,
    decode_messages,
)
from quivermq.batches.encode import Compression, Origin, encode_batch, encode_batches
from quivermq.batches.envelope import check_envelope, is_plain, read_envelope
from quivermq.batches.frame import Frame
from quivermq.batches.header import (
    HEADER_BYTES,
    MARK_PREFIX,
    Buffer,
    Flag,
    FrameKind,
    Header,
    Index,
    Offset,
)
from quivermq.batches.limits import (
    COUNTER_MAX,
    DEFAULT_LIMITS,
    KIB,
    MIB,
    PRIORITY_MAX,
    TIMESTAMP_MS_MAX,
    Limits,
)
from quivermq.batches.lone import lone_value
from quivermq.batches.schema import HEADERS_TYPE, TIMESTAMP_TYPE, check_stream_schema, schema_of

__all__ = [
    "COUNTER_MAX",
    "DEFAULT_LIMITS",
    "HEADERS_TYPE",
    "HEADER_BYTES",
    "KIB",
    "MARK_PREFIX",
    "MIB",
    "PRIORITY_MAX",
    "TIMESTAMP_MS_MAX",
    "TIMESTAMP_TYPE",
    "Buffer",
    "Compression",
    "Flag",
    "Frame",
    "FrameKind",
    "Header",
    "Index",
    "Limits",
    "Message",
    "Offset",
    "Origin",
    "check_batch",
    "check_envelope",
    "check_sizes",
    "check_stream_schema",
    "cut",
    "decode_batch",
    "decode_columns",
    "decode_messages",
    "encode_batch",
    "encode_batches",
    "is_plain",
    "lone_value",
    "prepare_arrays",
    "read_envelope",
    "schema_of",
]
